"""Filters written as expressions (``docs/reference/expressions.md``), on the columns of a block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import ExpressionError
from paimon_features.core.expressions import Expression, evaluate, parse
from paimon_features.core.types.schema import Bool, DataType, Int64
from trainer_bridge.blocks.expression_columns import data_type_of
from trainer_bridge.preprocess.row_block import RowBlock
from trainer_bridge.preprocess.stages import Values


@dataclass(frozen=True, slots=True)
class Condition:
    """A boolean expression over rows, and the columns it reads."""

    text: str
    columns: frozenset[str]

    @classmethod
    def of(cls, text: str, rows: RowBlock) -> Condition:
        """Validate against the available columns.

        Raises
        ------
        ExpressionError
            If it is not a valid expression over them, or not boolean.
        """
        return cls(text, _parsed(text, rows).columns)

    def matches(self, rows: RowBlock) -> npt.NDArray[np.bool_]:
        """Return the mask of the rows that match; null counts as false."""
        expression = _parsed(self.text, rows)
        columns = {name: _column(rows.as_read(name)) for name in expression.columns}
        result = evaluate(expression, columns, rows.num_rows)
        values = np.broadcast_to(result.values.astype(bool), (rows.num_rows,))
        return np.asarray(values & result.mask)


class _Kinds(dict[str, DataType]):
    """Column types, resolved on first access."""

    def __init__(self, rows: RowBlock) -> None:
        super().__init__(dict.fromkeys(rows, Int64))  # for the names in messages
        self._rows = rows

    def get(self, name: str, default: object = None) -> DataType | None:  # type: ignore[override]
        if name not in self._rows:
            return None
        values = self._rows.as_read(name)
        kind = _kind(values)
        if kind is None:
            type_name = str(values.dtype if isinstance(values, np.ndarray) else values.type)
            if isinstance(values, np.ndarray) and values.ndim > 1:
                type_name = f"{type_name} of shape {values.shape[1:]} in each row"
            raise ExpressionError(f"column {name!r} is {type_name}: expressions do not support it")
        return kind


def _parsed(text: str, rows: RowBlock) -> Expression:
    expression = parse(text, _Kinds(rows))
    if expression.type != Bool:
        raise ExpressionError(
            f"filter {text!r} is {expression.type}; expected a condition, such as 'n > 0'"
        )
    return expression


def _kind(values: Values) -> DataType | None:
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            return None
        arrow = pa.from_numpy_dtype(values.dtype)
    else:
        arrow = values.type
    return data_type_of(arrow)


def _column(values: Values) -> Column:
    return Column(values) if isinstance(values, np.ndarray) else Column.from_arrow(values)
