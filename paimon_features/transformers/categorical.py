"""Categories as numbers: one output column for each value that a column was seen to have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from paimon_features.columns import Column
from paimon_features.errors import TransformError
from paimon_features.schema import DataType
from paimon_features.transformers.base import Applied, Params, StoredTransformer
from paimon_features.transformers.frames import Frame, missing, read_frame
from paimon_features.transformers.numeric import names_of

Category = bool | int | float | str | None

_UNKNOWN = ("error", "ignore")
_GROUPS = {bool: "truth values", int: "numbers", float: "numbers", str: "texts"}


class OneHotEncoder(StoredTransformer):
    """One column of 0 and 1 for each category of each column, categories in ascending order.

    Null and NaN are one category, the last, if the data that it was fitted on have one. An
    unknown category is an error, or with ``handle_unknown='ignore'`` zeros only. Learnt in parts,
    or merged in any order, it is the same.

    >>> encoder = OneHotEncoder(handle_unknown="ignore").fit([["a", 1], ["b", 1]])
    >>> encoder.transform([["b", 1], ["c", 1]])
    [[0.0, 1.0, 1.0], [0.0, 0.0, 1.0]]
    >>> encoder.names_out(["letter", "number"])
    ['letter_a', 'letter_b', 'number_1']
    >>> encoder.inverse_transform([[0.0, 1.0, 1.0], [0.0, 0.0, 1.0]])
    [['b', 1], [None, 1]]
    """

    kind = "one_hot_encoder"

    def __init__(self, handle_unknown: str = "error") -> None:
        if handle_unknown not in _UNKNOWN:
            raise TransformError(
                f"handle_unknown={handle_unknown!r}; expected one of: {', '.join(_UNKNOWN)}"
            )
        self.handle_unknown = handle_unknown
        self._rows = 0
        self._take([])

    @property
    def width(self) -> int:
        return len(self.categories_)

    @property
    def width_out(self) -> int:
        return sum(map(len, self.categories_))

    @property
    def is_scalar(self) -> bool:
        return False

    @property
    def rows_seen(self) -> int:
        return self._rows

    def accepts(self, index: int, kind: DataType) -> bool:
        known = {_group(value) for value in self.categories_[index] if value is not None}
        own = (
            "texts" if kind.text == "string"
            else "truth values" if kind.text == "bool"
            else "numbers" if kind.is_integer or kind.is_float
            else ""
        )  # fmt: skip
        return bool(own) and known <= {own}

    def names_out(self, names: Sequence[str]) -> list[str]:
        return [
            f"{name}_{category}"
            for name, categories in zip(names, self.categories_, strict=True)
            for category in categories
        ]

    def fit(self, X: Any) -> Self:
        """Learn the categories of ``X`` alone."""
        self.names, self._rows = None, 0
        self._take([])
        return self.partial_fit(X)

    def partial_fit(self, X: Any) -> Self:
        """Learn the categories of ``X`` besides those that were learnt before; returns itself."""
        frame = self._to_learn(X)
        found = [_distinct(c, frame.label(i)) for i, c in enumerate(frame.columns)]
        if self.width and found:
            found = [[*old, *new] for old, new in zip(self.categories_, found, strict=True)]
        if found or not self.width:
            self._take([_sorted(c, frame.label(i)) for i, c in enumerate(found)])
        self._rows += frame.rows
        return self

    def merge(self, other: Self) -> Self:
        """A new one with the categories of both; the same in either order."""
        names = self._to_merge(other)
        if self.handle_unknown != other.handle_unknown:
            raise TransformError(
                f"handle_unknown is {self.handle_unknown!r} of one and {other.handle_unknown!r} "
                "of the other; expected one rule"
            )
        out = type(self)(self.handle_unknown)
        sides = [one.categories_ for one in (self, other) if one.width]
        out._take(
            [
                _sorted([v for column in columns for v in column], f"column {index}")
                for index, columns in enumerate(zip(*sides, strict=True))
            ]
        )
        out.names, out._rows = names, self._rows + other._rows
        return out

    def transform(self, X: Any) -> Any:
        """A row of 0.0 and 1.0 for each row of ``X``.

        Raises
        ------
        TransformError
            For a category that was not seen, unless unknown ones are ignored.
        """
        self._check_fitted()
        frame = self._checked(X)
        columns, failed = self._encoded(frame)
        if failed is not None and failed.any():
            raise TransformError(self._refusal(frame, int(np.flatnonzero(failed)[0])))
        names = frame.names or [f"x{index}" for index in range(self.width)]
        return frame.like(columns, names=self.names_out(names), flat=False)

    def inverse_transform(self, X: Any) -> Any:
        """The categories of rows of 0 and 1: of each column the one with the greatest number.

        Null stands where all are zero, if unknown categories are ignored.

        Raises
        ------
        TransformError
            For all zeros where unknown categories are errors, or another number of columns.
        """
        self._check_fitted()
        frame = read_frame(X)
        if frame.rows and frame.width != self.width_out:
            raise TransformError(f"got {frame.width} columns; expected {self.width_out}")
        out, at = [], 0
        for categories in self.categories_:
            part = np.column_stack([c.values for c in frame.columns[at : at + len(categories)]])
            at += len(categories)
            none = ~(part.astype(np.float64) > 0).any(axis=1)
            if none.any() and self.handle_unknown == "error":
                row = int(np.flatnonzero(none)[0])
                raise TransformError(f"row {row} has no category; expected a 1 among its columns")
            values = np.empty(len(categories), np.object_)
            values[:] = categories
            chosen = values[part.argmax(axis=1)]
            chosen[none] = None
            valid = np.array([value is not None for value in chosen], np.bool_)
            out.append(Column(_typed(chosen, valid, categories), None if valid.all() else valid))
        names = self.names or tuple(f"x{index}" for index in range(self.width))
        return frame.like(out, names=names, flat=False)

    def apply(self, columns: Sequence[Column]) -> Applied:
        out: list[Column] = []
        failed = None
        for column, index, categories in zip(columns, self._index, self.categories_, strict=True):
            codes = _codes(column, index)
            hot = codes[:, None] == np.arange(len(categories))
            out += [Column(hot[:, j].astype(np.float64)) for j in range(len(categories))]
            if self.handle_unknown == "error" and (codes < 0).any():
                failed = codes < 0 if failed is None else failed | (codes < 0)
        return Applied(out, failed)

    def _learnt(self) -> Params:
        return {
            "handle_unknown": self.handle_unknown,
            "categories": [list(column) for column in self.categories_],
        }

    @classmethod
    def _from_params(cls, params: Mapping[str, Any]) -> Self:
        out = cls(params["handle_unknown"])
        found = [list(column) for column in params["categories"]]
        if not found:
            raise TransformError("there is no column")
        out._take([_sorted(column, f"column {i}") for i, column in enumerate(found)])
        if out.categories_ != found:
            raise TransformError("the categories are not distinct and ascending")
        out.names, out._rows = names_of(params, out.width), int(params["rows"])
        return out

    def _take(self, categories: list[list[Category]]) -> None:
        self.categories_ = categories
        self._index: list[dict[Category, int]] = [
            {value: at for at, value in enumerate(column)} for column in categories
        ]

    def _encoded(self, frame: Frame) -> tuple[list[Column], Any]:
        for index, (column, categories) in enumerate(
            zip(frame.columns, self.categories_, strict=True)
        ):
            known = {_group(value) for value in categories if value is not None}
            own = {_group(v) for v in _sample(column)}
            if known and own and not own <= known:
                raise TransformError(
                    f"{frame.label(index)} holds {own.pop()}; it was fitted on {known.pop()}"
                )
        applied = self.apply(frame.columns)
        return applied.columns, applied.failed

    def _refusal(self, frame: Frame, row: int) -> str:
        for index, column in enumerate(frame.columns):
            if _codes(column, self._index[index])[row] < 0:
                value = None if missing(column)[row] else column.values[row]
                known = ", ".join(map(repr, self.categories_[index][:20]))
                return (
                    f"{frame.label(index)} has the unknown category {value!r} in row {row}; it was "
                    f"fitted on: {known}; handle_unknown='ignore' makes zeros of others"
                )
        raise AssertionError("no column has an unknown category")


def _group(value: Category) -> str:
    return _GROUPS.get(type(value), "decimals")


def _sample(column: Column) -> list[Category]:
    """The first value of a column, if there is one; the others are of its type."""
    there = np.flatnonzero(~missing(column))[:1]
    return [column.values[there].tolist()[0]] if len(there) else []


def _distinct(column: Column, label: str) -> list[Category]:
    """The distinct values of a column, None for null and NaN."""
    none = missing(column)
    values = column.values[~none]
    known = set(values.tolist()) if values.dtype == np.object_ else set(np.unique(values).tolist())
    if any(type(value) not in _GROUPS for value in known):
        raise TransformError(f"{label} holds decimals; cast it to floats, or to texts")
    if any(isinstance(value, float) and np.isinf(value) for value in known):
        raise TransformError(f"{label} holds an infinite value; expected finite numbers or null")
    return [*known, *([None] if none.any() else [])]


def _sorted(values: Sequence[Category], label: str) -> list[Category]:
    """Distinct categories, ascending, None last; whole numbers are integers."""
    groups = {_group(value) for value in values if value is not None}
    if len(groups) > 1:
        raise TransformError(f"{label} holds {' and '.join(sorted(groups))}; expected one of them")
    known: set[Any] = {
        int(v) if isinstance(v, float) and v.is_integer() and abs(v) < 2**53 else v
        for v in values
        if v is not None
    }
    return [*sorted(known), *([None] if None in values else [])]


def _codes(column: Column, index: Mapping[Category, int]) -> Any:
    """The place of each value among the categories; -1 for one that is not there."""
    codes = np.fromiter(
        (index.get(value, -1) for value in column.values.tolist()), np.int64, len(column)
    )
    none = missing(column)
    return np.where(none, index.get(None, -1), codes) if none.any() else codes


def _typed(values: Any, valid: Any, categories: Sequence[Category]) -> Any:
    """Chosen categories as NumPy's own type, where they are numbers or truth values."""
    kinds = {type(value) for value in categories if value is not None}
    if kinds == {bool} and valid.all():
        return values.astype(np.bool_)
    if not kinds or not kinds <= {int, float}:
        return values
    out = np.full(len(values), np.nan)
    out[valid] = values[valid].tolist()
    return out if float in kinds or None in categories or not valid.all() else out.astype(np.int64)
