"""The online standard scaler: a version per window, of all rows until its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.core.columns.column import one_array
from paimon_features.core.configuration.arguments import check_arguments, plain_arguments
from paimon_features.core.errors import DefinitionError, TransformError
from paimon_features.core.times.clock import Clock, now_ms
from paimon_features.core.times.utc_ms import utc_ms
from paimon_features.core.types.array_types import Ints
from paimon_features.iteration import IterationConfig
from paimon_features.iteration.algorithms.bounded_training import aggregate
from paimon_features.iteration.algorithms.estimator import TrainingSource, VectorEstimator
from paimon_features.iteration.algorithms.online_training import (
    BatchCutter,
    CountCutter,
    ModelVersions,
    OnlineEstimator,
    check_batch,
    train_online,
)
from paimon_features.iteration.algorithms.parameter_checks import at_least
from paimon_features.iteration.algorithms.scaler_estimators import MeanAndDeviation, RowMoments
from paimon_features.iteration.algorithms.training_blocks import TrainingBlock, deal
from paimon_features.transformers.flink_ml import Model, StandardScalerModel
from paimon_features.transformers.flink_ml.vectors import as_table


class _CheckedWindows:
    """Base class of windows, which checks the types of their arguments."""

    __slots__ = ()

    def __post_init__(self) -> None:
        plain_arguments(self)
        check_arguments(type(self).__name__, self)


@dataclass(frozen=True, slots=True)
class GlobalWindows(_CheckedWindows):
    """One window of all rows."""


@dataclass(frozen=True, slots=True)
class CountTumblingWindows(_CheckedWindows):
    """Windows of ``size`` rows; rows that do not fill the last one produce no version."""

    size: int


@dataclass(frozen=True, slots=True)
class EventTimeTumblingWindows(_CheckedWindows):
    """Windows of ``size_ms`` milliseconds, aligned to the Unix epoch, of rows ordered by time.

    A window ends when a row of a later one arrives, or when the rows end.
    """

    size_ms: int


@dataclass(frozen=True, slots=True)
class EventTimeSessionWindows(_CheckedWindows):
    """Windows of rows ordered by time that are at most ``gap_ms`` milliseconds apart.

    A window ends when a row after the gap arrives, or when the rows end.
    """

    gap_ms: int


@dataclass(frozen=True, slots=True)
class ProcessingTimeTumblingWindows(_CheckedWindows):
    """Windows of ``size_ms`` milliseconds of the time at which rows arrive.

    A window ends when a row of a later one arrives, or when the rows end. The versions depend on
    the clock: a job that failed and resumed may cut others, of the same rows.
    """

    size_ms: int
    clock: Clock = field(default=now_ms, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ProcessingTimeSessionWindows(_CheckedWindows):
    """Windows of rows that arrive at most ``gap_ms`` milliseconds apart.

    They end, and depend on the clock, as ``ProcessingTimeTumblingWindows`` do.
    """

    gap_ms: int
    clock: Clock = field(default=now_ms, compare=False, repr=False)


EventTimeWindows = EventTimeTumblingWindows | EventTimeSessionWindows
ProcessingTimeWindows = ProcessingTimeTumblingWindows | ProcessingTimeSessionWindows
Windows = GlobalWindows | CountTumblingWindows | EventTimeWindows | ProcessingTimeWindows


class TimedModelVersions(ModelVersions):
    """The versions of event-time windows; ``transform`` uses one that is fresh enough for a row.

    Of a table with the column ``timestamp_col`` each row is transformed by the first version whose
    ``timestamp`` is at most ``max_delay_ms`` before the time of the row. Other tables, and arrays,
    are transformed by the newest version.
    """

    def __init__(self, versions: Sequence[Model], timestamp_col: str, max_delay_ms: int) -> None:
        super().__init__(versions)
        self._timestamp_col = timestamp_col
        self._max_delay_ms = max_delay_ms

    def transform(self, X: Any) -> Any:
        """Transform ``X`` by versions that are fresh enough.

        Raises
        ------
        TransformError
            If a row is later than the newest version by more than the allowed delay, or if there
            is no version.
        """
        converted = as_table(X)
        if (
            converted is None
            or self._timestamp_col not in converted[0].column_names
            or not len(self)
        ):
            return super().transform(X)
        table, back = converted
        if not len(table):
            return super().transform(X)
        times = _times_of(table, self._timestamp_col)
        ends = np.array([model.model_data["timestamp"] for model in self])
        chosen = np.searchsorted(ends, times - self._max_delay_ms)
        late = np.flatnonzero(chosen == len(ends))
        if len(late):
            raise TransformError(
                f"OnlineStandardScaler: {len(late)} of {len(times)} rows are more than "
                f"max_allowed_model_delay_ms={self._max_delay_ms} after the newest version "
                f"({ends[-1]}), first row {late[0]} ({times[late[0]]}); fit later rows, allow a "
                "longer delay, or transform them by the newest version: versions[-1]"
            )
        order = np.argsort(chosen, kind="stable")
        bounds = np.searchsorted(chosen[order], np.arange(len(ends) + 1))
        parts = [
            model.transform(table.take(order[start:end]))
            for model, (start, end) in zip(self, pairwise(bounds.tolist()), strict=True)
            if start < end
        ]
        return back(pa.concat_tables(parts).take(np.argsort(order, kind="stable")))


@dataclass(frozen=True, kw_only=True)
class OnlineStandardScaler(OnlineEstimator, VectorEstimator):
    """Flink ML's online standard scaler: moments of all rows so far, a version (from 0) per window.

    ``timestamp_col`` is the column of times of event-time windows; a version's ``timestamp`` is
    then the last millisecond of its window. A row whose table has that column is transformed by the
    first version that is at most ``max_allowed_model_delay_ms`` older than the row.

    >>> scaler = OnlineStandardScaler(windows=CountTumblingWindows(2))
    >>> versions = scaler.fit([[1.0], [3.0], [2.0], [2.0]])
    >>> [model.model_data["mean"].tolist() for model in versions]
    [[2.0], [2.0]]
    """

    with_mean: bool = False
    with_std: bool = True
    windows: Windows = GlobalWindows()
    timestamp_col: str = "timestamp"
    max_allowed_model_delay_ms: int = 0
    model_version_col: str | None = "version"

    model = StandardScalerModel
    version_name = "version"

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 0, "max_allowed_model_delay_ms")
        size = getattr(self.windows, "size_ms", getattr(self.windows, "gap_ms", 1))
        if size < 1:
            raise DefinitionError(f"OnlineStandardScaler: {self.windows}; expected 1 ms or more")

    def _model(self, outputs: list[Any], rows: int) -> ModelVersions:
        versions = super()._model(outputs, rows)
        if not isinstance(self.windows, EventTimeWindows):
            return versions
        return TimedModelVersions(versions, self.timestamp_col, self.max_allowed_model_delay_ms)

    def _rows(self, X: Any, y: Any, sample_weight: Any) -> TrainingBlock:
        rows = super()._rows(X, y, sample_weight)
        if not isinstance(self.windows, EventTimeWindows):
            return rows
        converted = as_table(X)
        if converted is None or self.timestamp_col not in converted[0].column_names:
            raise TransformError(
                f"OnlineStandardScaler: missing column {self.timestamp_col!r} of times"
            )
        return TrainingBlock(rows.features, times_ms=_times_of(converted[0], self.timestamp_col))

    def _blocks(self, rows: TrainingBlock, parallelism: int) -> list[TrainingBlock]:
        if isinstance(self.windows, GlobalWindows):
            return deal(rows, parallelism)
        if isinstance(self.windows, EventTimeWindows):
            _check_order(rows)
        return super()._blocks(rows, parallelism)

    def _start(self, rows: TrainingBlock | None, initial: Model | None) -> Any:
        super()._start(rows, initial)
        return None, -1, None

    def _program(
        self, source: TrainingSource, start: Any, parallelism: int, config: IterationConfig
    ) -> Callable[[Any], Any]:
        if isinstance(self.windows, GlobalWindows):
            return aggregate(source, _SingleVersion(), parallelism, config)
        windows = self.windows
        if isinstance(windows, CountTumblingWindows):
            check_batch("OnlineStandardScaler", windows.size, parallelism)
            cutter: BatchCutter = CountCutter(windows.size)
        elif isinstance(windows, EventTimeTumblingWindows | ProcessingTimeTumblingWindows):
            cutter = _TumblingCutter(windows.size_ms)
        else:
            cutter = _SessionCutter(windows.gap_ms)
        if isinstance(windows, ProcessingTimeWindows):
            cutter = _ArrivalCutter(cutter, windows.clock)
        return train_online(source, start, _RunningMoments(), cutter, parallelism, config)


@dataclass(frozen=True, slots=True)
class _TumblingCutter:
    size_ms: int

    def arrived(self, block: TrainingBlock) -> TrainingBlock:
        """Return the block."""
        return block

    def cut(self, blocks: Sequence[TrainingBlock]) -> tuple[int, int | None] | None:
        """Return the rows of the first window once a row of a later one has arrived."""
        times = _times(blocks)
        if not len(times):
            return None
        end = int(times[0]) // self.size_ms * self.size_ms + self.size_ms
        later = np.flatnonzero(times >= end)
        return (int(later[0]), end - 1) if len(later) else None

    def at_end(self, blocks: Sequence[TrainingBlock]) -> tuple[int, int | None] | None:
        """Return all rows, which are of one window."""
        times = _times(blocks)
        if not len(times):
            return None
        return len(times), int(times[0]) // self.size_ms * self.size_ms + self.size_ms - 1


@dataclass(frozen=True, slots=True)
class _SessionCutter:
    gap_ms: int

    def arrived(self, block: TrainingBlock) -> TrainingBlock:
        """Return the block."""
        return block

    def cut(self, blocks: Sequence[TrainingBlock]) -> tuple[int, int | None] | None:
        """Return the rows of the first session once a row after the gap has arrived.

        Rows that are exactly the gap apart are in one session, as in Flink.
        """
        times = _times(blocks)
        last = np.flatnonzero(times[1:] - self.gap_ms > times[:-1])
        if not len(last):
            return None
        return int(last[0]) + 1, int(times[last[0]]) + self.gap_ms - 1

    def at_end(self, blocks: Sequence[TrainingBlock]) -> tuple[int, int | None] | None:
        """Return all rows, which are of one session."""
        times = _times(blocks)
        return (len(times), int(times[-1]) + self.gap_ms - 1) if len(times) else None


@dataclass(frozen=True, slots=True)
class _ArrivalCutter:
    """Cuts windows of the times at which rows arrive; such versions have no timestamp."""

    windows: BatchCutter
    clock: Clock

    def arrived(self, block: TrainingBlock) -> TrainingBlock:
        """Return the block with the time of the clock."""
        return replace(block, times_ms=np.full(len(block), self.clock()))

    def cut(self, blocks: Sequence[TrainingBlock]) -> tuple[int, int | None] | None:
        """Return the rows of the first window once a row of a later one has arrived."""
        window = self.windows.cut(blocks)
        return None if window is None else (window[0], None)

    def at_end(self, blocks: Sequence[TrainingBlock]) -> tuple[int, int | None] | None:
        """Return all rows, which are of one window."""
        window = self.windows.at_end(blocks)
        return None if window is None else (window[0], None)


def _times(blocks: Sequence[TrainingBlock]) -> Ints:
    """Return the times of rows; one before the last (a clock was set back) as the last."""
    times = [block.times_ms for block in blocks if block.times_ms is not None]
    out: Ints = np.maximum.accumulate(np.concatenate(times)) if times else np.zeros(0, np.int64)
    return out


def _times_of(table: pa.Table, name: str) -> Ints:
    times = one_array(table[name])
    try:
        if times.null_count:
            raise pa.ArrowInvalid(f"{times.null_count} nulls")
        out: Ints = utc_ms(times).to_numpy()
    except pa.ArrowInvalid as error:
        raise TransformError(
            f"OnlineStandardScaler: {name!r} is not a column of times: {error}"
        ) from error
    return out


def _check_order(rows: TrainingBlock) -> None:
    assert rows.times_ms is not None
    falls = np.flatnonzero(np.diff(rows.times_ms) < 0)
    if len(falls):
        row = int(falls[0]) + 1
        raise TransformError(
            f"OnlineStandardScaler: row {row} has the time {rows.times_ms[row]}, before that of "
            f"the row above it ({rows.times_ms[row - 1]}); sort the rows by their times"
        )


class _SingleVersion(MeanAndDeviation):
    """The only version, of all rows."""

    def finish(self, merged: RowMoments) -> dict[str, Any]:
        return {**super().finish(merged), "version": 0, "timestamp": None}


class _RunningMoments:
    """Moments of all rows so far, with the version and the end of the window."""

    def partial(self, state: Any, part: TrainingBlock, parallelism: int) -> RowMoments | None:
        """Return the moments of a part of the window."""
        return MeanAndDeviation().of(part) if len(part) else None

    def combine(self, state: Any, partials: Sequence[Any], end_ms: int | None) -> Any:
        """Return the moments of all rows until the end of the window."""
        total, version, _ = state
        for moments in partials:
            if moments is not None:
                total = moments if total is None else MeanAndDeviation().merge(total, moments)
        return total, version + 1, end_ms

    def model_data(self, state: Any) -> dict[str, Any]:
        """Return mean, deviation, version and the last millisecond of the window."""
        total, version, end_ms = state
        return {**MeanAndDeviation().finish(total), "version": version, "timestamp": end_ms}
