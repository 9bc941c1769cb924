"""Encoders of categories: their base classes, and one-hot encoding."""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import MissingExtraError, TransformError
from paimon_features.core.types.array_types import Bools, Floats
from paimon_features.core.types.schema import DataType
from paimon_features.transformers.base import Applied, Params, StoredTransformer, either_failed
from paimon_features.transformers.category_index import (
    Category,
    CategoryIndex,
    ascending,
    categories_of,
    check_groups,
    chosen,
    counted,
    declared_categories,
    first_unknown,
    together,
)
from paimon_features.transformers.column_statistics import ColumnStatistics, Statistic
from paimon_features.transformers.frames import Frame, read_frame
from paimon_features.transformers.from_statistics import counts_from
from paimon_features.transformers.matrix_blocks import run_blocks
from paimon_features.transformers.setting_checks import (
    dtype_name,
    flag,
    integer,
    is_integer,
    one_of,
    wrong,
)

_UNKNOWN = ("error", "ignore", "infrequent_if_exist")
_DROP = (None, "first", "if_binary")
Counts = Sequence[dict[Category, int]]


class Encoder(StoredTransformer):
    """Base class of encoders: the fitted categories of each column."""

    _seen: Sequence[CategoryIndex] = ()

    def _estimator_flags(self) -> Mapping[str, bool]:
        return {**super()._estimator_flags(), "categorical": True}

    @property
    def categories_(self) -> list[list[Category]]:
        """The categories of each column, ascending, None (null and NaN) last."""
        self._check_fitted()
        return [vocabulary.categories for vocabulary in self._seen]

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

    def accepts(self, index: int, kind: DataType) -> bool:
        return self._seen[index].accepts(kind)

    def check(self, frame: Frame) -> None:
        check_groups(frame, self._seen)

    @property
    def supports_matrix(self) -> bool:
        return all(vocabulary.fits_floats for vocabulary in self._seen)

    def transform(self, X: Any) -> Any:
        """Return ``X`` encoded.

        Raises
        ------
        TransformError
            For an unknown category, if these are errors.
        """
        self._check_fitted()
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

    _counts: Counts = ()

    @property
    def required_statistics(self) -> frozenset[Statistic]:
        return frozenset({"categories"})

    def _fit_statistics(self, columns: Sequence[ColumnStatistics], rows: int) -> None:
        counts = counts_from(columns)
        self._check_counts(counts, [f"column {column.column!r}" for column in columns])
        self._take(counts, rows)

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit on the categories of ``X`` alone; ``y`` is ignored."""
        return self.partial_fit(self._fit_data(X))

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Fit on the categories of ``X`` in addition to earlier ones; ``y`` is ignored."""
        frame = self._read_fit_data(X)
        counts = [counted(c, frame.label(i)) for i, c in enumerate(frame.columns)]
        self._check_counts(counts, list(map(frame.label, range(frame.width))))
        before = self._counts or [{} for _ in counts]
        if counts:
            pairs = zip(before, counts, strict=True)
            both = [together(a, b, frame.label(i)) for i, (a, b) in enumerate(pairs)]
            self._take(both, self._rows + frame.rows)
        return self

    def _absorb(self, other: Self) -> None:
        counts = other._counts
        if self.width:
            pairs = zip(self._counts, other._counts, strict=True)
            counts = [together(a, b, f"column {i}") for i, (a, b) in enumerate(pairs)]
        self._take(counts, self._rows)

    def _check_counts(self, counts: Counts, labels: Sequence[str]) -> None:
        """Check the categories of a part of the data; ``labels`` call its columns."""
        return

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

    ``categories`` declares those of each column, in the order of the output; others in the data of
    the fit are an error, or ignored as unknown ones are. ``dtype`` is the NumPy type of the output,
    and ``sparse_output`` returns a sparse matrix of SciPy; services and our pipelines are dense.

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
    optional_settings = frozenset(
        {"drop", "min_frequency", "max_categories", "categories", "sparse_output", "dtype"}
    )
    _rare: Sequence[Any] = ()
    _slots: Sequence[Any] = ()
    _widths: Sequence[int] = ()
    _dropped: Sequence[bool] = ()

    def __init__(
        self,
        handle_unknown: str = "error",
        *,
        min_frequency: int | float | None = None,
        max_categories: int | None = None,
        drop: str | None = None,
        categories: Any = "auto",
        sparse_output: bool = False,
        dtype: Any = np.float64,
    ) -> None:
        self.categories = categories
        self.sparse_output = sparse_output
        self.dtype = dtype
        self.handle_unknown = handle_unknown
        self.min_frequency = min_frequency
        self.max_categories = max_categories
        self.drop = drop

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
            [v for v, rare in zip(vocabulary.categories, mask, strict=True) if rare]
            if any(mask)
            else None
            for vocabulary, mask in zip(self._seen, self._rare, strict=True)
        ]

    @property
    def drop_idx_(self) -> Any:
        """For each column the index of the dropped category in ``categories_``, None for no one;
        None where none is dropped. The index of an infrequent category stands for all of them."""
        self._check_fitted()
        if not any(self._dropped):
            return None
        indices = np.full(self.width, None, np.object_)
        for index, (rare, dropped) in enumerate(zip(self._rare, self._dropped, strict=True)):
            if dropped:
                frequent = np.flatnonzero(~np.asarray(rare, np.bool_))
                indices[index] = int(frequent[0]) if len(frequent) else 0
        return indices

    @property
    def slots_(self) -> list[tuple[npt.NDArray[np.int64], int]]:
        """For each column the output position of each category (-1: none), and their number.

        The last position is that of unknown categories.
        """
        return list(zip(self._slots, self._widths, strict=True))

    def names_out(self, names: Sequence[str]) -> list[str]:
        out = []
        for name, vocabulary, rare, dropped in zip(
            names, self._seen, self._rare, self._dropped, strict=True
        ):
            frequent = [
                v for v, is_rare in zip(vocabulary.categories, rare, strict=True) if not is_rare
            ]
            labels = [f"{name}_{v}" for v in frequent] + [f"{name}_infrequent"] * any(rare)
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
        frame = read_frame(X.toarray() if hasattr(X, "toarray") else X)
        if frame.rows and frame.width != self.width_out:
            raise TransformError(f"got {frame.width} columns; expected {self.width_out}")
        out, at = [], 0
        for vocabulary, rare, slots, width, dropped in zip(
            self._seen, self._rare, self._slots, self._widths, self._dropped, strict=True
        ):
            part = np.zeros((frame.rows, width))
            for j, column in enumerate(frame.columns[at : at + width]):
                part[:, j] = column.values
            at += width
            # the category of a 1 at each position; the last one is that of rows of zeros
            values = np.full(width + 1, None, np.object_)
            for value, slot, is_rare in zip(vocabulary.categories, slots[:-1], rare, strict=True):
                if not is_rare:
                    values[slot] = value
            none = ~(part > 0).any(axis=1)
            if none.any() and self.settings_.handle_unknown == "error" and not dropped:
                row = int(np.flatnonzero(none)[0])
                raise TransformError(f"row {row} has no category; expected a 1 among its columns")
            best = part.argmax(axis=1) if width else np.zeros(frame.rows, np.int64)
            out.append(chosen(values[np.where(none, width, best)], vocabulary.categories))
        names = self.names or tuple(f"x{index}" for index in range(self.width))
        return frame.like(out, names=names, flat=False)

    def apply(self, columns: Sequence[Column]) -> Applied:
        out: list[Column] = []
        failed: Bools | None = None
        for column, vocabulary, slots, width in zip(
            columns, self._seen, self._slots, self._widths, strict=True
        ):
            codes = vocabulary.codes(column)
            places = slots[codes]
            out += [Column((places == j).astype(np.float64)) for j in range(width)]
            if self.settings_.handle_unknown == "error" and (codes < 0).any():
                failed = either_failed(failed, codes < 0)
        return Applied(out, failed)

    def block(self, values: Floats) -> Floats:
        out = np.zeros((len(values), self.width_out))
        at = 0
        for j, (vocabulary, slots, width) in enumerate(
            zip(self._seen, self._slots, self._widths, strict=True)
        ):
            codes = vocabulary.codes_of(values[:, j])
            if self.settings_.handle_unknown == "error" and (codes < 0).any():
                raise TransformError("there is an unknown category")
            places = slots[codes]
            hot = np.flatnonzero(places >= 0)
            out[hot, places[hot] + at] = 1.0
            at += width
        return out

    def _fitted_params(self) -> Params:
        settings = self.settings_
        out: Params = {"handle_unknown": settings.handle_unknown, "categories": self.categories_}
        if settings.categories != "auto":
            out["declared"] = True
        if settings.sparse_output:
            out["sparse_output"] = True
        if settings.dtype != "float64":
            out["dtype"] = settings.dtype
        if settings.drop is not None:
            out["drop"] = settings.drop
        if self._counts_matter:
            out["min_frequency"] = settings.min_frequency
            out["max_categories"] = settings.max_categories
            out["counts"] = [list(column_counts.values()) for column_counts in self._counts]
        return out

    @classmethod
    def _from_params(cls, params: Mapping[str, Any]) -> Self:
        categories = categories_of(params)
        declared: Any = categories if params.get("declared") else "auto"
        out = cls._from_settings({**params, "categories": declared})
        counts = params["counts"] if out._counts_matter else [[0] * len(c) for c in categories]
        pairs = zip(categories, counts, strict=True)
        out._take([dict(zip(c, map(int, n), strict=True)) for c, n in pairs], int(params["rows"]))
        return out

    @property
    def _counts_matter(self) -> bool:
        """Whether what it makes depends on how often each category was there."""
        return self.settings_.min_frequency is not None or self.settings_.max_categories is not None

    def _settings(self) -> Params:
        least: Any = self.min_frequency
        drop: Any = self.drop
        most = self.max_categories
        by_rows = is_integer(least) and least >= 1
        by_share = isinstance(least, float) and 0 < least < 1
        if least is not None and not (by_rows or by_share):
            expected = "a number of rows from 1, or a share between 0.0 and 1.0"
            raise wrong(self, "min_frequency", least, expected)
        if drop is not None and not (isinstance(drop, str) and drop in _DROP):
            raise wrong(self, "drop", drop, "None, 'first' or 'if_binary'")
        return {
            "handle_unknown": one_of(self, "handle_unknown", self.handle_unknown, _UNKNOWN),
            "min_frequency": int(least) if by_rows else float(least) if by_share else None,
            "max_categories": None if most is None else integer(self, "max_categories", most, 1),
            "drop": drop,
            "categories": declared_categories(self, self.categories),
            "sparse_output": flag(self, "sparse_output", self.sparse_output),
            "dtype": dtype_name(self, self.dtype),
        }

    def _estimator_flags(self) -> Mapping[str, bool]:
        return {**super()._estimator_flags(), "fixed_dtype": True}

    def _check_counts(self, counts: Counts, labels: Sequence[str]) -> None:
        declared = self.settings_.categories
        if declared == "auto":
            return
        if len(declared) != len(counts):
            raise TransformError(
                f"OneHotEncoder: categories of {len(declared)} columns; the data have {len(counts)}"
            )
        for allowed, seen, label in zip(declared, counts, labels, strict=True):
            among = set(allowed)
            unknown = [value for value in seen if value not in among]
            if unknown and self.settings_.handle_unknown == "error":
                raise TransformError(
                    f"Found unknown categories {unknown[:20]} in {label} during fit; {self._advice}"
                )

    def transform(self, X: Any) -> Any:
        """Return ``X`` encoded, as ``dtype``; with ``sparse_output`` a sparse matrix of SciPy.

        Raises
        ------
        TransformError
            For an unknown category, if these are errors.
        MissingExtraError
            Where ``sparse_output`` needs SciPy, and it is not installed.
        """
        settings = self.settings_
        plain = settings is self or (not settings.sparse_output and settings.dtype == "float64")
        if plain or isinstance(X, Frame):
            return super().transform(X)
        self._check_fitted()
        frame = self._checked(X)
        self.check(frame)
        if settings.handle_unknown == "error" and (problem := first_unknown(frame, self._seen)):
            raise TransformError(f"{problem}; {self._advice}")
        if settings.sparse_output:
            return self._sparse(frame)
        names = frame.names or [f"x{index}" for index in range(self.width)]
        columns = [
            Column(c.values.astype(settings.dtype)) for c in self.apply(frame.columns).columns
        ]
        return frame.like(columns, names=self.names_out(names), flat=False)

    def _sparse(self, frame: Frame) -> Any:
        """Return a frame encoded, as a matrix of rows in SciPy's CSR form."""
        try:
            sparse = importlib.import_module("scipy.sparse")
        except ImportError as error:
            raise MissingExtraError("sparse_output=True needs the package scipy") from error
        # index: (rows, columns); the output position of each value, -1 for none
        places = np.full((frame.rows, self.width), -1, np.int64)
        start = 0
        for j, (column, vocabulary) in enumerate(zip(frame.columns, self._seen, strict=True)):
            slots = self._slots[j][vocabulary.codes(column)]
            places[:, j] = np.where(slots >= 0, slots + start, -1)
            start += self._widths[j]
        hot = places >= 0
        ends = np.concatenate([[0], np.cumsum(hot.sum(axis=1))])
        ones = np.ones(int(ends[-1]), self.settings_.dtype)
        return sparse.csr_matrix((ones, places[hot], ends), shape=(frame.rows, start))

    def _take(self, counts: Counts, rows: int) -> None:
        declared = self.settings_.categories
        if declared != "auto":
            counts = [
                {value: column_counts.get(value, 0) for value in categories}
                for categories, column_counts in zip(declared, counts, strict=True)
            ]
            self._seen = list(map(CategoryIndex, declared))
        else:
            self._seen = [
                CategoryIndex(ascending(column_counts, f"column {i}"))
                for i, column_counts in enumerate(counts)
            ]
        self._counts, self._rows = counts, rows
        self._rare = [
            self._infrequent(np.array([column_counts[v] for v in vocabulary.categories], np.int64))
            for column_counts, vocabulary in zip(counts, self._seen, strict=True)
        ]
        outputs: list[tuple[Any, int, bool]] = []
        drop = self.settings_.drop
        for rare in self._rare:
            width = int((~rare).sum()) + bool(rare.any())
            # the output position of each category; the last one is that of unknown ones
            slots = np.where(rare, width - 1, np.cumsum(~rare) - 1)
            to_rare = self.settings_.handle_unknown == "infrequent_if_exist" and rare.any()
            slots = np.append(slots, width - 1 if to_rare else -1)
            dropped = drop == "first" or (drop == "if_binary" and width == 2)
            outputs.append((np.where(slots >= 0, slots - dropped, slots), width - dropped, dropped))
        self._slots = [slots for slots, _, _ in outputs]
        self._widths = [width for _, width, _ in outputs]
        self._dropped = [dropped for _, _, dropped in outputs]

    def _infrequent(self, counts: Any) -> Any:
        """Return which categories are infrequent, by the rules of scikit-learn."""
        rare = np.zeros(len(counts), np.bool_)
        least, most = self.settings_.min_frequency, self.settings_.max_categories
        if least is not None:
            rare |= counts < least * (self._rows if isinstance(least, float) else 1)
        columns = len(counts) - int(rare.sum()) + 1
        if most is not None and most < columns:
            kept = most - 1
            order = np.argsort(counts, kind="stable")
            rare[order[: len(order) - kept]] = True
        return rare
