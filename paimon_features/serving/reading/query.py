"""A query of online features, as a value: which features, of which entities, as of when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from paimon_features.core.errors import RequestError
from paimon_features.definitions import Selection
from paimon_features.definitions.own_events import RequestEvents


@dataclass(slots=True, eq=False)
class FeatureQuery:
    """Features of some entities; not to be changed (a frozen one takes a microsecond to make).

    ``entities`` maps each key column to a sequence, all of one length, and ``inputs`` each request
    input of the interactions to one value for all entities or to a sequence. ``as_of_ms`` is the
    time of the read (UTC ms; events at ``as_of_ms`` are excluded); None is the clock at the read.
    ``events`` is the event of the request (``of_event``), None for a read by keys.
    """

    selection: Selection
    entities: Mapping[str, object]
    as_of_ms: int | None = None
    inputs: Mapping[str, object] | None = None
    events: RequestEvents | None = None

    @classmethod
    def of_event(cls, selection: Selection, event: RequestEvents) -> FeatureQuery:
        """Return the query of one event: its time, keys and inputs, and the event itself."""
        as_of_ms = int(event.times_ms[0])
        return cls(selection, event.entities, as_of_ms, event.inputs(selection), event)

    def check_types(self) -> None:
        """Raise RequestError for arguments of other types, which Python callers can pass."""
        keys_and_inputs = (("entities", "key column"), ("request", "request input"))
        for (name, column), given in zip(
            keys_and_inputs, (self.entities, self.inputs), strict=True
        ):
            if not hasattr(given, "get") and (name == "entities" or given is not None):
                raise RequestError(
                    f"{name} is a {type(given).__name__}; expected a mapping of each {column} to "
                    "its values, one per entity, such as {'user_id': [1, 2]}"
                )
        if not (self.as_of_ms is None or isinstance(self.as_of_ms, int | np.integer)):
            raise RequestError(f"as_of_ms={self.as_of_ms!r}: expected an integer, UTC milliseconds")
