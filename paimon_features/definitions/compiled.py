"""A feature view worked out: partials, levels and features, for every engine to follow."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from paimon_features.aggregates import Aggregate, Partial
from paimon_features.definitions.entity import Entity
from paimon_features.definitions.source import EventSource
from paimon_features.expressions import Expression
from paimon_features.schema import DataType
from paimon_features.windows import HOUR_MS, Times, floor_ms, window_start

ONLINE_MARGIN_MS = HOUR_MS
"""How far, beyond the source's skew, ``q`` may lie before the newest event and be answered."""


@dataclass(frozen=True, slots=True)
class CompiledFeature:
    """One feature: an aggregate over one window.

    ``window_ms`` is None for a lifetime. ``level`` is the index into the view's ``levels_ms``
    whose step is the window's hop. ``partials`` are names, in the order ``finish`` takes them.
    """

    name: str
    aggregate: Aggregate
    window_ms: int | None
    hop_ms: int
    level: int
    partials: tuple[str, ...]
    type: DataType


@dataclass(frozen=True, slots=True)
class SkipRule:
    """A member event for which ``condition`` is not true is counted and kept out of the tiles."""

    reason: str
    detail: str
    condition: Expression


@dataclass(frozen=True)
class CompiledView:
    """What the engines need to know of a feature view; nothing here names an engine.

    ``expressions`` gives each partial, by name, for one event, over the source's columns and
    ``__event_time`` and ``__tile_end``; ``where`` says which events are members (None: all).
    ``levels_ms`` are the cell sizes of the online store, the first is the tile, each divides
    the next.
    """

    name: str
    source: EventSource
    entity: Entity
    tile_ms: int
    levels_ms: tuple[int, ...]
    where: Expression | None
    skip_rules: tuple[SkipRule, ...]
    partials: tuple[Partial, ...]
    expressions: Mapping[str, Expression]
    features: tuple[CompiledFeature, ...]
    scope: Mapping[str, DataType]
    buckets: int
    ttl_ms: int | None
    max_staleness_ms: int | None

    @property
    def keys(self) -> Mapping[str, DataType]:
        """Entity key columns and their types, in order."""
        return self.entity.keys

    def table(self, generation: int) -> str:
        """Name of the tile table of a generation."""
        return f"tiles_{self.name}_g{generation}"

    def skipped_table(self, generation: int) -> str:
        """Name of the table that counts the events this view skipped."""
        return f"skipped_{self.name}_g{generation}"

    def feature(self, name: str) -> CompiledFeature | None:
        """The feature of that name, or None."""
        return next((f for f in self.features if f.name == name), None)

    @cached_property
    def partial(self) -> Mapping[str, Partial]:
        """Partials by name."""
        return {p.name: p for p in self.partials}

    @property
    def has_lifetime(self) -> bool:
        """Whether a feature has no beginning, so that nothing may be forgotten."""
        return any(f.window_ms is None for f in self.features)

    @cached_property
    def longest_ms(self) -> int | None:
        """The longest window; None where one has no beginning."""
        windows = [f.window_ms for f in self.features]
        return None if None in windows else max(w for w in windows if w is not None)

    def known_from(self, q_ms: Times) -> Times:
        """An entity is known at ``q`` if its newest event is not older than this (inclusive).

        The start of the longest window, or ``q - ttl`` where that is earlier: what is older
        has left the online store too, so that training and serving agree on who is unknown.
        """
        starts = [window_start(q_ms, f.window_ms, f.hop_ms) for f in self.features]
        if self.ttl_ms is not None:
            starts.append(q_ms - self.ttl_ms)
        known_from: Times = np.minimum.reduce(starts)
        return known_from

    @property
    def margin_ms(self) -> int:
        """How far ``q`` may lie before the newest applied event and still be answered online."""
        return self.source.max_skew_ms + ONLINE_MARGIN_MS

    def keep_from(self, level: int, high_ms: int) -> int:
        """Start (inclusive) of the cells of ``level`` that some allowed ``q`` may still need.

        ``high_ms`` is the newest applied event time; every ``q >= high_ms - margin_ms`` is
        answered. Cells that end at or before the result can go (into the lifetime cell, where
        the view has one and the level is the top).
        """
        q = high_ms - self.margin_ms
        starts = [
            window_start(q, f.window_ms, f.hop_ms)
            for f in self.features
            if f.level == level and f.window_ms is not None
        ]
        if level + 1 < len(self.levels_ms):
            starts.append(floor_ms(q, self.levels_ms[level + 1]))
        elif not starts or self.has_lifetime:
            starts.append(floor_ms(q, self.levels_ms[level]))
        return min(starts)

    @cached_property
    def fingerprint(self) -> str:
        """Tells generations apart: equal if and only if the tile tables hold the same."""
        return _digest(
            {
                "source": self.source.table,
                "event_time": self.source.event_time,
                "keys": {name: kind.text for name, kind in self.keys.items()},
                "tile_ms": self.tile_ms,
                "buckets": self.buckets,
                "where": None if self.where is None else self.where.text,
                "skip": sorted(rule.condition.text for rule in self.skip_rules),
                "partials": [
                    [p.name, p.type.text, p.merge.value, self.expressions[p.name].text]
                    for p in self.partials
                ],
            }
        )

    @cached_property
    def online_fingerprint(self) -> str:
        """Tells layouts of online records apart: equal if the same cells are kept."""
        reach = sorted({(f.level, f.window_ms or 0, f.hop_ms) for f in self.features})
        return _digest(
            {
                "tiles": self.fingerprint,
                "levels_ms": self.levels_ms,
                "reach": reach,
                "ttl_ms": self.ttl_ms,
                "margin_ms": self.margin_ms,
            }
        )


def _digest(document: object) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
