"""Messages between subtasks, and their encoding.

A message is a list of envelopes for one subtask of one stage: everything that one call of a
runner sends to that subtask, encoded as one pickle (protocol 5) of plain tuples.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any, Final, NamedTuple, cast

RECORDS: Final = 0
"""Values of one epoch, with their keys if the stream is keyed."""
WATERMARK: Final = 1
"""No further record of this or an earlier epoch arrives on this channel; ``END``: no record at
all."""
HELLO: Final = 2
"""Control head to all reporters: ``epoch`` is the new generation; publish all open notices."""
DELIVER: Final = 3
"""Control head to a data head: ``values`` is one wire notice to emit."""
ACK: Final = 4
"""Control head to a tail: entries up to the sequence number ``epoch`` are delivered."""
CLOSED: Final = 5
"""Control head to a tail: the round ``epoch`` has been decided."""

CONTROL: Final = -1
"""Input and channel number of envelopes from the control head."""


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
    """Pickle a value, by value for classes whose module cannot be imported in this process.

    Such a class was itself shipped by value (cloudpickle).
    """
    try:
        return pickle.dumps(value, protocol=5)
    except (pickle.PicklingError, AttributeError):
        import cloudpickle  # a dependency of pyflink; not needed in a single process

        return cast(bytes, cloudpickle.dumps(value, protocol=5))


def encode(envelopes: Iterable[Envelope]) -> bytes:
    """Encode the envelopes of a message.

    >>> decode(encode([Envelope(3, RECORDS, 0, values=[1, 2])]))
    [Envelope(node=3, kind=0, epoch=0, input=0, channel=0, values=[1, 2], keys=None)]
    """
    return dumps([tuple(envelope) for envelope in envelopes])


def decode(data: bytes) -> list[Envelope]:
    """Decode the envelopes of a message."""
    make = Envelope._make
    return [make(fields) for fields in pickle.loads(data)]
