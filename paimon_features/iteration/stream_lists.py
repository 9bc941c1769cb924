"""Lists of streams: the arguments and the results of an iteration."""

from __future__ import annotations

from collections.abc import Iterator

from paimon_features.iteration.streams import IterationStream


class DataStreamList:
    """An ordered list of streams."""

    def __init__(self, *streams: IterationStream) -> None:
        self._streams = streams

    @classmethod
    def of(cls, *streams: IterationStream) -> DataStreamList:
        """Return a list of the given streams."""
        return cls(*streams)

    def size(self) -> int:
        """Return the number of streams."""
        return len(self._streams)

    def get(self, index: int) -> IterationStream:
        """Return the stream at ``index``, from 0."""
        return self._streams[index]

    def __iter__(self) -> Iterator[IterationStream]:
        return iter(self._streams)

    def __len__(self) -> int:
        return len(self._streams)

    def __getitem__(self, index: int) -> IterationStream:
        return self._streams[index]


class ReplayableDataStreamList:
    """Data streams of a bounded iteration; the body receives the replayed ones first."""

    def __init__(
        self, replayed: tuple[IterationStream, ...], not_replayed: tuple[IterationStream, ...]
    ) -> None:
        self.replayed = replayed
        self.not_replayed = not_replayed

    @classmethod
    def replay(cls, *streams: IterationStream) -> ReplayableDataStreamList:
        """Return streams whose records are delivered again in every epoch."""
        return cls(streams, ())

    @classmethod
    def not_replay(cls, *streams: IterationStream) -> ReplayableDataStreamList:
        """Return streams whose records are delivered in epoch 0 only."""
        return cls((), streams)

    def and_not_replay(self, *streams: IterationStream) -> ReplayableDataStreamList:
        """Return the list with further streams that are not replayed."""
        return ReplayableDataStreamList(self.replayed, self.not_replayed + streams)
