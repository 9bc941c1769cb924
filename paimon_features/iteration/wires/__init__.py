"""Transport of feedback from tails to heads: the only part of the loop outside the dataflow.

A wire stores nothing durable. Every attempt of the job uses a new generation; after a failure, the
tails publish again from their state. A wire may therefore lose everything together with an attempt,
and what a remaining task of an old attempt writes is never read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

ENTRY: Final = 0
"""A batch of feedback records of one epoch, numbered by ``seq``."""
ROUND_CLOSED: Final = 1
"""A tail has no more records for the round ``epoch``; there were ``records``."""
INIT_ENDED: Final = 2
"""A data head has emitted its complete initial stream; its watermark is ``epoch``."""
ENDED: Final = 3
"""A data head, a tail or an output has forwarded the end of the iteration."""


class Notice(NamedTuple):
    """A message from a reporter (data head, tail, output) to the control head."""

    kind: int
    node: int
    subtask: int
    epoch: int = 0
    seq: int = 0
    records: int = 0
    payload: bytes | None = None
    """Records of an ``ENTRY``; ``None`` if the data head has to ``take`` them."""


class Wire(Protocol):
    """The wire of one iteration, as used by one task."""

    def begin(self) -> int:
        """Start a generation for a control head, greater than all earlier ones, and return it."""
        ...

    def publish(self, generation: int, notices: Sequence[Notice]) -> None:
        """Send notices of a reporter to the control head, in order, without waiting for a reader.

        A large payload may be stored separately, and the notice sent without it.
        """
        ...

    def poll(self, wait_ms: int) -> list[Notice]:
        """Return, to a control head, the notices of its generation, once and in order per reporter.

        Waits for the first one, at most ``wait_ms`` milliseconds.
        """
        ...

    def take(self, generation: int, notice: Notice, readers: int = 1) -> bytes:
        """Return, to a data head, the payload of a notice that was sent without it.

        It is deleted when ``readers`` subtasks of the head have taken it.

        Raises
        ------
        JobError
            It no longer exists: the attempt fails and the next one publishes it again.
        """
        ...

    def report(self, status: Mapping[str, Any]) -> None:
        """Publish status fields (``epoch``, ``records``, ``state``)."""
        ...
