"""The distinct values of a column, and their codes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.core._arrow import arrow_loaded, pa
from paimon_features.core.columns.column import Column
from paimon_features.core.errors import TransformError
from paimon_features.core.types.array_types import Floats, Ints
from paimon_features.core.types.schema import DataType
from paimon_features.transformers.frames import Frame, missing
from paimon_features.transformers.setting_checks import is_none, wrong

Category = bool | int | float | str | None

_GROUPS = {bool: "booleans", int: "numbers", float: "numbers", str: "strings", list: "lists"}
_FEW_ROWS = 64
"""Up to this number of rows a Python loop is faster than the setup of NumPy and Arrow."""
_EXACT = 2**53


class CategoryIndex:
    """Codes of the categories of one column: ascending, None (null and NaN) last.

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
        """The group of its values: numbers, strings or booleans; None without values."""
        return next((group(v) for v in self.categories if v is not None), None)

    def accepts(self, kind: DataType) -> bool:
        """Return whether the categories can be values of a type."""
        kind_group = (
            "strings" if kind.text == "string"
            else "booleans" if kind.text == "bool"
            else "numbers" if kind.is_integer or kind.is_float
            else None
        )  # fmt: skip
        return kind_group is not None and self.group in (None, kind_group)

    def codes(self, column: Column) -> Ints:
        """Return the code of each value; -1 for an unknown value."""
        if len(column) > _FEW_ROWS:
            if column.values.dtype != np.object_:
                if self._numbers is not None:
                    codes = self._found(column.values)
                    if column.valid is not None:
                        codes[~column.valid] = self._none
                    return codes
            elif self.group in (None, "strings") and arrow_loaded():
                return self._of_texts(column)
        values = column.values.tolist()
        codes = np.fromiter((self._index.get(v, -1) for v in values), np.int64, len(values))
        none = missing(column)
        if none.any():
            codes[none] = self._none
        return codes

    def codes_of(self, values: Floats) -> Ints:
        """Return the codes of numbers, with NaN as null."""
        return self.codes(Column(values))

    @property
    def fits_floats(self) -> bool:
        """Whether ``codes_of`` distinguishes all categories: no strings, no integers from 2**53."""
        return self._numbers is not None

    @cached_property
    def _numbers(self) -> npt.NDArray[Any] | None:
        """The categories as float64; None if that is not exact."""
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
        positions = [self._index.get(v, -1) for v in coded.dictionary.to_pylist()]
        # the last entry is that of null, whose index is filled with -1
        table = np.array([*positions, self._none], np.int64)
        codes: Ints = table[coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
        return codes


def group(value: Category) -> str:
    """Return the group of a value, as messages name it."""
    return _GROUPS.get(type(value), "decimals")


def counted(column: Column, label: str) -> dict[Category, int]:
    """Return the count of each distinct value of a column, None for null and NaN.

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
            if arrow_loaded():
                pairs = pa.array(values, pa.string()).value_counts()
                out = dict(zip(*(pairs.field(i).to_pylist() for i in (0, 1)), strict=True))
            else:
                out = dict(Counter(values.tolist()))
        else:
            groups = " and ".join(sorted({_GROUPS.get(kind, "decimals") for kind in kinds}))
            raise TransformError(f"{label} contains {groups}; cast it to floats, or to strings")
    else:
        distinct, counts = np.unique(values, return_counts=True)
        out = dict(zip(distinct.tolist(), counts.tolist(), strict=True))
        if any(isinstance(value, float) and np.isinf(value) for value in out):
            raise TransformError(
                f"{label} contains an infinite value; expected finite numbers or null"
            )
    if none.any():
        out[None] = int(none.sum())
    return out


def ascending(values: Iterable[Category], label: str) -> list[Category]:
    """Return distinct categories, ascending, None last; integral floats as integers.

    Raises
    ------
    TransformError
        For categories of several groups.
    """
    values = list(values)
    groups = {group(value) for value in values if value is not None}
    if len(groups) > 1:
        raise TransformError(
            f"{label} contains {' and '.join(sorted(groups))}; expected one of them"
        )
    distinct: set[Any] = {_whole(v) for v in values if v is not None}
    return [*sorted(distinct), *([None] if None in values else [])]


def together(
    left: Mapping[Category, int], right: Mapping[Category, int], label: str
) -> dict[Category, int]:
    """Return the sums of two counts, ordered by category."""
    out = dict.fromkeys(ascending([*left, *right], label), 0)
    for side in (left, right):
        for value, count in side.items():
            out[_whole(value)] += count
    return out


def check_groups(frame: Frame, vocabularies: Sequence[CategoryIndex]) -> None:
    """Raise TransformError for columns whose values are of another group than the fitted ones."""
    for index, (column, vocabulary) in enumerate(zip(frame.columns, vocabularies, strict=True)):
        first_row = np.flatnonzero(~missing(column))[:1]
        # a column has one type, so the first value decides
        value_group = group(column.values[first_row].tolist()[0]) if len(first_row) else None
        if value_group is not None and vocabulary.group not in (None, value_group):
            raise TransformError(
                f"{frame.label(index)} contains {value_group}; it was fitted on {vocabulary.group}"
            )


def first_unknown(frame: Frame, vocabularies: Sequence[CategoryIndex]) -> str | None:
    """Return the start of a message about the first unknown value; None without one."""
    for index, (column, vocabulary) in enumerate(zip(frame.columns, vocabularies, strict=True)):
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
    """Return categories (None: null) as a column, of a NumPy type unless they are strings."""
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
    """Return the categories in parameters; TransformError if not distinct and ascending."""
    categories = [list(column) for column in params["categories"]]
    if not categories:
        raise TransformError("got no columns; expected at least one")
    if (
        not params.get("declared")
        and [ascending(column, f"column {i}") for i, column in enumerate(categories)] != categories
    ):
        raise TransformError("the categories are not distinct and ascending")
    return categories


def declared_categories(of: object, categories: Any) -> str | list[list[Category]]:
    """Return the setting ``categories``: 'auto', or the categories of each column.

    Strings may have any order, numbers and booleans are ascending; None (null, NaN) is last.

    Raises
    ------
    TransformError
        For anything else, and for categories that are repeated or of several groups.
    """
    if isinstance(categories, str) and categories == "auto":
        return "auto"
    if not isinstance(categories, list | tuple | np.ndarray) or not len(categories):
        raise wrong(of, "categories", categories, "'auto', or a list of categories per column")
    out = []
    for index, given in enumerate(categories):
        if not isinstance(given, list | tuple | np.ndarray):
            raise wrong(of, "categories", categories, "'auto', or a list of categories per column")
        values = given.tolist() if isinstance(given, np.ndarray) else list(given)
        values = [v.item() if isinstance(v, np.generic) else v for v in values]
        normalized = [None if is_none(value) else _whole(value) for value in values]
        if not all(isinstance(value, bool | int | float | str | None) for value in normalized):
            raise wrong(of, "categories", categories, "numbers, strings or booleans")
        in_order = ascending(normalized, f"column {index}")
        if len(set(normalized)) != len(normalized):
            raise TransformError(
                f"In column {index}, the predefined categories contain duplicate elements."
            )
        if None in normalized[:-1]:
            raise TransformError(f"In column {index}, null should be the last of the categories.")
        if normalized != in_order and not any(isinstance(value, str) for value in normalized):
            raise TransformError(
                "Unsorted categories are not supported for numerical categories: column "
                f"{index} has {normalized}"
            )
        out.append(normalized)
    return out


def _whole(value: Category) -> Category:
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) < _EXACT
    return int(value) if is_whole else value  # type: ignore[arg-type]
