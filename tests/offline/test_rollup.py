"""Rolled-up tiles: the same answers from fewer rows, and never from other files than requested."""

from __future__ import annotations

import contextlib
import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.errors import DamagedFileError
from paimon_features.core.types.schema import Float64, Int64
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions import Entity, EventSource, FeatureView
from paimon_features.definitions.aggregates import Aggregate, Count, Max, Sum
from paimon_features.lake.table_folders import rollup_folder
from paimon_features.offline.reading.view_scan import ViewScan
from paimon_features.offline.rollup import RollupSummary, roll_up
from paimon_features.testing.generators import random_events
from paimon_features.testing.reference.compare import differences
from paimon_features.testing.reference.features import answer
from paimon_features.testing.reference.tiler import event_rows
from paimon_features.testing.sizes import every_seed, seeds
from tests import generators
from tests.lake.harm import harm
from tests.long_cases import quick_cases
from tests.offline.lake_of_views import LakeOfViews, partition_days

LATER_MS = 40_000_000_000_000
"""A clock by which all days have ended."""


def rolled(lake: LakeOfViews, view: FeatureView, now_ms: int = LATER_MS) -> RollupSummary:
    compiled = view.compiled
    return roll_up(lake.lake, compiled, lake.generation(compiled), now_ms)


def with_lifetimes(rng: random.Random, view: FeatureView) -> FeatureView:
    """The view, with a lifetime in place of the first window of some aggregates."""

    def endless(one: Aggregate) -> Aggregate:
        if one.kind == "rate" or rng.random() < 0.3:
            return one
        return replace(one, windows=[None, *[w for w in one.windows or () if w is not None][1:]])

    return replace(view, features=[endless(one) for one in view.features])


def far_rows(rng: random.Random, as_of_ms: list[int]) -> list[int]:
    """Times as a training set has them: often the same ones, at midnight, or far behind."""
    chosen = rng.sample(as_of_ms, min(len(as_of_ms), rng.choice((1, 3, 40))))
    ahead = rng.choice((0, 0, DAY_MS, 33 * DAY_MS, 1500 * DAY_MS))
    midnight = rng.random() < 0.5
    picked = (rng.choice(chosen) + ahead for _ in as_of_ms)
    return [q // DAY_MS * DAY_MS if midnight else q for q in picked]


@pytest.mark.parametrize("seed", seeds(5))
def test_random_views_read_with_rollups_equal_the_oracle(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    view = with_lifetimes(rng, generators.random_view(rng, offline_only=True))
    events = random_events(rng, view, 60)
    lake = LakeOfViews(tmp_path, view, partition_days=partition_days(seed))
    cuts = sorted(rng.sample(range(events.num_rows), 2))
    parts = (events[: cuts[0]], events[cuts[0] : cuts[1]], events[cuts[1] :])
    pins = []
    for i, part in enumerate(parts):
        if part.num_rows:
            lake.commit(part)
        if i < 2 or rng.random() < 0.5:
            rolled(lake, view)  # the others are late: some units are stale
        pins.append(lake.store.pin(lake.refs()).pins)
    for seen in range(3):  # older pins too
        raw = [event for part in parts[: seen + 1] for event in event_rows(part)]
        keys, as_of_ms = generators.random_rows(rng, view, events, 30)
        as_of_ms = far_rows(rng, as_of_ms)
        rows = keys.append_column("event_time_ms", pa.array(as_of_ms, pa.int64()))
        got = lake.store.get_historical_features(lake.refs(), rows, statuses=True, as_of=pins[seen])
        names = [f.name for f in view.compiled.features]
        values = event_rows(got.select(names))
        statuses = got.select([f"{name}__status" for name in names]).to_pylist()
        for i, key in enumerate(event_rows(keys)):
            own = [e for e in raw if all(e[k] == v and v is not None for k, v in key.items())]
            expected = answer(view, own, as_of_ms[i])
            reported = {name: statuses[i][f"{name}__status"] for name in names}
            assert not differences(view, own, as_of_ms[i], expected, values[i], reported), (
                key,
                as_of_ms[i],
            )


CLICKS = EventSource("clicks", schema={"user": Int64, "t": Int64, "x": Float64}, event_time="t")
TOTALS = FeatureView(
    "totals",
    source=CLICKS,
    entity=Entity("user", keys={"user": Int64}),
    features=[Sum("x", windows=[None, "30d"], scale=2), Count(), Max("x", windows=["90d"])],
)
DAYS = 70


def clicks(days: range, per_day: int = 24, users: int = 2) -> pa.Table:
    times = [day * DAY_MS + n * (DAY_MS // per_day) for day in days for n in range(per_day)]
    each = [(user, t, (t // 1000 + user) % 97 / 4) for t in times for user in range(users)]
    columns = dict(zip(("user", "t", "x"), map(list, zip(*each, strict=True)), strict=True))
    return pa.table(columns, schema=pa.schema({"user": "int64", "t": "int64", "x": "float64"}))


class Totals(LakeOfViews):
    """Seventy days of one view; ``read`` returns the answers and what was read for them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, TOTALS)
        self.raw = event_rows(clicks(range(DAYS)))

    def read(
        self, *as_of_ms: int, as_of: object = None
    ) -> tuple[list[dict[str, object]], int, int]:
        """Answers of both users, the rows of tile files read, how many of the files are rollups."""
        rows = pa.table({"user": [0, 1] * len(as_of_ms), "event_time_ms": np.repeat(as_of_ms, 2)})
        pinned = self.store.pin(self.refs(), as_of=as_of)  # type: ignore[arg-type]
        (read,) = pinned.reads
        needs = read.needs()
        needs.observe(np.array(as_of_ms, np.int64), np.zeros(len(as_of_ms), np.int64))
        files = ViewScan(self.lake, read, needs, range(3)).tile_files
        made = [file for file in files if "/rollups/" in file.path]
        got = pinned.read(rows).drop_columns(["event_time_ms", "user"]).to_pylist()
        return got, sum(file.rows for file in files), len(made)

    def expected(self, *as_of_ms: int) -> list[dict[str, object]]:
        return [
            answer(TOTALS, [e for e in self.raw if e["user"] == user], q).values
            for q in as_of_ms
            for user in (0, 1)
        ]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template")
    Totals(folder).commit(clicks(range(DAYS)))
    return folder


@pytest.fixture
def totals(tmp_path: Path, template: Path) -> Totals:
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    return Totals(tmp_path)


def test_a_fresh_rollup_is_read_in_place_of_its_tiles(totals: Totals) -> None:
    q = DAYS * DAY_MS
    before, tiles, none = totals.read(q)
    assert (tiles, none) == (2 * 24 * DAYS, 0)
    done = rolled(totals, TOTALS, q + DAY_MS)
    assert done.created > DAYS
    after, rows, found = totals.read(q)
    assert after == before == totals.expected(q)
    # a window begins at day 40: eight times eight days, then six days
    assert rows == 2 * (8 + 6)
    assert found > 0


def test_days_in_which_a_window_begins_or_ends_are_read_from_tiles(totals: Totals) -> None:
    rolled(totals, TOTALS, DAYS * DAY_MS + DAY_MS)
    q = 40 * DAY_MS + 7 * 3_600_000
    got, rows, _ = totals.read(q)
    assert got == totals.expected(q)
    assert rows == 2 * (1 + 8 + 3 + 24)  # a window begins at day 10, all end within day 40
    many = [d * DAY_MS + 3_600_000 for d in range(DAYS + 1)]  # a cut in every day: all from tiles
    got, rows, found = totals.read(*many)
    assert got[-4:] == totals.expected(*many[-2:])
    assert (rows, found) == (2 * 24 * DAYS, 0)


@pytest.mark.long
def test_a_stale_unit_is_read_from_what_is_below_it_until_it_is_computed_again(
    totals: Totals,
) -> None:
    q = DAYS * DAY_MS
    rolled(totals, TOTALS, q + DAY_MS)
    old = totals.store.pin(totals.refs()).pins
    old_answers = totals.expected(q)
    _, fresh, _ = totals.read(q)
    late = pa.table({"user": [0], "t": [3 * DAY_MS + 5], "x": [1000.0]})
    totals.commit(late)
    totals.raw += event_rows(late)
    got, rows, _ = totals.read(q)
    assert got == totals.expected(q) != old_answers
    # in one bucket the first eight days fall apart into days, of which one is made of tiles
    bucket_users = 2 if rows - fresh > 7 + 24 else 1
    assert rows == fresh + bucket_users * (7 + 24 - 1) + 1
    assert totals.read(q, as_of=old)[0] == old_answers
    assert totals.read(q, as_of=old)[1] == fresh, "what an older snapshot sees is still rolled up"

    again = rolled(totals, TOTALS, q + DAY_MS)
    assert (again.created, again.deleted) == (3, 0), "1, 8 and 64 days, nothing else"
    assert totals.read(q)[:2] == (totals.expected(q), fresh)
    assert rolled(totals, TOTALS, q + 2 * DAY_MS).deleted == 3
    assert totals.read(q, as_of=old)[0] == old_answers, "from tiles again"
    assert rolled(totals, TOTALS, q + 2 * DAY_MS).created == 0


def test_a_rollback_finds_the_rollups_of_before(totals: Totals) -> None:
    q = DAYS * DAY_MS
    rolled(totals, TOTALS, q + DAY_MS)
    expected, fresh, _ = totals.read(q)
    totals.commit_tiles(clicks(range(10, 12)))  # of a job that ran twice
    rolled(totals, TOTALS, q + DAY_MS)
    assert totals.read(q)[0] != expected
    totals.lake.table("tiles_totals_g1").rollback_to(1)
    assert totals.read(q)[:2] == (expected, fresh)
    assert rolled(totals, TOTALS, q + DAY_MS).created == 0


def test_days_that_have_not_ended_are_left_alone(totals: Totals) -> None:
    assert rolled(totals, TOTALS, DAY_MS).created == 0
    assert rolled(totals, TOTALS, DAY_MS + 3_600_000).created > 0
    assert totals.read(DAYS * DAY_MS)[0] == totals.expected(DAYS * DAY_MS)


def test_what_would_not_halve_the_rows_is_not_kept_and_not_tried_again(tmp_path: Path) -> None:
    lake = LakeOfViews(tmp_path, TOTALS)
    lake.commit(clicks(range(4), per_day=1, users=1))
    first = rolled(lake, TOTALS)
    assert first.not_worth == 6, "a tile a day, and eight days alone, stay what they are"
    assert first.created == 1, "four of them are one"
    again = rolled(lake, TOTALS)
    assert (again.created, again.not_worth, again.fresh) == (0, 0, 7)


def test_float_sums_of_a_pinned_read_are_the_same_bits_whatever_is_rolled_up(
    tmp_path: Path,
) -> None:
    plain = replace(TOTALS, features=[Sum("x", windows=[None])])
    lake = LakeOfViews(tmp_path, plain)
    lake.commit(clicks(range(3)))
    rolled(lake, plain)
    (newest,) = lake.store.pin(lake.refs()).reads
    assert newest.rollups is not None
    pins = lake.store.pin(lake.refs()).pins
    for pinned in (
        lake.store.pin(lake.refs(), as_of=pins),
        lake.store.pin(lake.refs(), repeatable=True),
    ):
        assert pinned.reads[0].rollups is None


def test_rollups_go_with_their_table(totals: Totals) -> None:
    rolled(totals, TOTALS)
    folder = rollup_folder(totals.lake, "tiles_totals_g1")
    assert folder.is_dir()
    totals.lake.drop("tiles_totals_g1")
    assert not folder.exists()


def test_without_its_rollups_a_table_is_read_from_tiles(totals: Totals) -> None:
    q = DAYS * DAY_MS
    made = rolled(totals, TOTALS, q + DAY_MS).created
    before, _, _ = totals.read(q)
    shutil.rmtree(totals.lake.side_folder / "rollups")
    after, rows, found = totals.read(q)
    assert after == before == totals.expected(q)
    assert (rows, found) == (2 * 24 * DAYS, 0)
    assert rolled(totals, TOTALS, q + DAY_MS).created == made


@pytest.mark.long
@every_seed(20)
def test_a_damaged_rollup_is_missing_or_an_error(totals: Totals, seed: int) -> None:
    rolled(totals, TOTALS)
    as_of_ms = 65 * DAY_MS
    expected = totals.expected(as_of_ms)
    files = sorted(path for path in rollup_files(totals) if path.suffix != ".none")
    dice = random.Random(seed)
    path = dice.choice(files)
    content = path.read_bytes()
    others = [other for other in files if other.suffix == path.suffix]
    how = harm(dice, path, others)
    with contextlib.suppress(DamagedFileError):  # of a page, which is verified when it is read
        assert totals.read(as_of_ms)[0] == expected, how
    path.write_bytes(content)


@pytest.mark.parametrize("suffix", quick_cases([".parquet", ".json"], ".parquet"))
def test_rollups_in_the_place_of_others_are_computed_again(totals: Totals, suffix: str) -> None:
    made = rolled(totals, TOTALS)
    before = totals.read(65 * DAY_MS)
    assert before[2] > 0
    files = sorted(path for path in rollup_files(totals) if path.suffix == suffix)
    contents = [path.read_bytes() for path in files]
    for path, content in zip(files, contents[1:] + contents[:1], strict=True):
        path.write_bytes(content)
    answers, rows, rollups = totals.read(65 * DAY_MS)
    assert (answers, rollups) == (before[0], 0)
    assert rows > before[1]
    assert rolled(totals, TOTALS).created == made.created
    assert totals.read(65 * DAY_MS) == before


def rollup_files(totals: Totals) -> list[Path]:
    return list(rollup_folder(totals.lake, "tiles_totals_g1").glob("*/*"))
