"""What carries feedback from tails to heads: the only part of the loop outside the dataflow.

A wire keeps nothing that matters. Every attempt of the job works under a new generation;
after a failure the tails publish again from their state, so a wire may lose everything with
the attempt that it served, and what a left-over task of an old attempt writes is never read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

ENTRY: Final = 0
"""A batch of feedback records of one epoch, numbered by ``seq``."""
ROUND_CLOSED: Final = 1
"""A tail gives no more records for the round ``epoch``; it gave ``records``."""
INIT_ENDED: Final = 2
"""A data head has emitted its whole initial variable stream; its watermark is ``epoch``."""
ENDED: Final = 3
"""A data head, a tail or an output has passed on the end of the iteration."""


class Notice(NamedTuple):
    """One thing that a reporter (data head, tail, output) tells the control head."""

    kind: int
    node: int
    subtask: int
    epoch: int = 0
    seq: int = 0
    records: int = 0
    payload: bytes | None = None
    """Records of an ``ENTRY``; ``None`` when the data head has to ``take`` them."""


class Wire(Protocol):
    """One iteration's wire, seen from one task."""

    def begin(self) -> int:
        """Control head: start a generation, larger than every one before, and return it."""
        ...

    def publish(self, generation: int, notices: Sequence[Notice]) -> None:
        """A reporter: tell the control head, in order. Never waits for a reader.

        A large payload may be put aside and the notice sent without it.
        """
        ...

    def poll(self, wait_ms: int) -> list[Notice]:
        """Control head: what was published under the generation it began, in order per reporter.

        Waits until there is something, at most ``wait_ms`` milliseconds. Each notice once.
        """
        ...

    def take(self, generation: int, notice: Notice) -> bytes:
        """A data head: the payload of a notice that came without it.

        Raises
        ------
        JobError
            It is no longer there: the attempt fails and the next one publishes it again.
        """
        ...

    def report(self, status: Mapping[str, Any]) -> None:
        """Control head: fields for who watches (``epoch``, ``records``, ``state``)."""
        ...
