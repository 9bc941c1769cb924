"""Target encoding of categories: the mean target of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import TransformError
from paimon_features.core.types.array_types import Floats, Ints
from paimon_features.transformers import exact_sums as exact
from paimon_features.transformers.base import Applied, Params
from paimon_features.transformers.category_index import (
    Category,
    CategoryIndex,
    ascending,
    categories_of,
    counted,
    group,
)
from paimon_features.transformers.frames import missing, numbers, read_frame
from paimon_features.transformers.one_hot import Encoder
from paimon_features.transformers.out_of_fold import folds_of, of_other_folds, of_the_past, smoothed
from paimon_features.transformers.setting_checks import flag, integer, number, one_of, wrong
from paimon_features.transformers.supervised import Supervised

_TYPES = ("auto", "continuous", "binary", "multiclass")
_MOST_CLASSES = 100
"""With more distinct integers as targets the user has to state whether they are classes."""


@dataclass
class TargetSums:
    """Sums of targets: for numbers count, exact sum and squares; for classes their counts."""

    count: int = 0
    total: int = 0
    squares: int = 0
    classes: dict[Category, int] = field(default_factory=dict)

    def plus(self, other: TargetSums) -> TargetSums:
        """Return the sums of both."""
        counts = dict(self.classes)
        for label, count in other.classes.items():
            counts[label] = counts.get(label, 0) + count
        return TargetSums(
            self.count + other.count, self.total + other.total, self.squares + other.squares, counts
        )

    def of(self, label: Category) -> tuple[float, float, float]:
        """Return count, sum and squared deviations of 1 for this class, 0 for others."""
        ones = self.classes.get(label, 0)
        apart = ones * (self.count - ones) / self.count if self.count else 0.0
        return self.count, ones, apart

    def of_numbers(self) -> tuple[float, float, float]:
        """Return count, sum and squared deviations of numbers."""
        return (
            self.count,
            exact.as_float(self.total),
            exact.spread(self.total, self.squares, self.count),
        )


Table = Sequence[dict[Category, TargetSums]]


class TargetEncoder(Encoder, Supervised):
    """Encodes a category by the mean of its targets, shrunk towards the overall mean.

    ``target_type`` is ``'continuous'`` (numbers), ``'binary'`` (two classes, ascending; the mean is
    the share of the second) or ``'multiclass'`` (one column per class); ``'auto'`` decides as
    scikit-learn does: strings, booleans and integers are classes. ``smooth`` counts as that many
    rows with the overall mean; ``'auto'`` weighs the two by their variances. Null and NaN are one
    category; an unknown one is encoded as the overall mean. Rows without a target are skipped.

    ``fit_transform`` returns the data to train a model on, and never uses a row's own target:

    - By default the rows are split into ``cv`` folds (stratified for classes), and a row is
      encoded by the other folds, as scikit-learn does with ``seed`` as ``random_state``.
    - With an event time (the column ``event_time`` of a frame, or the argument ``event_time_ms=``)
      a row is encoded only by earlier rows whose targets were known at its time, that is
      ``label_delay_ms`` after their own time: ``t + label_delay_ms <= time of the row``. Without
      any such row it is null.

    ``transform`` uses all fitted rows: it is for rows later than those. ``partial_fit`` and
    ``merge``, in any order, equal a single ``fit`` bit for bit, because sums are exact.

    >>> encoder = TargetEncoder(smooth=1.0).fit(["a", "a", "b"], [1.0, 2.0, 5.5])
    >>> encoder.target_mean_, encoder.transform(["a", "b", "new"])
    (2.833..., [1.944..., 4.166..., 2.833...])
    >>> past = TargetEncoder(smooth=0.0, label_delay_ms=10)
    >>> past.fit_transform(["a", "a", "a"], [1.5, 3.5, 9.0], event_time_ms=[0, 10, 20])
    [None, 1.5, 2.5]
    """

    kind = "target_encoder"
    needs_target = True
    requestable: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "fit": ("event_time_ms",),
        "partial_fit": ("event_time_ms",),
    }
    _table: Table = ()
    _all: TargetSums = TargetSums()

    def __init__(
        self,
        *,
        target_type: str = "auto",
        smooth: float | str = "auto",
        cv: int = 5,
        shuffle: bool = True,
        seed: int = 0,
        event_time: str | None = None,
        label_delay_ms: int = 0,
    ) -> None:
        self.target_type = target_type
        self.smooth = smooth
        self.cv = cv
        self.shuffle = shuffle
        self.seed = seed
        self.event_time = event_time
        self.label_delay_ms = label_delay_ms

    @property
    def rows_seen(self) -> int:
        return self._all.count

    @property
    def classes_(self) -> list[Category] | None:
        """The classes of the target, ascending; None for numbers."""
        return ascending(self._all.classes, "y") if self._all.classes else None

    @property
    def target_type_(self) -> str:
        """The detected type of the target: continuous, binary or multiclass."""
        self._check_fitted()
        classes = self.classes_
        if classes is None:
            return "continuous"
        if self.settings_.target_type == "multiclass" and len(classes) < 3:
            raise TransformError(
                f"target_type='multiclass', but y has the classes {classes}; expected 3 or more"
            )
        return "binary" if len(classes) <= 2 else "multiclass"

    @property
    def target_mean_(self) -> Any:
        """The mean of all targets; for several classes the share of each."""
        means = [mean for mean, _ in self._of_all]
        return np.array(means) if self.target_type_ == "multiclass" else means[0]

    @property
    def encodings_(self) -> list[Floats]:
        """The encodings of the categories of each column; for several classes per class."""
        return [table[:-1] for tables in self._encodings for table in tables]

    @property
    def width_out(self) -> int:
        return sum(map(len, self._encodings))

    @property
    def is_scalar(self) -> bool:
        return self.width == 1 and self.target_type_ != "multiclass"

    def names_out(self, names: Sequence[str]) -> list[str]:
        if self.target_type_ != "multiclass":
            return list(names)
        return [f"{name}_{label}" for name in names for label in self.classes_ or ()]

    def fit(self, X: Any, y: Any = None, *, event_time_ms: Any = None) -> Self:
        """Fit on ``X`` and its targets ``y`` alone; rows with a null target are skipped."""
        frame = self._fit_data(self._without_time(read_frame(X)))
        return self.partial_fit(frame, y, event_time_ms=event_time_ms)

    def partial_fit(self, X: Any, y: Any = None, *, event_time_ms: Any = None) -> Self:
        """Fit on ``X`` and ``y`` in addition to earlier data; returns itself."""
        # transform does not depend on the times of the rows
        del event_time_ms
        frame = self._read_fit_data(self._without_time(read_frame(X)))
        target = self._target(y, frame.rows)
        rows = np.flatnonzero(~missing(target))
        table = [
            self._seen_with(column.take(rows), target.take(rows), frame.label(index))
            for index, column in enumerate(frame.columns)
        ]
        every = Column(np.full(len(rows), "", np.object_))
        overall = self._seen_with(every, target.take(rows), "y").get("", TargetSums())
        self._add(table, overall)
        return self

    def fit_transform(
        self, X: Any, y: Any = None, *, event_time_ms: Any = None, **fit_params: Any
    ) -> Any:
        """Fit, and encode each row by other rows: of the other folds, or of the past.

        Raises
        ------
        TransformError
            If a declared event time is missing, or there are fewer rows than folds.
        """
        if fit_params:
            self.fit(X, y, **fit_params)  # which has no others, and says so
        given = read_frame(X)
        frame, times = self._split_event_time(given, event_time_ms)
        if times is None and self.label_delay_ms:
            raise TransformError(
                f"label_delay_ms={self.label_delay_ms} requires event times; name their column by "
                "event_time=, or pass event_time_ms=, one time per row"
            )
        self.fit(frame, y)
        smooth, delay_ms = self.settings_.smooth, self.settings_.label_delay_ms
        target = self._target(y, frame.rows)
        has_target = ~missing(target)
        folds = None if times is not None else self._folds(target.take(np.flatnonzero(has_target)))
        out = []
        for column, seen, tables in zip(frame.columns, self._seen, self._encodings, strict=True):
            codes = seen.codes(column)
            for label, table in zip(self._labels, tables, strict=True):
                values = self._numbers_of(target, label)
                if times is not None:
                    encoded = of_the_past(codes, values, has_target, times, delay_ms, smooth)
                else:
                    assert folds is not None
                    encoded = table[codes]  # rows without a target have none to exclude
                    encoded[has_target] = of_other_folds(
                        codes[has_target], len(seen), values[has_target], folds, smooth
                    )
                valid = ~np.isnan(encoded)
                out.append(Column(encoded, None if valid.all() else valid))
        names = frame.names or [f"x{index}" for index in range(self.width)]
        return given.like(out, names=self.names_out(names), flat=self._flat(given))

    def _absorb(self, other: Self) -> None:
        self._add(other._table, other._all)

    def apply(self, columns: Sequence[Column]) -> Applied:
        out = []
        for column, vocabulary, tables in zip(columns, self._seen, self._encodings, strict=True):
            codes = vocabulary.codes(column)
            out += [Column(table[codes]) for table in tables]
        return Applied(out)

    def block(self, values: Floats) -> Floats:
        out = np.empty((len(values), self.width_out))
        at = 0
        for j, (vocabulary, tables) in enumerate(zip(self._seen, self._encodings, strict=True)):
            codes = vocabulary.codes_of(values[:, j])
            for table in tables:
                out[:, at] = table[codes]
                at += 1
        return out

    # -- fitting -------------------------------------------------------------------------------

    def _target(self, y: Any, rows: int) -> Column:
        if y is None:
            raise TransformError(
                "a TargetEncoder requires y to be passed, but the target y is None: it is fitted "
                "on targets"
            )
        frame = read_frame(y)
        if (frame.rows, frame.width) != (rows, 1):
            raise TransformError(
                f"y has {frame.rows} rows and {frame.width} columns; expected {rows} and 1"
            )
        return frame.columns[0]

    def _is_continuous(self, target: Column) -> bool:
        if self.settings_.target_type != "auto":
            return bool(self.settings_.target_type == "continuous")
        kind = target.values.dtype.kind
        if kind == "f":
            return bool((target.values != np.floor(target.values)).any())
        # decimals are fractional numbers
        return kind == "O" and not all(isinstance(value, str) for value in target.values)

    def _seen_with(self, column: Column, target: Column, label: str) -> dict[Category, TargetSums]:
        """Return the sums of targets of each category; all rows have a target."""
        vocabulary = CategoryIndex(ascending(counted(column, label), label))
        codes, size = vocabulary.codes(column), len(vocabulary)
        counts = np.bincount(codes, minlength=size).tolist()
        if self._is_continuous(target):
            values = numbers(target, "y")
            if (np.abs(values) > exact.LARGEST).any():
                raise TransformError("y has values whose squares exceed float64; divide it")
            totals = exact.exact_sums(values, codes, size)
            squares = exact.exact_squares(values, codes, size)
            parts = zip(vocabulary.categories, counts, totals, squares, strict=True)
            return {v: TargetSums(n, total, square) for v, n, total, square in parts}
        labels = CategoryIndex(ascending(counted(target, "y"), "y"))
        if (
            self.settings_.target_type == "auto"
            and labels.group == "numbers"
            and len(labels) > _MOST_CLASSES
        ):
            raise TransformError(
                f"y has {len(labels):,} distinct integers; pass target_type='continuous', or "
                "'multiclass' if each is a class"
            )
        table = np.bincount(
            codes * len(labels) + labels.codes(target), minlength=size * len(labels)
        ).reshape(size, len(labels))
        return {
            value: TargetSums(
                n, classes={labels.categories[j]: int(row[j]) for j in np.flatnonzero(row)}
            )
            for value, n, row in zip(vocabulary.categories, counts, table, strict=True)
        }

    def _add(self, table: Table, overall: TargetSums) -> None:
        """Add sums of targets to the earlier ones."""
        before = self._table or [{} for _ in table]
        groups = {group(v) for v in [*self._all.classes, *overall.classes]}
        if (self._all.count and overall.count) and (
            bool(self._all.classes) != bool(overall.classes) or len(groups) > 1
        ):
            raise TransformError(
                "the targets of one part are classes, those of another numbers or classes of "
                "another type; pass target_type='continuous', 'binary' or 'multiclass'"
            )
        every = self._all.plus(overall)
        if self.settings_.target_type == "binary" and len(every.classes) > 2:
            raise TransformError(
                f"target_type='binary', but y has the classes {ascending(every.classes, 'y')}"
            )
        out = []
        for index, (old, new) in enumerate(zip(before, table, strict=True)):
            both = {v: TargetSums() for v in ascending([*old, *new], f"column {index}")}
            for side in (old, new):
                for value, seen in side.items():
                    both[value] = both[value].plus(seen)
            out.append(both)
        self._take(out, every)

    def _take(self, table: Table, every: TargetSums) -> None:
        self._table, self._all = table, every
        self._seen = [
            CategoryIndex(ascending(column_sums, f"column {i}"))
            for i, column_sums in enumerate(table)
        ]
        self._memo: dict[str, list[list[Floats]]] = {}

    @property
    def _labels(self) -> list[Category]:
        """The classes whose shares are encodings; [None] for numbers."""
        classes = self.classes_
        if classes is None:
            return [None]
        # with a single class all shares are 0: the second class is unknown
        return classes if self.target_type_ == "multiclass" else [*classes[1:], None][:1]

    @property
    def _of_all(self) -> list[tuple[float, float]]:
        """Mean and variance of all targets, per label."""
        out = []
        for label in self._labels:
            count, total, apart = self._moments(self._all, label)
            out.append((total / count, apart / count) if count else (np.nan, np.nan))
        return out

    @property
    def _encodings(self) -> list[list[Floats]]:
        """The encodings of each column's categories per label; the last is for unknown ones."""
        self._check_fitted()
        if "encodings" not in self._memo:
            self._memo["encodings"] = [
                [
                    self._numbers_for(column_sums, label, *moments)
                    for label, moments in zip(self._labels, self._of_all, strict=True)
                ]
                for column_sums in self._table
            ]
        return self._memo["encodings"]

    def _numbers_for(
        self, table: Mapping[Category, TargetSums], label: Category, mean: float, variance: float
    ) -> Floats:
        moments = [self._moments(seen, label) for seen in table.values()]
        counts, sums, apart = np.array(moments, np.float64).reshape(-1, 3).T
        return np.append(smoothed(counts, sums, apart, mean, variance, self.settings_.smooth), mean)

    def _moments(self, seen: TargetSums, label: Category) -> tuple[float, float, float]:
        return seen.of(label) if self._all.classes else seen.of_numbers()

    def _numbers_of(self, target: Column, label: Category) -> Floats:
        """Return the target as numbers: with classes 1.0 for this class."""
        if not self._all.classes:
            return numbers(target, "y")
        return CategoryIndex([label]).codes(target) + 1.0

    def _folds(self, target: Column) -> Ints:
        labels = None
        if self._all.classes:
            labels = CategoryIndex(self.classes_ or []).codes(target)
        return folds_of(
            len(target), labels, self.settings_.cv, self.settings_.shuffle, self.settings_.seed
        )

    # -- parameters ----------------------------------------------------------------------------

    def _settings(self) -> Params:
        smooth, time = self.smooth, self.event_time
        is_auto = isinstance(smooth, str) and smooth == "auto"
        weight = -1.0 if is_auto else number(self, "smooth", smooth, "'auto' or a number from 0")
        if weight < 0 and not is_auto:
            raise wrong(self, "smooth", smooth, "'auto' or a number from 0")
        if time is not None and not isinstance(time, str):
            raise wrong(self, "event_time", time, "the name of a column, or None")
        return {
            "target_type": one_of(self, "target_type", self.target_type, _TYPES),
            "smooth": "auto" if is_auto else weight,
            "cv": integer(self, "cv", self.cv, 2),
            "shuffle": flag(self, "shuffle", self.shuffle),
            "seed": integer(self, "seed", self.seed, 0, 2**32 - 1),
            "event_time": time,
            "label_delay_ms": integer(self, "label_delay_ms", self.label_delay_ms, 0),
        }

    def _fitted_params(self) -> Params:
        classes = self.classes_
        return {
            **self._stored_settings(),
            "classes": classes,
            "categories": self.categories_,
            "targets": [
                [_stored_sums(s, classes) for s in column_sums.values()]
                for column_sums in self._table
            ],
            "all": _stored_sums(self._all, classes),
        }

    @classmethod
    def _from_params(cls, params: Mapping[str, Any]) -> Self:
        out = cls._from_settings(params)
        classes = params["classes"]
        pairs = zip(categories_of(params), params["targets"], strict=True)
        table = [
            {v: _seen(sums, classes) for v, sums in zip(values, stored, strict=True)}
            for values, stored in pairs
        ]
        out._take(table, _seen(params["all"], classes))
        if out._all.count != int(params["rows"]):
            raise TransformError("the targets do not match the number of rows")
        return out


def _stored_sums(seen: TargetSums, classes: Sequence[Category] | None) -> list[Any]:
    """Return the sums in JSON values: the count of each class, or count, sum and squares."""
    if classes is not None:
        return [seen.classes.get(label, 0) for label in classes]
    return [seen.count, exact.to_text(seen.total), exact.to_text(seen.squares)]


def _seen(sums: Sequence[Any], classes: Sequence[Category] | None) -> TargetSums:
    if classes is None:
        count, total, squares = sums
        return TargetSums(int(count), exact.from_text(total), exact.from_text(squares))
    counts = {label: int(n) for label, n in zip(classes, sums, strict=True) if n}
    return TargetSums(sum(counts.values()), classes=counts)
