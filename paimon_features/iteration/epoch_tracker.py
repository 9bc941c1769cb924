"""Epoch watermarks of several channels, and their minimum (S6)."""

from __future__ import annotations

from paimon_features.iteration.epochs import END, NONE

ChannelStates = tuple[tuple[int, bool], ...]
"""The last round of every channel, and whether the channel has ended."""


class EpochTracker:
    """Minimum watermark over all channels of an operator.

    A watermark that is not greater than the channel's current one is ignored: after a restore,
    some are sent twice.

    Examples
    --------
    >>> tracker = EpochTracker(2)
    >>> tracker.advance(0, 3), tracker.advance(1, 1), tracker.watermark
    ((), (1,), 1)
    >>> tracker.advance(1, 1)
    ()

    A channel without rounds does not hide those of other channels, however late it ends:

    >>> tracker = EpochTracker(2)
    >>> tracker.advance(0, 0), tracker.advance(0, 1), tracker.advance(0, END)
    ((), (), ())
    >>> tracker.advance(1, END) == (1, END)
    True
    """

    __slots__ = ("_ended", "_rounds", "watermark")

    def __init__(self, channels: int) -> None:
        self._rounds = [NONE] * channels
        self._ended = [False] * channels
        self.watermark = NONE

    def advance(self, channel: int, epoch: int) -> tuple[int, ...]:
        """Record a channel's watermark; return the new values of the minimum, in order."""
        if self._ended[channel] or epoch <= self._rounds[channel]:
            return ()
        if epoch == END:
            self._ended[channel] = True
        else:
            self._rounds[channel] = epoch
        before, self.watermark = self.watermark, self._least()
        if self.watermark == before:
            return ()
        if self.watermark != END:
            return (self.watermark,)
        # the rounds that the last channel to end delayed come before the end
        last = min((epoch for epoch in self._rounds if epoch != NONE), default=NONE)
        return (last, END) if last > before else (END,)

    def snapshot(self) -> ChannelStates:
        """Return the state of every channel."""
        return tuple(zip(self._rounds, self._ended, strict=True))

    def restore(self, channels: ChannelStates) -> None:
        """Continue from a snapshot with the same number of channels."""
        self._rounds = [epoch for epoch, _ in channels]
        self._ended = [ended for _, ended in channels]
        self.watermark = self._least()

    def _least(self) -> int:
        return min(
            END if ended else epoch for epoch, ended in zip(self._rounds, self._ended, strict=True)
        )
