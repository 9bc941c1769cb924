"""Transformers that are fitted on targets, optionally with event times."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Self

import numpy as np

from paimon_features.core.errors import TransformError
from paimon_features.core.types.array_types import Ints
from paimon_features.transformers.base import StoredTransformer
from paimon_features.transformers.frames import Frame, missing, read_frame


class Supervised(StoredTransformer):
    """A transformer that is fitted on targets, optionally with the event time of each row.

    The event time is the column ``event_time`` of the frame, or a separate argument. It is not a
    feature: ``transform`` does not need the column, and ignores it if present.
    """

    @abstractmethod
    def fit(self, X: Any, y: Any = None, *, event_time_ms: Any = None) -> Self: ...
    @abstractmethod
    def partial_fit(self, X: Any, y: Any = None, *, event_time_ms: Any = None) -> Self: ...

    def _split_event_time(self, X: Any, event_time_ms: Any) -> tuple[Frame, Ints | None]:
        """Return the features, and the event time of each row if known."""
        frame = read_frame(X)
        name = self.event_time
        if event_time_ms is None and name is not None:
            if name not in (frame.names or ()):
                raise TransformError(
                    f"the event time {name!r} is not a column of the data; name one of them, "
                    "or pass event_time_ms=, one time per row"
                )
            assert frame.names is not None
            event_time_ms = frame.part([frame.names.index(name)])
        times = None if event_time_ms is None else _times(event_time_ms, frame.rows)
        return self._without_time(frame), times

    def _without_time(self, frame: Frame) -> Frame:
        if self.event_time is None or self.event_time not in (frame.names or ()):
            return frame
        assert frame.names is not None
        return frame.part([i for i, name in enumerate(frame.names) if name != self.event_time])

    def _checked(self, X: Any) -> Frame:
        if self.event_time is None:
            return super()._checked(X)
        return super()._checked(self._without_time(read_frame(X)))


def _times(data: Any, rows: int) -> Ints:
    frame = read_frame(data)
    if (frame.rows, frame.width) != (rows, 1):
        raise TransformError(
            f"event_time_ms has {frame.rows} rows and {frame.width} columns; expected {rows} and 1"
        )
    column = frame.columns[0]
    if missing(column).any():
        raise TransformError(
            f"event_time_ms is null in row {int(np.argmax(missing(column)))}; expected one time "
            "per row"
        )
    if column.values.dtype.kind not in "iu":
        raise TransformError(
            "event_time_ms is not integers; expected milliseconds since the Unix epoch"
        )
    return column.values.astype(np.int64)
