"""What was read once is read again as it was, or is an error that says why it cannot be.

Tables are emptied, rolled back, dropped and replaced by other generations; snapshot numbers begin
again from 1. No time and no pin may then name other rows than those that were there.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from paimon_features.core.configuration.project_config import FlinkConfig
from paimon_features.core.errors import (
    GenerationError,
    RequestError,
    SnapshotExpiredError,
    TableError,
    UnfilledError,
)
from paimon_features.core.times.clock import now_ms
from paimon_features.core.types.schema import Int64
from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.definitions import (
    CompiledView,
    Definitions,
    Entity,
    EventSource,
    FeatureRef,
    FeatureService,
    FeatureView,
)
from paimon_features.definitions.aggregates import Count, Max, Min, Sum
from paimon_features.lake import Lake, append_arrow, iter_batches, read_arrow
from paimon_features.lake.metadata.rollback import rollback
from paimon_features.lake.metadata.snapshots import snapshot, snapshot_ids
from paimon_features.lake.side_folder import generations
from paimon_features.lake.side_folder.generations import GenerationRecord
from paimon_features.offline.reading.pinning import AsOf, Pin
from paimon_features.offline.store import OfflineStore
from paimon_features.offline.training_set import build_training_set, pins_of
from paimon_features.project.planning.drop import plan_drop
from paimon_features.project.planning.plan import apply_plan
from paimon_features.testing.reference.features import Event
from paimon_features.testing.reference.tiler import tile_table
from paimon_features.testing.sizes import every_seed
from paimon_features.tiles.jobs.target import TileTarget

SOURCE = EventSource("shop", schema={"user": Int64, "t": Int64, "x": Int64}, event_time="t")
ROWS = pa.table({"user": [1, 2, 3], "event_time_ms": [DAY_MS, DAY_MS, 12 * HOUR_MS + 1_800_001]})
REFS = [FeatureRef("spend", "count_30d"), FeatureRef("spend", "sum_x_30d")]

WITH_MAX, HOURLY = [Max("x", windows=["30d"])], {"tile": "1h"}
VARIANTS = (
    ([], {}),
    (WITH_MAX, {}),
    ([*WITH_MAX, Min("x", windows=["30d"])], {}),
    (WITH_MAX, HOURLY),
)


def view_of(variant: int) -> FeatureView:
    more, options = VARIANTS[variant]
    return FeatureView(
        "spend",
        source=SOURCE,
        entity=Entity("user", keys={"user": Int64}),
        features=[Count(windows=["30d"]), Sum("x", windows=["30d"]), *more],
        **options,
    )


@dataclass(frozen=True)
class Answer:
    """A read of the newest commits: when, what it read, and what it found."""

    time_ms: int
    pins: tuple[Pin, ...]
    table: pa.Table


class Shop:
    """A project of one view; tiles are made by the reference tiler, everything else is real."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lake = Lake.open(folder / "lake", "features")
        self.store = OfflineStore(self.lake, lambda _: self.view.compiled, self.generation)
        self.events: list[Event] = []
        self.tiled: dict[str, int] = {}
        self.lengths: dict[tuple[str, int], int] = {}
        self.define(0)

    def define(self, variant: int) -> None:
        self.tick()
        self.variant, self.view = variant, view_of(variant)
        self.definitions = Definitions.of([FeatureService("model", [self.view])])
        apply_plan(self.lake, self.definitions, now_ms())

    def generation(self, view: CompiledView) -> GenerationRecord:
        record = generations.active(self.lake, view.name)
        if record is None or record.fingerprint != view.fingerprint:
            raise GenerationError("the definition is not switched to")
        return record

    @property
    def fitting(self) -> GenerationRecord:
        """The generation of the current definition."""
        fingerprint = self.view.compiled.fingerprint
        records = generations.load(self.lake, "spend")
        return next(r for r in records if r.fingerprint == fingerprint)

    def tick(self) -> int:
        """A time at which nothing was committed, later than every commit."""
        time = start = now_ms()
        while time <= start:
            time = now_ms()
        return time

    def write(self, *events: tuple[int, int, int]) -> None:
        self.tick()
        new = [dict(zip(("user", "t", "x"), event, strict=True)) for event in events]
        self.events += new
        rows = [
            {**event, "event_day": event["t"] // DAY_MS, "ingest_time_ms": now_ms()}
            for event in new
        ]
        table = pa.Table.from_pylist(rows, schema=self.lake.schema(SOURCE.table))
        append_arrow(self.lake, SOURCE.table, table)

    def backfill(self) -> None:
        """Tiles of all events that the current definition's generation lacks."""
        self.tick()
        table = self.fitting.table
        new = self.events[self.tiled.get(table, 0) :]
        if new:
            made = append_arrow(self.lake, table, tile_table(self.view, new))
            self.tiled[table] = self.lengths[table, made] = len(self.events)

    @property
    def target(self) -> TileTarget:
        record = self.fitting
        return TileTarget(
            "shop", self.lake, self.view.compiled, record.generation, self.folder, FlinkConfig()
        )

    def rebuild(self) -> None:
        self.tick()
        self.target.rebuild()
        self.tiled[self.fitting.table] = 0

    def roll_back(self, snapshot_id: int) -> None:
        self.tick()
        table = self.fitting.table
        rollback(self.lake, self.fitting, snapshot_id)
        self.tiled[table] = self.lengths[table, snapshot_id]

    def switch(self) -> None:
        self.tick()
        generations.activate(self.lake, "spend", self.fitting.generation)

    def drop(self, generation: int) -> None:
        self.tick()
        drop = plan_drop(self.lake, self.definitions, "feature_view", "spend", generation)
        drop.carry_out(self.lake, "shop", None, self.folder, now_ms())
        self.tiled.pop(drop.tables[0], None)

    def drop_view(self) -> None:
        self.tick()
        other = FeatureView("other", source=SOURCE, entity=self.view.entity, features=[Count()])
        definitions = Definitions.of([FeatureService("model", [other])])
        apply_plan(self.lake, definitions, now_ms())
        drop = plan_drop(self.lake, definitions, "feature_view", "spend")
        drop.carry_out(self.lake, "shop", None, self.folder, now_ms())
        self.tiled.clear()

    def expire(self, table: str) -> None:
        """The oldest snapshot's file is what expiry takes away first."""
        oldest = snapshot_ids(self.lake, table)[0]
        Path(self.lake.path(table), "snapshot", f"snapshot-{oldest}").unlink()

    def read(self, as_of: AsOf = None) -> pa.Table:
        return self.store.get_historical_features(REFS, ROWS, as_of=as_of, statuses=True)

    def answer(self) -> Answer:
        time = self.tick()
        pinned = self.store.pin(REFS, repeatable=True)
        return Answer(time, pinned.pins, pinned.read(ROWS, statuses=True))


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    shop = Shop(tmp_path)
    shop.write((1, 0, 5), (1, HOUR_MS, 6), (2, 0, 1), (3, HOUR_MS, 9))
    return shop


def numbers(answer: Answer) -> dict[str, int | None]:
    return {pin.table: pin.snapshot_id for pin in answer.pins}


def refs(answer: Answer) -> dict[str, int | str | None]:
    return {pin.table: pin.ref for pin in answer.pins}


def counts(table: pa.Table) -> list[tuple[int | None, str]]:
    columns = (table.column("count_30d"), table.column("count_30d__status"))
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def test_a_time_before_a_rebuild_is_an_error_and_not_an_empty_table(shop: Shop) -> None:
    #  tiles   none   1: 2 events   |emptied|   1 again: 3 events
    #  as_of        a             b           c                 d
    before_ms = shop.tick()
    shop.backfill()
    filled = shop.answer()
    assert counts(filled.table)[0] == (2, "PRESENT")
    shop.rebuild()
    emptied_ms = shop.tick()
    with pytest.raises(UnfilledError, match=r"never computed.*'paimon-features backfill spend'"):
        shop.read()
    shop.write((1, 2, 7))
    shop.backfill()
    again = shop.answer()
    assert counts(again.table)[0] == (3, "PRESENT")
    with pytest.raises(
        SnapshotExpiredError, match=r"'tiles_spend_g1': .* is gone; it was emptied at .* later"
    ):
        shop.read(filled.time_ms)
    for without_ms in (before_ms, emptied_ms):
        with pytest.raises(UnfilledError, match=f"none of its tiles .* by {without_ms} ms"):
            shop.read(without_ms)
    assert shop.read(again.time_ms) == again.table


def test_a_number_that_was_used_before_is_an_error_and_the_pin_names_the_commit(
    shop: Shop,
) -> None:
    shop.backfill()
    filled = shop.answer()
    assert shop.read(numbers(filled)) == shop.read(filled.pins) == shop.read(refs(filled))
    shop.rebuild()
    shop.write((1, 2, 7))
    shop.backfill()
    again = shop.answer()
    with pytest.raises(SnapshotExpiredError, match="snapshot 1 was pinned, which is ambiguous"):
        shop.read(numbers(filled))
    for pins in (filled.pins, refs(filled)):
        with pytest.raises(SnapshotExpiredError, match=r"snapshot 1@\w+ was pinned, but .* now 1@"):
            shop.read(pins)
    assert shop.read(again.pins) == shop.read(refs(again)) == again.table


def test_rows_of_a_number_are_those_of_its_commit_or_an_error(shop: Shop) -> None:
    table = "tiles_spend_g1"
    shop.write((1, 0, 5), (2, 0, 1), (3, 0, 9))
    shop.backfill()
    before = snapshot(shop.lake, table, 1)
    ways = {
        "read_arrow": lambda pin: read_arrow(shop.lake, table, snapshot_id=pin).num_rows,
        "iter_batches": lambda pin: sum(
            batch.num_rows for batch in iter_batches(shop.lake, table, snapshot_id=pin)
        ),
    }
    for read in ways.values():
        assert read(1) == read(before.ref) == 5
    shop.rebuild()
    shop.write((1, 2, 7))
    shop.backfill()
    now = snapshot(shop.lake, table, 1)
    for name, read in ways.items():
        for pin in (1, before.ref):
            with pytest.raises(SnapshotExpiredError, match="is now 1@"):
                pytest.fail(f"{name} of {pin}: {read(pin)}")
        assert read(now.ref) == read(None)


def test_an_earlier_time_reads_the_generation_that_was_active_then(shop: Shop) -> None:
    shop.backfill()
    first = shop.answer()
    shop.write((1, 2, 7))
    shop.define(1)
    shop.backfill()
    built = shop.tick()
    shop.switch()
    second = shop.answer()
    assert [pin.table for pin in first.pins] == ["tiles_spend_g1", "events_shop"]
    assert [pin.table for pin in second.pins] == ["tiles_spend_g2", "events_shop"]
    for as_of in (first.time_ms, first.pins, refs(first), numbers(first)):
        assert shop.read(as_of) == first.table
    # nothing was committed to generation 1 since, and generation 2 was not read yet
    assert counts(shop.read(built))[0] == (2, "PRESENT")
    newest = [FeatureRef("spend", "max_x_30d")]
    with pytest.raises(GenerationError, match="generation 1, which .* other partials p_max_x"):
        shop.store.get_historical_features(newest, ROWS, as_of=first.time_ms)
    shop.drop(1)
    with pytest.raises(SnapshotExpiredError, match="its generation 1 was read, .* dropped since"):
        shop.read(first.time_ms)
    assert shop.read(second.time_ms) == second.table
    with pytest.raises(SnapshotExpiredError, match="table 'tiles_spend_g1', which was dropped at"):
        shop.read(first.pins)


def test_a_generation_of_other_tiles_is_not_read_as_if_it_were_the_current_one(shop: Shop) -> None:
    shop.backfill()
    first = shop.answer()
    shop.define(3)
    shop.backfill()
    shop.switch()
    with pytest.raises(GenerationError, match="other events, keys or tile length"):
        shop.read(first.time_ms)


def test_a_time_between_a_commit_and_its_rollback_is_an_error(shop: Shop) -> None:
    shop.backfill()
    first = shop.answer()
    shop.write((1, 2, 7))
    shop.backfill()
    second = shop.answer()
    shop.roll_back(1)
    shop.backfill()
    third = shop.answer()
    with pytest.raises(SnapshotExpiredError, match="it was rolled back to snapshot 1 at"):
        shop.read(second.time_ms)
    with pytest.raises(SnapshotExpiredError, match="snapshot 2@"):
        shop.read(second.pins)
    with pytest.raises(SnapshotExpiredError, match="snapshot 2 was pinned, which is ambiguous"):
        shop.read(numbers(third))
    for answer in (first, third):
        assert shop.read(answer.time_ms) == shop.read(answer.pins) == answer.table
    assert shop.read(numbers(first)) == first.table


def test_a_view_that_is_dropped_and_applied_again_does_not_inherit_its_past(shop: Shop) -> None:
    shop.backfill()
    first, incarnation = shop.answer(), shop.fitting.incarnation
    shop.drop_view()
    shop.define(0)
    assert shop.fitting.incarnation == incarnation + 1
    for as_of in (first.time_ms, first.pins, numbers(first)):
        with pytest.raises(SnapshotExpiredError):
            shop.read(as_of)


def test_generations_of_a_dropped_view_are_not_those_of_the_view_applied_again(shop: Shop) -> None:
    #  generation   1 without tiles, dropped    2: tiles   | view dropped, applied | 1
    shop.define(1)
    shop.backfill()
    shop.switch()
    shop.drop(1)
    second = shop.answer()
    shop.drop_view()
    assert generations.views(shop.lake) == ["other"]
    shop.define(1)
    shop.backfill()
    with pytest.raises(SnapshotExpiredError, match="its generation 2 was read, .* dropped since"):
        shop.read(second.time_ms)
    later = shop.answer()
    assert shop.read(later.time_ms) == later.table


def test_a_table_that_is_emptied_while_it_is_read_is_an_error(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.backfill()
    pinned = shop.store.pin(REFS)
    shop.rebuild()
    shop.write((1, 2, 7))
    shop.backfill()
    with pytest.raises(SnapshotExpiredError, match="but the snapshot of this number is now"):
        pinned.read(ROWS)


def test_a_training_set_is_not_taken_for_that_of_an_emptied_table(shop: Shop) -> None:
    shop.backfill()
    build_training_set(shop.store, "churn", REFS, ROWS)
    pins = pins_of(shop.lake, "churn")
    assert [pin.table for pin in pins] == ["tiles_spend_g1", "events_shop"]
    assert build_training_set(shop.store, "churn", REFS, ROWS, as_of=pins).sources == pins
    messages: list[str] = []
    shop.target.empty(messages.append)
    assert messages == [
        "generation 1 of view 'spend': emptied, incarnation 1; training_churn was computed from "
        "it: it stays, but cannot be computed again"
    ]
    shop.tiled.clear()
    shop.backfill()
    with pytest.raises(SnapshotExpiredError, match="'tiles_spend_g1'"):
        build_training_set(shop.store, "churn", REFS, ROWS, as_of=pins)
    with pytest.raises(TableError, match="another training set .different: sources"):
        build_training_set(shop.store, "churn", REFS, ROWS)


TYPED = (SnapshotExpiredError, GenerationError, RequestError)


class History:
    """Random operations; every answer is read again by its time and its pins."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.shop, self.rng = Shop(folder), rng
        self.answers: list[Answer] = []
        self.write()
        self.shop.backfill()
        self.remember()

    def step(self) -> str:
        steps: list[Callable[[], object]] = [
            self.write, self.write, self.shop.backfill, self.shop.backfill,
            self.shop.switch, self.rebuild, self.define, self.roll_back, self.drop,
            self.apply_again, self.expire,
        ]  # fmt: skip
        chosen = self.rng.choice(steps)
        chosen()
        return getattr(chosen, "__name__", "")

    def write(self) -> None:
        many = range(self.rng.randrange(1, 4))
        times = [self.rng.randrange(DAY_MS) for _ in many]
        self.shop.write(*((self.rng.randrange(1, 4), t, self.rng.randrange(9)) for t in times))

    def rebuild(self) -> None:
        self.shop.rebuild()
        if self.rng.random() < 0.7:
            self.write()
            self.shop.backfill()

    def define(self) -> None:
        self.shop.define(self.rng.randrange(len(VARIANTS)))
        if self.rng.random() < 0.7:
            self.shop.backfill()
            self.shop.switch()

    def apply_again(self) -> None:
        if self.rng.random() < 0.5:
            self.shop.drop_view()
            self.define()

    def roll_back(self) -> None:
        ids = snapshot_ids(self.shop.lake, self.shop.fitting.table)
        if len(ids) > 1:
            self.shop.roll_back(self.rng.choice(ids[:-1]))
            if self.rng.random() < 0.7:
                self.write()
                self.shop.backfill()

    def drop(self) -> None:
        records = generations.load(self.shop.lake, "spend")
        unread = [r.generation for r in records if r.state == "retired"]
        if unread and self.shop.fitting.generation not in unread:
            self.shop.drop(self.rng.choice(unread))

    def expire(self) -> None:
        tables = [SOURCE.table, self.shop.fitting.table]
        several = [t for t in tables if len(snapshot_ids(self.shop.lake, t)) > 1]
        if several:
            self.shop.expire(self.rng.choice(several))

    def remember(self) -> None:
        try:
            answer = self.shop.answer()
        except GenerationError:
            return  # defined, and not switched to yet
        assert self.shop.read(answer.time_ms) == answer.table
        self.answers.append(answer)

    def replay(self, answer: Answer) -> None:
        forms = (answer.time_ms, answer.pins, refs(answer), numbers(answer))
        for as_of in forms:
            try:
                found = self.shop.read(as_of)
            except TYPED:
                continue
            assert found == answer.table, f"{as_of}: {counts(found)}, then {counts(answer.table)}"


@pytest.mark.long
@every_seed(3)
def test_an_answer_is_the_same_again_or_an_error(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng = random.Random(seed)
    history = History(tmp_path_factory.mktemp("shop"), rng)
    done = []
    try:
        for _ in range(15):
            done.append(history.step())
            history.remember()
            for answer in rng.sample(history.answers, min(2, len(history.answers))):
                history.replay(answer)
        for answer in history.answers:
            history.replay(answer)
    except BaseException as error:
        error.add_note(f"steps: {', '.join(done)}")
        raise
