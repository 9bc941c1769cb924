"""The distinct values of a column, and the place of each value among them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from paimon_features.array_types import Floats, Ints
from paimon_features.columns import Column
from paimon_features.errors import TransformError
from paimon_features.schema import DataType
from paimon_features.transformers.frames import Frame, missing

Category = bool | int | float | str | None

_GROUPS = {bool: "truth values", int: "numbers", float: "numbers", str: "texts", list: "lists"}
_FEW_ROWS = 64
"""Up to here a loop over the values costs less than what NumPy and Arrow have to set up."""
_EXACT = 2**53


class CategoryIndex:
    """Categories of one column, ascending, None (null and NaN) the last; each has its place.

    >>> known = CategoryIndex(["a", "b", None])
    >>> known.codes(Column(np.array(["b", "z"], object))).tolist()
    [1, -1]
    """

    def __init__(self, categories: Sequence[Category]) -> None:
        self.categories = list(categories)
        self._index: dict[Category, int] = {v: at for at, v in enumerate(self.categories)}
        self._none = self._index.get(None, -1)

    def __len__(self) -> int:
        return len(self.categories)

    @cached_property
    def group(self) -> str | None:
        """What its values are, None where there is none: numbers, texts or truth values."""
        return next((group(v) for v in self.categories if v is not None), None)

    def accepts(self, kind: DataType) -> bool:
        """Whether values of a type can be among these."""
        own = (
            "texts" if kind.text == "string"
            else "truth values" if kind.text == "bool"
            else "numbers" if kind.is_integer or kind.is_float
            else None
        )  # fmt: skip
        return own is not None and self.group in (None, own)

    def codes(self, column: Column) -> Ints:
        """The place of each value; -1 for one that is not there."""
        if len(column) > _FEW_ROWS:
            if column.values.dtype != np.object_:
                if self._numbers is not None:
                    codes = self._found(column.values)
                    if column.valid is not None:
                        codes[~column.valid] = self._none
                    return codes
            elif self.group in (None, "texts"):
                return self._of_texts(column)
        values = column.values.tolist()
        codes = np.fromiter((self._index.get(v, -1) for v in values), np.int64, len(values))
        none = missing(column)
        if none.any():
            codes[none] = self._none
        return codes

    def codes_of(self, values: Floats) -> Ints:
        """The same of numbers, NaN being no value."""
        return self.codes(Column(values))

    @property
    def fits_floats(self) -> bool:
        """Whether ``codes_of`` tells all categories apart: no texts, no integers from 2**53."""
        return self._numbers is not None

    @cached_property
    def _numbers(self) -> npt.NDArray[Any] | None:
        """The categories in an array, where equal numbers are equal in it; None where not."""
        numbers = [v for v in self.categories if v is not None]
        if any(isinstance(v, str) or abs(v) >= _EXACT for v in numbers):
            return None
        return np.array(numbers, np.float64)

    def _found(self, values: npt.NDArray[Any]) -> Ints:
        numbers = self._numbers
        assert numbers is not None
        floats = values.astype(np.float64, copy=False)
        codes = np.searchsorted(numbers, floats)
        if len(numbers):
            np.minimum(codes, len(numbers) - 1, out=codes)
            codes[numbers[codes] != floats] = -1
        else:
            codes[:] = -1
        if floats is values:
            codes[np.isnan(floats)] = self._none
        return codes

    def _of_texts(self, column: Column) -> Ints:
        mask = None if column.valid is None else ~column.valid
        array = pa.array(column.values, pa.string(), mask=mask, from_pandas=True)
        coded = array.dictionary_encode()
        known = [self._index.get(v, -1) for v in coded.dictionary.to_pylist()]
        # the last one is that of null, whose index is filled with -1
        table = np.array([*known, self._none], np.int64)
        codes: Ints = table[coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
        return codes


def group(value: Category) -> str:
    """What a value is, in words of messages."""
    return _GROUPS.get(type(value), "decimals")


def counted(column: Column, label: str) -> dict[Category, int]:
    """How often each distinct value of a column is there, None for null and NaN.

    Raises
    ------
    TransformError
        For lists, decimals and infinite values.
    """
    none = missing(column)
    values = column.values[~none]
    out: dict[Category, int]
    if values.dtype == np.object_:
        kinds = {type(value) for value in values}
        if kinds <= {str}:
            found = pa.array(values, pa.string()).value_counts()
            out = dict(zip(*(found.field(i).to_pylist() for i in (0, 1)), strict=True))
        else:
            told = " and ".join(sorted({_GROUPS.get(kind, "decimals") for kind in kinds}))
            raise TransformError(f"{label} holds {told}; cast it to floats, or to texts")
    else:
        known, counts = np.unique(values, return_counts=True)
        out = dict(zip(known.tolist(), counts.tolist(), strict=True))
        if any(isinstance(value, float) and np.isinf(value) for value in out):
            raise TransformError(
                f"{label} holds an infinite value; expected finite numbers or null"
            )
    if none.any():
        out[None] = int(none.sum())
    return out


def ascending(values: Iterable[Category], label: str) -> list[Category]:
    """Distinct categories, ascending, None last; whole numbers are integers.

    Raises
    ------
    TransformError
        For categories of several kinds.
    """
    values = list(values)
    groups = {group(value) for value in values if value is not None}
    if len(groups) > 1:
        raise TransformError(f"{label} holds {' and '.join(sorted(groups))}; expected one of them")
    known: set[Any] = {_whole(v) for v in values if v is not None}
    return [*sorted(known), *([None] if None in values else [])]


def together(
    left: Mapping[Category, int], right: Mapping[Category, int], label: str
) -> dict[Category, int]:
    """Counts of both, in the order of their categories."""
    out = dict.fromkeys(ascending([*left, *right], label), 0)
    for side in (left, right):
        for value, count in side.items():
            out[_whole(value)] += count
    return out


def check_groups(frame: Frame, known: Sequence[CategoryIndex]) -> None:
    """Refuse columns whose values are of another kind than those that were seen."""
    for index, (column, vocabulary) in enumerate(zip(frame.columns, known, strict=True)):
        there = np.flatnonzero(~missing(column))[:1]
        # the first value tells of all: a column has one type
        own = group(column.values[there].tolist()[0]) if len(there) else None
        if own is not None and vocabulary.group not in (None, own):
            raise TransformError(
                f"{frame.label(index)} holds {own}; it was fitted on {vocabulary.group}"
            )


def first_unknown(frame: Frame, known: Sequence[CategoryIndex]) -> str | None:
    """The first value that is not among the categories, as a message begins; None where all are."""
    for index, (column, vocabulary) in enumerate(zip(frame.columns, known, strict=True)):
        unknown = np.flatnonzero(vocabulary.codes(column) < 0)
        if len(unknown):
            row = int(unknown[0])
            value = None if missing(column)[row] else column.values[row]
            among = ", ".join(map(repr, vocabulary.categories[:20]))
            return (
                f"{frame.label(index)} has the unknown category {value!r} in row {row}; it was "
                f"fitted on: {among}"
            )
    return None


def chosen(values: npt.NDArray[Any], categories: Sequence[Category]) -> Column:
    """Categories (None: none) as a column of NumPy's own type, where they are no texts."""
    valid = np.array([value is not None for value in values], np.bool_)
    kinds = {type(value) for value in categories if value is not None}
    if kinds == {bool} and valid.all():
        values = values.astype(np.bool_)
    elif kinds and kinds <= {int, float}:
        out = np.full(len(values), np.nan)
        out[valid] = values[valid].tolist()
        with_gaps = float in kinds or None in categories or not valid.all()
        values = out if with_gaps else out.astype(np.int64)
    return Column(values, None if valid.all() else valid)


def categories_of(params: Mapping[str, Any]) -> list[list[Category]]:
    """The categories in parameters; TransformError where they are not distinct and ascending."""
    found = [list(column) for column in params["categories"]]
    if not found:
        raise TransformError("there is no column")
    if [ascending(column, f"column {i}") for i, column in enumerate(found)] != found:
        raise TransformError("the categories are not distinct and ascending")
    return found


def _whole(value: Category) -> Category:
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < _EXACT
    return int(value) if is_whole else value  # type: ignore[arg-type]
