"""The topics of ``check``, each imported when it is checked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SizingOptions:
    """The options of ``check sizing``."""

    events_per_day: float | None
    measure: int | None
    entities: str
    node_memory: float
    headroom: float
