"""Encoders of categories: their base classes, and one-hot encoding."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from paimon_features.array_types import Bools, Floats
from paimon_features.columns import Column
from paimon_features.errors import TransformError
from paimon_features.schema import DataType
from paimon_features.transformers.base import Applied, Params, StoredTransformer, either_failed
from paimon_features.transformers.category_index import (
    Category,
    CategoryIndex,
    ascending,
    categories_of,
    check_groups,
    chosen,
    counted,
    first_unknown,
    together,
)
from paimon_features.transformers.column_statistics import ColumnStatistics, Statistic
from paimon_features.transformers.frames import Frame, read_frame
from paimon_features.transformers.from_statistics import counts_from
from paimon_features.transformers.json_values import names_of
from paimon_features.transformers.matrix_blocks import run_blocks

_UNKNOWN = ("error", "ignore", "infrequent_if_exist")
_DROP = (None, "first", "if_binary")
Counts = list[dict[Category, int]]


class Encoder(StoredTransformer):
    """Base class of encoders: the fitted categories of each column."""

    _rows: int = 0
    _seen: Sequence[CategoryIndex] = ()

    @property
    def categories_(self) -> list[list[Category]]:
        """The categories of each column, ascending, None (null and NaN) last."""
        return [each.categories for each in self._seen]

    @property
    def vocabularies_(self) -> list[CategoryIndex]:
        """The category index of each column."""
        return list(self._seen)

    def takes_text(self, index: int) -> bool:
        """Return whether a column that it was fitted on has strings."""
        return self._seen[index].group == "strings"

    @property
    def width(self) -> int:
        return len(self._seen)

    @property
    def rows_seen(self) -> int:
        return self._rows

    def accepts(self, index: int, kind: DataType) -> bool:
        return self._seen[index].accepts(kind)

    def check(self, frame: Frame) -> None:
        check_groups(frame, self._seen)

    @property
    def supports_matrix(self) -> bool:
        return all(each.fits_floats for each in self._seen)

    def transform(self, X: Any) -> Any:
        """Return ``X`` encoded.

        Raises
        ------
        TransformError
            For an unknown category, if these are errors.
        """
        self._check_fitted()
        if not self.width_out:
            raise TransformError(
                "no output column: each column has one category, which drop= removes; use drop=None"
            )
        given = read_frame(X)
        frame = self._checked(given)
        self.check(frame)
        names = frame.names or [f"x{index}" for index in range(self.width)]
        if given.matrix is not None and given.rows and self.supports_matrix and not given.is_flat:
            try:
                return run_blocks(given, [self.block], self.width_out)
            except TransformError:
                pass  # raised again below, with the value and its row
        applied = self.apply(frame.columns)
        if applied.failed is not None and applied.failed.any():
            raise TransformError(f"{first_unknown(frame, self._seen)}; {self._advice}")
        return given.like(applied.columns, names=self.names_out(names), flat=self._flat(given))

    _advice = "handle_unknown='ignore' encodes unknown categories as zeros"

    def _flat(self, frame: Frame) -> bool:
        """Return whether the output is a single column without a table, like the input."""
        return frame.is_flat and self.is_scalar

    @abstractmethod
    def block(self, values: Floats) -> Floats: ...


class CategoryCountEncoder(Encoder):
    """An encoder that is fitted on the counts of the categories."""

    _counts: Counts

    @property
    def required_statistics(self) -> frozenset[Statistic]:
        return frozenset({"categories"})

    def _fit_statistics(self, columns: Sequence[ColumnStatistics], rows: int) -> None:
        self._take(counts_from(columns), rows)

    def fit(self, X: Any) -> Self:
        """Fit on the categories of ``X`` alone."""
        self.names = None
        self._take([], 0)
        return self.partial_fit(X)

    def partial_fit(self, X: Any) -> Self:
        """Fit on the categories of ``X`` in addition to earlier ones; returns itself."""
        frame = self._read_fit_data(X)
        found = [counted(c, frame.label(i)) for i, c in enumerate(frame.columns)]
        before = self._counts or [{} for _ in found]
        if found:
            pairs = zip(before, found, strict=True)
            both = [together(a, b, frame.label(i)) for i, (a, b) in enumerate(pairs)]
            self._take(both, self._rows + frame.rows)
        return self

    def _absorb(self, other: Self) -> None:
        counts = other._counts
        if self.width:
            pairs = zip(self._counts, other._counts, strict=True)
            counts = [together(a, b, f"column {i}") for i, (a, b) in enumerate(pairs)]
        self._take(counts, self._rows + other._rows)

    @abstractmethod
    def _take(self, counts: Counts, rows: int) -> None:
        """Update the parameters from these counts."""


class OneHotEncoder(CategoryCountEncoder):
    """One column of 0 and 1 for each category of each column, categories in ascending order.

    Null and NaN are one category, the last, if they occur in the data of the fit. An unknown
    category is an error, or all zeros with ``handle_unknown='ignore'``. ``partial_fit`` and
    ``merge``, in any order, equal a single ``fit``.

    Categories of fewer than ``min_frequency`` rows (a share of the rows, if it is a float) share
    one column of infrequent categories, the last; so do the rarest ones until at most
    ``max_categories`` columns remain, that one included; of equally frequent categories the
    smaller are infrequent. ``handle_unknown='infrequent_if_exist'`` encodes unknown ones there.
    ``drop='first'`` omits the first column of each, ``'if_binary'`` only where there are two.

    >>> encoder = OneHotEncoder(handle_unknown="ignore").fit([["a", 1], ["b", 1]])
    >>> encoder.transform([["b", 1], ["c", 1]])
    [[0.0, 1.0, 1.0], [0.0, 0.0, 1.0]]
    >>> encoder.names_out(["letter", "number"])
    ['letter_a', 'letter_b', 'number_1']
    >>> encoder.inverse_transform([[0.0, 1.0, 1.0], [0.0, 0.0, 1.0]])
    [['b', 1], [None, 1]]
    >>> rare = OneHotEncoder("infrequent_if_exist", max_categories=2).fit(["a", "b", "b", "c"])
    >>> rare.transform(["a", "b", "new"]), rare.names_out(["letter"])
    ([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]], ['letter_b', 'letter_infrequent'])
    """

    kind = "one_hot_encoder"

    def __init__(
        self,
        handle_unknown: str = "error",
        *,
        min_frequency: int | float | None = None,
        max_categories: int | None = None,
        drop: str | None = None,
    ) -> None:
        if handle_unknown not in _UNKNOWN:
            raise TransformError(
                f"handle_unknown={handle_unknown!r}; expected one of: {', '.join(_UNKNOWN)}"
            )
        if drop not in _DROP:
            raise TransformError(f"drop={drop!r}; expected None, 'first' or 'if_binary'")
        whole, share = type(min_frequency) is int, type(min_frequency) is float
        if min_frequency is not None and not (
            (whole and min_frequency >= 1) or (share and 0 < min_frequency < 1)
        ):
            raise TransformError(
                f"min_frequency={min_frequency!r}; expected a number of rows from 1, or a share "
                "between 0.0 and 1.0"
            )
        if max_categories is not None and (type(max_categories) is not int or max_categories < 1):
            raise TransformError(f"max_categories={max_categories!r}; expected 1 or more")
        self.handle_unknown = handle_unknown
        self.min_frequency = min_frequency
        self.max_categories = max_categories
        self.drop = drop
        self._take([], 0)

    @property
    def width_out(self) -> int:
        return sum(self._widths)

    @property
    def is_scalar(self) -> bool:
        return False

    @property
    def infrequent_categories_(self) -> list[list[Category] | None]:
        """The infrequent categories of each column; None if there are none."""
        return [
            [v for v, rare in zip(each.categories, mask, strict=True) if rare]
            if any(mask)
            else None
            for each, mask in zip(self._seen, self._rare, strict=True)
        ]

    @property
    def slots_(self) -> list[tuple[npt.NDArray[np.int64], int]]:
        """For each column the output position of each category (-1: none), and their number.

        The last position is that of unknown categories.
        """
        return list(zip(self._slots, self._widths, strict=True))

    def names_out(self, names: Sequence[str]) -> list[str]:
        out = []
        for name, known, rare, dropped in zip(
            names, self._seen, self._rare, self._dropped, strict=True
        ):
            own = [v for v, is_rare in zip(known.categories, rare, strict=True) if not is_rare]
            labels = [f"{name}_{v}" for v in own] + [f"{name}_infrequent"] * any(rare)
            out += labels[1:] if dropped else labels
        return out

    def inverse_transform(self, X: Any) -> Any:
        """Return the categories of encoded rows: for each column the one with the largest number.

        All zeros are the dropped category, or null if unknown categories are not errors. An
        infrequent category is null, since the original is not known.

        Raises
        ------
        TransformError
            For all zeros if unknown categories are errors, or another number of columns.
        """
        self._check_fitted()
        frame = read_frame(X)
        if frame.rows and frame.width != self.width_out:
            raise TransformError(f"got {frame.width} columns; expected {self.width_out}")
        out, at = [], 0
        for known, rare, slots, width, dropped in zip(
            self._seen, self._rare, self._slots, self._widths, self._dropped, strict=True
        ):
            part = np.zeros((frame.rows, width))
            for j, column in enumerate(frame.columns[at : at + width]):
                part[:, j] = column.values
            at += width
            # the category of a 1 at each position; the last one is that of rows of zeros
            values = np.full(width + 1, None, np.object_)
            for value, slot, is_rare in zip(known.categories, slots[:-1], rare, strict=True):
                if not is_rare:
                    values[slot] = value
            none = ~(part > 0).any(axis=1)
            if none.any() and self.handle_unknown == "error" and not dropped:
                row = int(np.flatnonzero(none)[0])
                raise TransformError(f"row {row} has no category; expected a 1 among its columns")
            best = part.argmax(axis=1) if width else np.zeros(frame.rows, np.int64)
            out.append(chosen(values[np.where(none, width, best)], known.categories))
        names = self.names or tuple(f"x{index}" for index in range(self.width))
        return frame.like(out, names=names, flat=False)

    def apply(self, columns: Sequence[Column]) -> Applied:
        out: list[Column] = []
        failed: Bools | None = None
        for column, known, slots, width in zip(
            columns, self._seen, self._slots, self._widths, strict=True
        ):
            codes = known.codes(column)
            places = slots[codes]
            out += [Column((places == j).astype(np.float64)) for j in range(width)]
            if self.handle_unknown == "error" and (codes < 0).any():
                failed = either_failed(failed, codes < 0)
        return Applied(out, failed)

    def block(self, values: Floats) -> Floats:
        out = np.zeros((len(values), self.width_out))
        at = 0
        for j, (known, slots, width) in enumerate(
            zip(self._seen, self._slots, self._widths, strict=True)
        ):
            codes = known.codes_of(values[:, j])
            if self.handle_unknown == "error" and (codes < 0).any():
                raise TransformError("there is an unknown category")
            places = slots[codes]
            hot = np.flatnonzero(places >= 0)
            out[hot, places[hot] + at] = 1.0
            at += width
        return out

    def _fitted_params(self) -> Params:
        out: Params = {"handle_unknown": self.handle_unknown, "categories": self.categories_}
        if self.drop is not None:
            out["drop"] = self.drop
        if self._counts_matter:
            out["min_frequency"] = self.min_frequency
            out["max_categories"] = self.max_categories
            out["counts"] = [list(each.values()) for each in self._counts]
        return out

    @classmethod
    def _from_params(cls, params: Mapping[str, Any]) -> Self:
        out = cls(
            params["handle_unknown"],
            min_frequency=params.get("min_frequency"),
            max_categories=params.get("max_categories"),
            drop=params.get("drop"),
        )
        found = categories_of(params)
        counts = params["counts"] if out._counts_matter else [[0] * len(c) for c in found]
        pairs = zip(found, counts, strict=True)
        out._take([dict(zip(c, map(int, n), strict=True)) for c, n in pairs], int(params["rows"]))
        out.names = names_of(params, out.width)
        return out

    @property
    def _counts_matter(self) -> bool:
        """Whether what it makes depends on how often each category was there."""
        return self.min_frequency is not None or self.max_categories is not None

    def _settings(self) -> Params:
        return {
            "handle_unknown": self.handle_unknown,
            "min_frequency": self.min_frequency,
            "max_categories": self.max_categories,
            "drop": self.drop,
        }

    def _take(self, counts: Counts, rows: int) -> None:
        self._counts, self._rows = counts, rows
        self._seen = [
            CategoryIndex(ascending(each, f"column {i}")) for i, each in enumerate(counts)
        ]
        self._rare = [
            self._infrequent(np.array([each[v] for v in known.categories], np.int64))
            for each, known in zip(counts, self._seen, strict=True)
        ]
        self._slots, self._widths, self._dropped = [], [], []
        for rare in self._rare:
            width = int((~rare).sum()) + bool(rare.any())
            # the output position of each category; the last one is that of unknown ones
            slots = np.where(rare, width - 1, np.cumsum(~rare) - 1)
            to_rare = self.handle_unknown == "infrequent_if_exist" and rare.any()
            slots = np.append(slots, width - 1 if to_rare else -1)
            dropped = self.drop == "first" or (self.drop == "if_binary" and width == 2)
            self._slots.append(np.where(slots >= 0, slots - dropped, slots))
            self._widths.append(width - dropped)
            self._dropped.append(dropped)

    def _infrequent(self, counts: Any) -> Any:
        """Return which categories are infrequent, by the rules of scikit-learn."""
        rare = np.zeros(len(counts), np.bool_)
        if self.min_frequency is not None:
            share = type(self.min_frequency) is float
            rare |= counts < self.min_frequency * (self._rows if share else 1)
        columns = len(counts) - int(rare.sum()) + 1
        if self.max_categories is not None and self.max_categories < columns:
            kept = self.max_categories - 1
            order = np.argsort(counts, kind="stable")
            rare[order[: len(order) - kept]] = True
        return rare
