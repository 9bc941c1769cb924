"""The online standard scaler: a version per window, of all rows until its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.errors import DefinitionError, TransformError
from paimon_features.iteration import IterationConfig
from paimon_features.iteration.algorithms.bounded_training import aggregate
from paimon_features.iteration.algorithms.estimator import TrainingSource, VectorEstimator
from paimon_features.iteration.algorithms.online_training import (
    CountCutter,
    OnlineEstimator,
    check_batch,
    train_online,
)
from paimon_features.iteration.algorithms.scaler_estimators import MeanAndDeviation, RowMoments
from paimon_features.iteration.algorithms.training_blocks import TrainingBlock, deal
from paimon_features.transformers.flink_ml import Model, StandardScalerModel
from paimon_features.transformers.flink_ml.vectors import as_table


@dataclass(frozen=True, slots=True)
class GlobalWindows:
    """One window of all rows."""


@dataclass(frozen=True, slots=True)
class CountTumblingWindows:
    """Windows of ``size`` rows; rows that do not fill the last one produce no version."""

    size: int


@dataclass(frozen=True, slots=True)
class EventTimeTumblingWindows:
    """Windows of ``size_ms`` milliseconds, aligned to the Unix epoch, of rows ordered by time.

    A window ends when a row of a later one arrives, or when the rows end.
    """

    size_ms: int


Windows = GlobalWindows | CountTumblingWindows | EventTimeTumblingWindows


@dataclass(frozen=True, kw_only=True)
class OnlineStandardScaler(OnlineEstimator, VectorEstimator):
    """Flink ML's online standard scaler: moments of all rows so far, a version (from 0) per window.

    ``timestamp_col`` is the column of times (milliseconds) of ``EventTimeTumblingWindows``; a
    version's ``timestamp`` is then the last millisecond of its window.

    >>> scaler = OnlineStandardScaler(windows=CountTumblingWindows(2))
    >>> versions = scaler.fit([[1.0], [3.0], [2.0], [2.0]])
    >>> [model.model_data["mean"].tolist() for model in versions]
    [[2.0], [2.0]]
    """

    with_mean: bool = False
    with_std: bool = True
    windows: Windows = GlobalWindows()
    timestamp_col: str = "timestamp"
    model_version_col: str | None = "version"

    model = StandardScalerModel
    version_name = "version"

    def _rows(self, X: Any, y: Any, sample_weight: Any) -> TrainingBlock:
        rows = super()._rows(X, y, sample_weight)
        if not isinstance(self.windows, EventTimeTumblingWindows):
            return rows
        found = as_table(X)
        if found is None or self.timestamp_col not in found[0].column_names:
            raise TransformError(
                f"OnlineStandardScaler: there is no column {self.timestamp_col!r} of times"
            )
        times = found[0][self.timestamp_col]
        if pa.types.is_timestamp(times.type):
            times = times.cast(pa.timestamp("ms"))
        return TrainingBlock(rows.features, times_ms=times.cast(pa.int64()).to_numpy())

    def _blocks(self, rows: TrainingBlock, parallelism: int) -> list[TrainingBlock]:
        if isinstance(self.windows, GlobalWindows):
            return deal(rows, parallelism)
        blocks = super()._blocks(rows, parallelism)
        if isinstance(self.windows, EventTimeTumblingWindows):
            blocks.append(_end_of(blocks))
        return blocks

    def _start(self, rows: TrainingBlock | None, initial: Model | None) -> Any:
        super()._start(rows, initial)
        return None, -1, None

    def _program(
        self, source: TrainingSource, start: Any, parallelism: int, config: IterationConfig
    ) -> Callable[[Any], Any]:
        if isinstance(self.windows, GlobalWindows):
            return aggregate(source, _SingleVersion(), parallelism, config)
        if isinstance(self.windows, CountTumblingWindows):
            check_batch("OnlineStandardScaler", self.windows.size, parallelism)
            cutter: Any = CountCutter(self.windows.size)
        elif self.windows.size_ms < 1:
            raise DefinitionError(f"OnlineStandardScaler: {self.windows}; expected 1 ms or more")
        else:
            cutter = _TimeCutter(self.windows.size_ms)
        return train_online(source, start, _RunningMoments(), cutter, parallelism, config)


@dataclass(frozen=True, slots=True)
class _TimeCutter:
    size_ms: int

    def cut(self, blocks: Sequence[TrainingBlock]) -> tuple[int, int | None] | None:
        """Return the rows of the first window once a row of a later one has arrived."""
        times = np.concatenate([block.times_ms for block in blocks])
        if not len(times):
            return None
        end = int(times[0]) // self.size_ms * self.size_ms + self.size_ms
        later = np.flatnonzero(times >= end)
        return (int(later[0]), end - 1) if len(later) else None


def _end_of(blocks: Sequence[TrainingBlock]) -> TrainingBlock:
    """Return a row after all times: it closes the last window, and its own never ends."""
    last = blocks[-1].part(len(blocks[-1]) - 1, len(blocks[-1]))
    return TrainingBlock(last.features, times_ms=np.array([np.iinfo(np.int64).max]))


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
