"""What travels between subtasks, and its bytes.

A message is a list of envelopes for one subtask of one stage: everything that one call of a
runner sends there goes as one pickle (protocol 5) of plain tuples.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, cast

RECORDS: Final = 0
"""Values of one epoch; of a keyed stream with their keys."""
WATERMARK: Final = 1
"""No record of this epoch or before comes on this channel any more; ``END``: none at all."""
HELLO: Final = 2
"""Control head to all reporters: ``epoch`` is the new generation; publish all that is open."""
DELIVER: Final = 3
"""Control head to a data head: ``values`` is one wire notice to emit."""
ACK: Final = 4
"""Control head to a tail: entries up to the sequence number ``epoch`` are delivered."""
CLOSED: Final = 5
"""Control head to a tail: the round ``epoch`` is decided."""

CONTROL: Final = -1
"""Input and channel number of what comes from the control head."""


class Envelope(NamedTuple):
    """A batch of records of one epoch, or one control record, for one node of a stage."""

    node: int
    kind: int
    epoch: int
    input: int = 0
    channel: int = 0
    values: Any = None
    keys: list[Any] | None = None


class StageMessage(NamedTuple):
    """Envelopes for one subtask of one stage, in order."""

    stage: int
    subtask: int
    envelopes: list[Envelope]


def dumps(value: Any) -> bytes:
    """Bytes of anything, for ``pickle.loads``.

    A class that travelled whole, because its module is unknown where this runs, goes on so.
    """
    try:
        return pickle.dumps(value, protocol=5)
    except (pickle.PicklingError, AttributeError):
        import cloudpickle  # comes with pyflink; in one process it is not needed

        return cast(bytes, cloudpickle.dumps(value, protocol=5))


def encode(envelopes: Iterable[Envelope]) -> bytes:
    """Bytes of a message.

    >>> decode(encode([Envelope(3, RECORDS, 0, values=[1, 2])]))
    [Envelope(node=3, kind=0, epoch=0, input=0, channel=0, values=[1, 2], keys=None)]
    """
    return dumps([tuple(envelope) for envelope in envelopes])


def decode(data: bytes) -> list[Envelope]:
    """Envelopes of a message's bytes."""
    make = Envelope._make
    return [make(fields) for fields in pickle.loads(data)]
