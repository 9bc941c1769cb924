"""The typed expression language of derived columns and filters, with one meaning everywhere.

A text is parsed and type-checked once; from then on one tree is printed as Flink SQL, printed
as DuckDB SQL, or computed with NumPy, and all three give the same values.
``docs/reference/expressions.md`` describes the language.

>>> import numpy as np
>>> from paimon_features.core.columns.column import Column
>>> from paimon_features.core.types.schema import Int64
>>> half = parse("n / 2", {"n": Int64})
>>> evaluate(half, {"n": Column(np.array([5, 6]))}, rows=2).values.tolist()
[2.5, 3.0]
"""

from paimon_features.core.expressions.duckdb import to_duckdb
from paimon_features.core.expressions.evaluate import evaluate
from paimon_features.core.expressions.flink import to_flink
from paimon_features.core.expressions.items import DELIMITER, PART, decode_items
from paimon_features.core.expressions.nodes import Expression
from paimon_features.core.expressions.ordered import decode_ordered
from paimon_features.core.expressions.overflow import overflow_guard
from paimon_features.core.expressions.parse import parse
from paimon_features.core.expressions.rewrite import replace_nodes, substitute

__all__ = [
    "DELIMITER",
    "PART",
    "Expression",
    "decode_items",
    "decode_ordered",
    "evaluate",
    "overflow_guard",
    "parse",
    "replace_nodes",
    "substitute",
    "to_duckdb",
    "to_flink",
]
