"""Frequency encoding of categories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import TransformError
from paimon_features.core.types.array_types import Bools, Floats
from paimon_features.transformers.base import Applied, Params, either_failed
from paimon_features.transformers.category_index import CategoryIndex, ascending, categories_of
from paimon_features.transformers.one_hot import CategoryCountEncoder, Counts
from paimon_features.transformers.setting_checks import one_of

_OUTPUTS = ("share", "count")
_UNKNOWN = ("zero", "null", "error")


class FrequencyEncoder(CategoryCountEncoder):
    """Encodes a category by its frequency: the share of all rows, or the count.

    Null and NaN are one category. An unknown category is 0.0 (its frequency), null, or an error.
    ``partial_fit`` and ``merge``, in any order, equal a single ``fit``.

    >>> encoder = FrequencyEncoder().fit(["a", "b", "b", None])
    >>> encoder.transform(["a", "b", None, "new"])
    [0.25, 0.5, 0.25, 0.0]
    >>> FrequencyEncoder(output="count", handle_unknown="null").fit(["a", "a"]).transform(["b"])
    [None]
    """

    kind = "frequency_encoder"
    _tables: Sequence[Floats] = ()
    _advice = "handle_unknown='zero' encodes unknown categories as 0.0"

    def __init__(self, *, output: str = "share", handle_unknown: str = "zero") -> None:
        self.output = output
        self.handle_unknown = handle_unknown

    @property
    def width_out(self) -> int:
        return self.width

    @property
    def frequencies_(self) -> list[Floats]:
        """The encodings of each column's categories, in their order."""
        self._check_fitted()
        return [table[:-1] for table in self._tables]

    def names_out(self, names: Sequence[str]) -> list[str]:
        return list(names)

    def _settings(self) -> Params:
        return {
            "output": one_of(self, "output", self.output, _OUTPUTS),
            "handle_unknown": one_of(self, "handle_unknown", self.handle_unknown, _UNKNOWN),
        }

    def apply(self, columns: Sequence[Column]) -> Applied:
        out: list[Column] = []
        failed: Bools | None = None
        for column, vocabulary, table in zip(columns, self._seen, self._tables, strict=True):
            codes = vocabulary.codes(column)
            valid = None
            if self.settings_.handle_unknown != "zero":
                unknown = codes < 0
                if unknown.any() and self.settings_.handle_unknown == "error":
                    failed = either_failed(failed, unknown)
                elif unknown.any():
                    valid = ~unknown
            out.append(Column(table[codes], valid))
        return Applied(out, failed)

    def block(self, values: Floats) -> Floats:
        for j, (vocabulary, table) in enumerate(zip(self._seen, self._tables, strict=True)):
            codes = vocabulary.codes_of(values[:, j])
            if self.settings_.handle_unknown == "error" and (codes < 0).any():
                raise TransformError("there is an unknown category")
            values[:, j] = table[codes]
            if self.settings_.handle_unknown == "null":
                values[codes < 0, j] = np.nan
        return values

    def _fitted_params(self) -> Params:
        return {
            **self._stored_settings(),
            "categories": self.categories_,
            "counts": [list(column_counts.values()) for column_counts in self._counts],
        }

    @classmethod
    def _from_params(cls, params: Mapping[str, Any]) -> Self:
        out = cls._from_settings(params)
        pairs = zip(categories_of(params), params["counts"], strict=True)
        out._take([dict(zip(c, map(int, n), strict=True)) for c, n in pairs], int(params["rows"]))
        return out

    def _take(self, counts: Counts, rows: int) -> None:
        self._counts, self._rows = counts, rows
        self._seen = [
            CategoryIndex(ascending(column_counts, f"column {i}"))
            for i, column_counts in enumerate(counts)
        ]
        scale = 1.0 if self.settings_.output == "count" else float(max(rows, 1))
        # the last entry is that of unknown categories
        self._tables = [
            np.array([*column_counts.values(), 0], np.float64) / scale for column_counts in counts
        ]
