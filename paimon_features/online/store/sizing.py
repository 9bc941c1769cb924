"""Estimate the memory of the online store, from definitions or from stored records.

A key costs its record (header, cells, strings), its own bytes, and the overhead of the server.
The overhead is measured (see docs/how-to/serving/online-store.md). How small cells are packed
depends on what is in them: estimates are those of some invented records, with events at any time,
amounts of two decimals and a few events a tile.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from paimon_features.core.errors import StoreNotReadyError
from paimon_features.core.types.array_types import Ints
from paimon_features.core.windows import DAY_MS, HOUR_MS, format_duration
from paimon_features.definitions import CompiledView
from paimon_features.definitions.aggregates import EVENT_TIME_MAX, Merge
from paimon_features.online.store.codec import HEADER, HEADER_SIZE, Cells, RecordLayout, cell_keys
from paimon_features.online.store.keys import PREFIX, ViewKeys
from paimon_features.online.store.markers import ViewState
from paimon_features.online.store.store import OnlineStore

KEY_OVERHEAD = 85
"""Server overhead in bytes of a key with an expiry: 71 to 86 measured (Valkey 9.1)."""
UNREPORTED_OVERHEAD = 35
"""The part of it that MEMORY USAGE omits: entries of the key and expiry hash tables."""
TEXT_BYTES = 24
"""Assumed bytes of a string in a cell: the time and the word of a First or Last."""
_SAMPLED = 64
"""Invented records."""
_KEY_BYTES = {"int64": 10, "int32": 9, "bool": 1, "date": 5}
_PHASES_MS = [d * DAY_MS + h * HOUR_MS for d in range(0, 370, 5) for h in (0, 7, 18, 23)]


@runtime_checkable
class ReportsMemory(Protocol):
    """A store that can report the memory of its keys."""

    def memory_of(self, keys: Sequence[bytes]) -> list[int | None]:
        """Return bytes of memory of each key; None for absent keys."""


@dataclass(frozen=True, slots=True)
class LevelSize:
    """Cells of one size: the maximum per entity, and the expected number."""

    step: str
    most: int
    cells: float


@dataclass(frozen=True, slots=True)
class ViewSize:
    """The size of one entity of a view, in bytes; ``basis`` describes the source of the
    estimate. ``cell_bytes`` is the mean of a packed cell, without its texts."""

    view: str
    basis: str
    levels: tuple[LevelSize, ...]
    cells: float
    cell_bytes: float
    text_bytes: float
    record_bytes: float
    key_bytes: float
    overhead_bytes: float

    @property
    def entity_bytes(self) -> float:
        """Record, key and server overhead."""
        return self.record_bytes + self.key_bytes + self.overhead_bytes


def most_cells(view: CompiledView) -> tuple[int, ...]:
    """Return the maximum number of cells per level: those of an entity that is never idle."""
    base_ms = 20_000 * DAY_MS
    most = [0] * len(view.levels_ms)
    for phase_ms, (level, step) in itertools.product(_PHASES_MS, enumerate(view.levels_ms)):
        # just before a boundary, where the newest cell is farthest from the first one
        high_ms = base_ms + phase_ms + HOUR_MS - 1
        first = view.keep_from(level, high_ms) // step
        most[level] = max(most[level], high_ms // step - first + 1)
    return tuple(most)


def size_of(view: CompiledView, project: str, events_per_day: float | None = None) -> ViewSize:
    """Estimate the size from the definitions alone.

    ``events_per_day`` is the mean rate of a stored entity, assuming independent event times;
    real events come in bursts and need fewer cells. None: an event in every tile, the upper
    bound.
    """
    layout = RecordLayout(view)
    levels = []
    for step, most in zip(view.levels_ms, most_cells(view), strict=True):
        share = 1.0 if events_per_day is None else -math.expm1(-events_per_day * step / DAY_MS)
        levels.append(LevelSize(format_duration(step), most, most * share))
    cells = sum(level.cells for level in levels) + view.has_lifetime
    texts = cells * len(layout.texts) * TEXT_BYTES
    basis = "an event in every tile"
    if events_per_day is not None:
        basis = f"{events_per_day:g} events a day"
    packed = _invented_bytes(layout, events_per_day)
    return ViewSize(
        view.name,
        basis,
        tuple(levels),
        cells,
        packed / cells if cells else 0.0,
        texts,
        HEADER_SIZE + packed + texts,
        _key_bytes(view, project),
        KEY_OVERHEAD,
    )


def _invented_bytes(layout: RecordLayout, events_per_day: float | None) -> float:
    """Return the mean bytes of the cells of invented records, without header and texts."""
    view, rng = layout.view, np.random.default_rng(0)
    now_ms = 20_000 * DAY_MS + rng.integers(0, DAY_MS, _SAMPLED)
    keys: list[Ints] = []
    owners: list[Ints] = []
    times: list[Ints] = []
    for level, (step, most) in enumerate(zip(view.levels_ms, most_cells(view), strict=True)):
        share = 1.0 if events_per_day is None else -math.expm1(-events_per_day * step / DAY_MS)
        # axes: entities, tiles; the newest last
        owner, back = np.nonzero(rng.random((_SAMPLED, most)) < share)
        index = now_ms[owner] // step - (most - 1 - back)
        owners.append(owner)
        keys.append(cell_keys(level, index))
        times.append(index * step + rng.integers(0, step, len(index)))
    order = np.argsort(np.concatenate(owners), kind="stable")
    counts = np.bincount(np.concatenate(owners), minlength=_SAMPLED)
    rows = np.zeros(len(order), layout.cell)
    for partial in view.partials:
        if partial.name in layout.texts:
            continue
        amounts = np.round(rng.gamma(2.0, 20.0, len(order)), 2)
        if partial.type.text == "int64":
            is_count = partial.merge is Merge.SUM and "count" in partial.name
            amounts = np.ceil(amounts / 40) if is_count else amounts * 100
        elif partial.merge is Merge.DECAYED_SUM:
            amounts = amounts * rng.random(len(order))
        rows[partial.name] = amounts
    rows["key"] = np.concatenate(keys)[order]
    rows[EVENT_TIME_MAX.name] = np.concatenate(times)[order]
    if "valid" in (layout.cell.names or ()):
        rows["valid"] = 255
    headers = np.zeros(_SAMPLED, HEADER)
    headers["event_high"] = now_ms
    offsets = np.concatenate([[0], np.cumsum(counts)])
    records = layout.encode(headers, Cells(rows), offsets)
    return sum(map(len, records)) / _SAMPLED - HEADER_SIZE


def measured_size(
    view: CompiledView, project: str, store: OnlineStore, sample: int = 1_000
) -> ViewSize:
    """Measure the size on ``sample`` stored records of the epoch that readers use.

    Raises
    ------
    StoreNotReadyError
        If the store contains no records of the view, or those of another definition.
    OnlineStoreError
        If the store is unavailable.
    """
    keys = ViewKeys(project, view.name, store.key_prefix)
    raw = store.get_many([keys.state])[0]
    state = ViewState() if raw is None else ViewState.from_bytes(raw)
    if state.epoch is None:
        raise StoreNotReadyError(f"feature view {view.name!r} is not in the online store yet")
    sampled = list(itertools.islice(_record_keys(store, keys.epoch(state.epoch)), sample))
    pairs = zip(sampled, store.get_many(sampled), strict=True)
    stored = {key: value for key, value in pairs if value is not None}
    if not stored:
        raise StoreNotReadyError(
            f"the online store contains no record of feature view {view.name!r}"
        )
    layout = RecordLayout(view)
    records = layout.decode(list(stored.values()))
    per_level = records.cells.rows["key"] >> 56
    levels = tuple(
        LevelSize(format_duration(step), most, float((per_level == level).sum()) / len(stored))
        for level, (step, most) in enumerate(zip(view.levels_ms, most_cells(view), strict=True))
    )
    record_bytes = sum(map(len, stored.values())) / len(stored)
    key_bytes = sum(map(len, stored)) / len(stored)
    cells, text_bytes = len(records.cells), int(records.headers["tail"].sum())
    packed = sum(map(len, stored.values())) - len(stored) * HEADER_SIZE - text_bytes
    overhead: float = KEY_OVERHEAD
    if isinstance(store, ReportsMemory):
        reported = [size for size in store.memory_of(list(stored)) if size is not None]
        if reported:
            overhead = (
                sum(reported) / len(reported) + UNREPORTED_OVERHEAD - record_bytes - key_bytes
            )
    return ViewSize(
        view.name,
        f"{len(stored):,} records measured",
        levels,
        cells / len(stored),
        packed / cells if cells else 0.0,
        text_bytes / len(stored),
        record_bytes,
        key_bytes,
        overhead,
    )


@dataclass(frozen=True, slots=True)
class TotalSize:
    """Bytes for ``entities`` of each view; ``peak_bytes`` during a rebuild of the largest view."""

    entities: int
    bytes: float
    peak_bytes: float
    nodes: int


def total(
    sizes: Sequence[ViewSize], entities: int, node_bytes: float, headroom: float = 0.25
) -> TotalSize:
    """Return the memory for ``entities`` of each view, and the number of nodes of ``node_bytes``.

    A rebuild keeps the old records until the new ones are complete, one view at a time, and
    a share of ``headroom`` of each node stays free for fragmentation, replicas and clients.
    """
    view_bytes = [size.entity_bytes * entities for size in sizes]
    peak = sum(view_bytes) + max(view_bytes, default=0.0)
    nodes = max(1, math.ceil(peak / (node_bytes * (1 - headroom))))
    return TotalSize(entities, sum(view_bytes), peak, nodes)


def _key_bytes(view: CompiledView, project: str) -> float:
    stem = len(ViewKeys(project, view.name, PREFIX).bucket("00000000", view.buckets).record_stem)
    parts = [_KEY_BYTES.get(kind.text, 16) for kind in view.keys.values()]
    return stem + sum(parts) + len(parts) - 1


def _record_keys(store: OnlineStore, prefix: bytes) -> Iterable[bytes]:
    for page in store.scan(prefix):
        yield from (key for key in page if b"}:" in key)
