"""A query of online features, as a value: which features, of which entities, as of when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paimon_features.definitions import Selection


@dataclass(slots=True, eq=False)
class FeatureQuery:
    """Features of some entities; not to be changed (a frozen one takes a microsecond to make).

    ``entities`` maps each key column to a sequence, all of one length, and ``inputs`` each request
    input of the interactions to one value for all entities or to a sequence. ``as_of_ms`` is the
    time of the read (UTC ms; events at ``as_of_ms`` are excluded); None is the clock at the read.
    """

    selection: Selection
    entities: Mapping[str, object]
    as_of_ms: int | None = None
    inputs: Mapping[str, object] | None = None
