"""The online standard scaler: a version for each window, of all rows until its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.errors import DefinitionError, TransformError
from paimon_features.iteration import IterationConfig
from paimon_features.iteration.algorithms.estimator import TrainingSource, VectorEstimator
from paimon_features.iteration.algorithms.one_pass import aggregate
from paimon_features.iteration.algorithms.online_training import (
    CountCutter,
    ModelVersions,
    check_batch,
    in_turn,
    train_online,
)
from paimon_features.iteration.algorithms.scaler_estimators import Seen, Spread
from paimon_features.iteration.algorithms.training_blocks import TrainingBlock, in_order
from paimon_features.transformers.flink_ml import Model, StandardScalerModel
from paimon_features.transformers.flink_ml.vectors import as_table


@dataclass(frozen=True, slots=True)
class GlobalWindows:
    """One window of all rows."""


@dataclass(frozen=True, slots=True)
class CountTumblingWindows:
    """Windows of ``size`` rows; rows that do not fill the last one make no version."""

    size: int


@dataclass(frozen=True, slots=True)
class EventTimeTumblingWindows:
    """Windows of ``size_ms`` milliseconds, from 1970 on, of rows that come in order of time.

    A window ends when a row of a later one comes, or when the rows end.
    """

    size_ms: int


Windows = GlobalWindows | CountTumblingWindows | EventTimeTumblingWindows


@dataclass(frozen=True, kw_only=True)
class OnlineStandardScaler(VectorEstimator):
    """Mean and deviation of all rows so far, a version (from 0) for each window.

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
            return super()._blocks(rows, parallelism)
        blocks = in_order(rows)
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
            return aggregate(source, _Whole(), parallelism, config)
        if isinstance(self.windows, CountTumblingWindows):
            check_batch("OnlineStandardScaler", self.windows.size, parallelism)
            cutter: Any = CountCutter(self.windows.size)
        elif self.windows.size_ms < 1:
            raise DefinitionError(f"OnlineStandardScaler: {self.windows}; expected 1 ms or more")
        else:
            cutter = _TimeCutter(self.windows.size_ms)
        return train_online(source, start, _Running(), cutter, parallelism, config)

    def _model(self, found: list[Any], rows: int, names: tuple[str, ...] | None) -> Any:
        return ModelVersions(
            [
                StandardScalerModel(
                    data,
                    rows=rows,
                    names=names,
                    input_col=self.input_col,
                    output_col=self.output_col,
                    with_mean=self.with_mean,
                    with_std=self.with_std,
                    model_version_col=self.model_version_col,
                )
                for data in in_turn(found, "version")
            ]
        )


@dataclass(frozen=True, slots=True)
class _TimeCutter:
    size_ms: int

    def cut(self, blocks: Sequence[TrainingBlock]) -> tuple[int, int | None] | None:
        """The rows of the first window once a row of a later one is there."""
        times = np.concatenate([block.times_ms for block in blocks])
        if not len(times):
            return None
        end = int(times[0]) // self.size_ms * self.size_ms + self.size_ms
        later = np.flatnonzero(times >= end)
        return (int(later[0]), end - 1) if len(later) else None


def _end_of(blocks: Sequence[TrainingBlock]) -> TrainingBlock:
    """A row after all times: it closes the last window, and no window of its own ever ends."""
    last = blocks[-1].part(len(blocks[-1]) - 1, len(blocks[-1]))
    return TrainingBlock(last.features, times_ms=np.array([np.iinfo(np.int64).max]))


class _Whole(Spread):
    """The one version of all rows."""

    def finish(self, whole: Seen) -> dict[str, Any]:
        return {**super().finish(whole), "version": 0, "timestamp": None}


class _Running:
    """Moments of all rows so far, with the version and the window's end."""

    def partial(self, state: Any, part: TrainingBlock, parallelism: int) -> Seen | None:
        """Those of a part of the window."""
        return Spread().of(part) if len(part) else None

    def combine(self, state: Any, partials: Sequence[Any], end_ms: int | None) -> Any:
        """Those until the end of the window."""
        whole, version, _ = state
        for seen in partials:
            if seen is not None:
                whole = seen if whole is None else Spread().merge(whole, seen)
        return whole, version + 1, end_ms

    def model_data(self, state: Any) -> dict[str, Any]:
        """Mean, deviation, version and the last millisecond of the window."""
        whole, version, end_ms = state
        return {**Spread().finish(whole), "version": version, "timestamp": end_ms}
