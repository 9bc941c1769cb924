"""Verify: online = tiles = raw events, on sampled entities and times.

Three independent computations of one value are compared: the online store's, the tile table joined
point in time, and the raw events through the reference implementation (oracle). The first two have
to equal the oracle's, to the bit where that is promised. Online includes the complete open tile in
sawtooth windows and offline does not; at times on a tile's edge, and with hop windows at any time,
all three have to be equal. A view with exact windows that the online store cannot compute is
compared without it; table views, which are only read from the lake, are left out. Interactions and
transformed features have to equal a row-by-row computation from the features read with them, on
both paths.

While events stream in, the three are not at the same point. Entities with events within the last
seconds are left out and counted, and differences are checked again until the waiting time is over:
only those that persist are reported.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.errors import VerificationError
from paimon_features.core.process.callbacks import OnMessage, OnPhase, ignore_message, ignore_phase
from paimon_features.core.times.clock import now_ms
from paimon_features.core.windows import DAY_MS, MIN_TIME_MS, floor_ms
from paimon_features.definitions import CompiledView, FeatureRef, Output, Selection
from paimon_features.definitions.aggregates import EVENT_TIME_MAX
from paimon_features.definitions.selection import Computation
from paimon_features.lake import iter_batches, latest_snapshot, read_arrow
from paimon_features.lake.metadata.snapshots import snapshot_as_of
from paimon_features.lake.reading.deltas import read_delta, read_file
from paimon_features.offline.reading.pinning import Pinner
from paimon_features.project import Features, Project
from paimon_features.serving.reading.fetcher import FeatureFetcher
from paimon_features.testing.reference.compare import differences
from paimon_features.testing.reference.features import Entered, Event, answer, entered
from paimon_features.testing.reference.interactions import apart, some_inputs, wrong_interactions
from paimon_features.testing.reference.transformed import wrong_transformed

Key = tuple[Any, ...]

RETRY_S = 1.0
KEYS_READ = 500_000
"""Most tiles that are read to sample entities from."""
PAIRS_KEPT = 5_000


@dataclass(frozen=True, slots=True)
class ParityDifference:
    """A value on one path that differs from that of the raw events."""

    view: str
    entity: Key
    as_of_ms: int
    path: str
    detail: str

    def __str__(self) -> str:
        entity = ", ".join(map(repr, self.entity))
        return f"{self.view} of ({entity}) at {self.as_of_ms}, {self.path}: {self.detail}"


@dataclass
class ParityReport:
    """The result of a comparison.

    ``compared`` counts values, ``moved`` entities left out because their events were too new,
    ``not_included`` the commits of events, by view, that its tile job has not read: they are in
    none of the three.
    ``largest`` is the largest relative difference of a number, allowed ones included, and
    ``pairs`` some (feature, online, raw) numbers to be drawn.
    """

    compared: int = 0
    entities: int = 0
    moved: int = 0
    not_included: dict[str, int] = field(default_factory=dict)
    largest: float = 0.0
    differences: list[ParityDifference] = field(default_factory=list)
    pairs: list[tuple[str, float, float]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether something was compared, and nothing differed."""
        return self.compared > 0 and not self.differences


def verify(
    project: Project,
    features: Features,
    *,
    sample: int = 50,
    times: int = 6,
    seed: int = 0,
    wait_s: float = 20.0,
    settle_s: float = 10.0,
    on_message: OnMessage = ignore_message,
    on_phase: OnPhase = ignore_phase,
) -> ParityReport:
    """Compare the three paths on ``sample`` entities per view, at ``times`` times each.

    An event is expected everywhere ``settle_s`` after its commit.

    Raises
    ------
    VerificationError
        If a view has no tiles yet, so that there is nothing to compare.
    StoreNotReadyError, OnlineStoreError
        If the online store cannot serve the read.
    """
    report = ParityReport()
    outputs = [o for o in project.refs(features) if not _of_tables(project, o)]
    if not outputs:
        raise VerificationError(
            "only table views are named; these are read from the lake only, so there is no second "
            "path to compare with; name a feature view or a service with one"
        )
    selection = Selection.of(outputs)
    sampled: dict[str, tuple[list[Key], list[int]]] = {}
    for view in project.views_of(outputs):
        wanted = [ref for ref in selection.refs if ref.view == view.name]
        check = _ViewParity(project, view, wanted, random.Random(seed), settle_s, report)
        entities = check.sample(sample)
        moments = check.times(times)
        sampled[view.name] = entities, moments
        deadline = time.monotonic() + wait_s
        while True:
            before = report.compared
            differences = check.compare(entities, moments, on_phase)
            compared = report.compared - before
            on_message(f"{view.name}: {compared:,} values, {len(differences)} differences")
            if not differences or time.monotonic() > deadline:
                break
            entities = sorted({difference.entity for difference in differences}, key=repr)
            time.sleep(RETRY_S)
        report.differences += differences
        if behind := report.not_included.get(view.name):
            on_message(f"{view.name}: not compared, {behind:,} commits of events not in its tiles")
    if selection.computed:
        check_all = _ComputedParity(project, selection, random.Random(seed))
        before = report.compared
        differences = check_all.compare(sampled, report)
        report.differences += differences
        names = ", ".join(map(str, selection.computed))
        compared = report.compared - before
        on_message(f"{names}: {compared:,} values, {len(differences)} differences")
    return report


def _of_tables(project: Project, output: Output) -> bool:
    """Return True if an output is computed from a table view, which is not materialized."""
    refs = [output] if isinstance(output, FeatureRef) else output.refs
    return any(ref.view in project.definitions.tables for ref in refs)


class _ComputedParity:
    """Compares computed features with the features of the same read, online and offline.

    As one read returns both, nothing has to settle before. Online is left out if a view has exact
    windows that the online store cannot compute.
    """

    def __init__(self, project: Project, selection: Selection, rng: random.Random) -> None:
        self.project = project
        self.rng = rng
        # an interaction that is only transformed is an output, too: its parts are verified with it
        parts = [part for transformed in selection.transformed for part in transformed.parts]
        self.selection = Selection.of(
            list(dict.fromkeys([*selection.refs, *selection.interactions, *parts]))
            + list(selection.transformed)
        )
        self.views = project.views_of(self.selection.outputs)

    def compare(
        self, sampled: Mapping[str, tuple[list[Key], list[int]]], report: ParityReport
    ) -> list[ParityDifference]:
        """Return the differences; ``sampled`` has entities and times of each view."""
        tile_ms = math.lcm(*(view.tile_ms for view in self.views))
        on_edge = max(moments[0] for _, moments in sampled.values())
        after = max(max(moments[:2]) for _, moments in sampled.values())
        keys = self._keys({name: entities for name, (entities, _) in sampled.items()})
        entities = list(zip(*(array.to_pylist() for array in keys.values()), strict=True))
        count = len(entities)
        inputs = some_inputs(self.rng, self.selection.inputs, count)
        fetcher = None
        if all(view.is_online for view in self.views):
            fetcher = FeatureFetcher(self.project.name, self.views, self.project.store)
        differences: list[ParityDifference] = []
        for as_of_ms in (-(-on_edge // tile_ms) * tile_ms, after):
            times = pa.repeat(pa.scalar(as_of_ms), count)
            rows = pa.table({**keys, **inputs, "event_time_ms": times})
            tiles = self.project.offline.get_historical_features(self.selection.outputs, rows)
            wrong = {"tiles": self._wrong(tiles, inputs)}
            if fetcher is not None:
                online = fetcher.get(self.selection.outputs, keys, as_of_ms, inputs).table
                wrong["online"] = self._wrong(online, inputs)
                wrong["online and tiles"] = [*apart(self.selection, online, tiles)]
            report.compared += min(len(wrong), 2) * count * len(self.selection.computed)
            differences += [
                ParityDifference(computation.name, entities[row], as_of_ms, path, detail)
                for path, of_path in wrong.items()
                for computation, row, detail in of_path
            ]
        return differences

    def _wrong(
        self, table: pa.Table, inputs: Mapping[str, pa.Array]
    ) -> list[tuple[Computation, int, str]]:
        return [
            *wrong_interactions(self.selection, table, inputs),
            *wrong_transformed(self.selection, table),
        ]

    def _keys(self, entities: Mapping[str, list[Key]]) -> dict[str, pa.Array]:
        """Return keys of all views at once; shared keys are chosen by the views with most keys."""
        views = sorted(self.views, key=lambda view: -len(view.keys))
        drawn: list[dict[str, Any]] = []
        for _ in range(max(map(len, entities.values()))):
            row: dict[str, Any] = {}
            for view in views:
                entity = self.rng.choice(entities[view.name])
                row = {**dict(zip(view.keys, entity, strict=True)), **row}
            drawn.append(row)
        return {
            name: pa.array([row[name] for row in drawn], kind.arrow)
            for view in views
            for name, kind in view.keys.items()
        }


class _ViewParity:
    """The comparison of one view."""

    def __init__(
        self,
        project: Project,
        view: CompiledView,
        refs: Sequence[FeatureRef],
        rng: random.Random,
        settle_s: float,
        report: ParityReport,
    ) -> None:
        self.project = project
        self.view = view
        self.refs = refs
        self.rng = rng
        self.settle_s = settle_s
        self.report = report
        self.definition = project.definitions.view(view.name)
        self.table = project.generation(view).table
        self.fetcher = (
            project.online.fetcher([str(ref) for ref in refs]) if view.is_online else None
        )
        self.high_ms = MIN_TIME_MS

    def sample(self, size: int) -> list[Key]:
        """Return some entities that have tiles; also finds the newest event time."""
        keys = list(self.view.keys)
        sampled: dict[Key, None] = {}
        read = 0
        for batch in iter_batches(self.project.lake, self.table, [*keys, EVENT_TIME_MAX.name]):
            # a tile whose events are all null there has none
            high = pc.max(batch.column(EVENT_TIME_MAX.name)).as_py()
            self.high_ms = max(self.high_ms, MIN_TIME_MS if high is None else high)
            if read < KEYS_READ:
                columns = [batch.column(key).to_pylist() for key in keys]
                sampled.update(dict.fromkeys(zip(*columns, strict=True)))
            read += batch.num_rows
        if not sampled:
            raise VerificationError(
                f"feature view {self.view.name!r} has no tiles yet; "
                f"run 'paimon-features submit {self.view.name}'"
            )
        entities = self.rng.sample(sorted(sampled), min(size, len(sampled)))
        self.report.entities += len(entities)
        return entities

    def times(self, count: int) -> list[int]:
        """Return times to read at: on tile edges and between them, around and after the newest
        event."""
        tile = self.view.tile_ms
        first = self.high_ms - self.view.margin_ms + 1
        last = self.high_ms + (self.view.longest_ms or 30 * DAY_MS)
        chosen = [floor_ms(self.high_ms, tile) + tile, self.high_ms + 1]
        while len(chosen) < count:
            as_of_ms = self.rng.randint(first, self.rng.choice((self.high_ms, last)))
            on_edge = floor_ms(as_of_ms, tile) + tile
            chosen.append(as_of_ms if len(chosen) % 2 else on_edge)
        return chosen[:count]

    def compare(
        self, entities: Sequence[Key], moments: Sequence[int], on_phase: OnPhase
    ) -> list[ParityDifference]:
        """Return the differences of all entities that have settled."""
        settled_ms = now_ms() - int(self.settle_s * 1000)
        online, offline = {}, {}
        for number, as_of_ms in enumerate(moments):
            on_phase(
                f"reading {self.view.name}", number * len(entities), len(entities) * len(moments)
            )
            online[as_of_ms] = self._online(entities, as_of_ms)
            offline[as_of_ms] = self._offline(entities, as_of_ms)
        on_phase(f"reading the events of {self.view.name}", 0, 0)
        events = {
            entity: entered(self.definition, rows)
            for entity, rows in self._events(entities).items()
        }
        moving = self._touched_since(settled_ms)
        self.report.moved += len(moving & set(entities))
        differences = []
        for i, entity in enumerate(entities):
            on_phase(f"computing {self.view.name}", i, len(entities))
            if entity in moving:
                continue
            for as_of_ms in moments:
                entity_events = events.get(entity, Entered())
                differences += self._check(
                    entity, as_of_ms, entity_events, online[as_of_ms][i], offline[as_of_ms][i]
                )
        return differences

    def _check(
        self,
        entity: Key,
        as_of_ms: int,
        events: Entered,
        online: dict[str, Any] | None,
        offline: dict[str, Any],
    ) -> list[ParityDifference]:
        wrong = []
        for path, values, whole in (("online", online, True), ("tiles", offline, False)):
            if values is None:
                continue
            expected = answer(self.definition, events, as_of_ms, online=whole)
            self.report.compared += len(values)
            every = {**expected.values, **values}
            texts = differences(self.definition, events, as_of_ms, expected, every, online=whole)
            wrong += [
                ParityDifference(self.view.name, entity, as_of_ms, path, text) for text in texts
            ]
            if whole:
                self._note_pairs(values, expected.values)
        # within a tile the set of known entities may differ, too: later ones are in the open tile
        at_border = self.view.horizon(as_of_ms) % self.view.tile_ms == 0
        for name, value in (online or {}).items() if at_border else ():
            if value != offline[name] and not _near(value, offline[name]):
                detail = f"{name}: {value!r}, but tiles: {offline[name]!r}"
                wrong.append(ParityDifference(self.view.name, entity, as_of_ms, "online", detail))
        return wrong

    def _note_pairs(self, values: dict[str, Any], expected: dict[str, Any]) -> None:
        for name, value in values.items():
            truth = expected[name]
            if isinstance(value, int | float) and isinstance(truth, int | float):
                if truth:
                    self.report.largest = max(
                        self.report.largest, abs(value - truth) / abs(float(truth))
                    )
                if len(self.report.pairs) < PAIRS_KEPT:
                    self.report.pairs.append((name, float(value), float(truth)))

    def _online(self, entities: Sequence[Key], as_of_ms: int) -> Sequence[dict[str, Any] | None]:
        if self.fetcher is None:
            return [None] * len(entities)
        response = self.fetcher.get(self.refs, self._columns(entities), as_of_ms)
        rows: list[dict[str, Any]] = response.table.select(response.features).to_pylist()
        return rows

    def _offline(self, entities: Sequence[Key], as_of_ms: int) -> list[dict[str, Any]]:
        columns = self._columns(entities)
        rows = pa.table({**columns, "event_time_ms": pa.repeat(pa.scalar(as_of_ms), len(entities))})
        texts = [str(ref) for ref in self.refs]
        table = self.project.get_historical_features(texts, rows)
        feature_rows: list[dict[str, Any]] = table.select(
            [ref.feature for ref in self.refs]
        ).to_pylist()
        return feature_rows

    def _columns(self, entities: Sequence[Key]) -> dict[str, pa.Array]:
        lists = zip(*entities, strict=True)
        return {
            name: pa.array(list(values), kind.arrow)
            for (name, kind), values in zip(self.view.keys.items(), lists, strict=True)
        }

    def _events(self, entities: Sequence[Key]) -> dict[Key, list[Event]]:
        """Return all raw events of the entities that the tiles contain."""
        keys = list(self.view.keys)
        where = {
            key: sorted({entity[i] for entity in entities}, key=repr) for i, key in enumerate(keys)
        }
        source = self.view.source
        pinner = Pinner(self.project.lake, None)
        _, _, pin = pinner.feature_view(self.view, self.project.generation)
        self.report.not_included[self.view.name] = pinner.not_included[self.view.name]
        wanted = set(entities)
        by_entity: dict[Key, list[Event]] = {}
        if pin.ref is None:
            return by_entity
        rows = read_arrow(
            self.project.lake, source.table, list(source.schema), pin.ref, where=where
        )
        for row in rows.to_pylist():
            entity = tuple(row[key] for key in keys)
            if entity in wanted:
                by_entity.setdefault(entity, []).append(row)
        return by_entity

    def _touched_since(self, time_ms: int) -> set[Key]:
        """Entities with events that were committed after ``time_ms``."""
        lake, table = self.project.lake, self.view.source.table
        settled = snapshot_as_of(lake, table, time_ms)
        newest = latest_snapshot(lake, table)
        keys = list(self.view.keys)
        touched: set[Key] = set()
        if newest is None:
            return touched
        for number in range(0 if settled is None else settled.id + 1, newest.id + 1):
            if number == 0:
                continue
            for file in read_delta(lake, table, number).files:
                if file.kind == "ADD":
                    rows = read_file(file, keys)
                    columns = [rows.column(key).to_pylist() for key in keys]
                    touched.update(zip(*columns, strict=True))
        return touched


def _near(left: Any, right: Any) -> bool:
    """Return True if two floats are equal up to the order of additions."""
    if not (isinstance(left, float) and isinstance(right, float)):
        return False
    return abs(left - right) <= 1e-9 * max(abs(left), abs(right), 1e-9)
