"""Repair on Flink: corrupted tiles equal those of the events again, and the job continues."""

from __future__ import annotations

import json
from datetime import date, timedelta

import pyarrow as pa
import pytest
from click.testing import CliRunner

from paimon_features.cli import cli
from paimon_features.core.errors import GenerationError
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions import FeatureRef, FeatureView
from paimon_features.lake import append_arrow, latest_snapshot, read_arrow, snapshots
from paimon_features.lake.metadata.snapshots import BATCH_IDENTIFIER
from paimon_features.online.materialize import Materializer
from paimon_features.online.store.memory_store import MemoryStore
from paimon_features.project import Project
from paimon_features.serving.reading.fetcher import FeatureFetcher
from paimon_features.testing.reference.compare import differences
from paimon_features.testing.reference.features import answer
from paimon_features.testing.reference.tiler import event_rows
from paimon_features.tiles.flink.repair import repair
from paimon_features.tiles.flink.submission import submit
from paimon_features.tiles.jobs.target import TileTarget
from tests.flink.feed import Feed

pytestmark = pytest.mark.flink

ALWAYS = (-400, 20_000)
"""Days around all events of the feed."""


def tamper(target: TileTarget, rows: pa.Table) -> None:
    """Commit rows to the tile table as its job, like a bug would."""
    append_arrow(
        target.lake,
        target.tables[0],
        rows,
        commit_user=f"{target.record().commit_user}_mistake",
        commit_identifier=BATCH_IDENTIFIER,
    )


def newest(target: TileTarget) -> int:
    found = latest_snapshot(target.lake, target.tables[0])
    assert found is not None
    return found.id


@pytest.mark.long
def test_a_corrupted_table_is_repaired_and_its_job_continues_exactly(
    target: TileTarget, feed: Feed, spend: FeatureView
) -> None:
    #  tile job  |--- 1st ---|                       |- 2nd, by the repair -|   |- 3rd, resumed -|
    #  tampered                 twice, too much, gone                        fixed
    with pytest.raises(GenerationError, match="has no tiles yet"):
        repair(target, *ALWAYS)
    feed.commit(80)
    submit(target, bounded=True)
    clean = repair(target, *ALWAYS)
    assert (clean.ok, clean.days, clean.snapshot) == (True, (), None)
    assert clean.tiles == read_arrow(target.lake, target.tables[0]).num_rows > 0
    store = MemoryStore()
    worker = Materializer(target.lake, "shop", target.view, target.record, store, lease_ttl_ms=None)
    assert worker.run_once().caught_up

    tiles = read_arrow(target.lake, target.tables[0]).sort_by([("tile_day", "ascending")])
    twice = tiles.slice(0, 3)
    days = twice.column("tile_day").to_pylist()
    nobody = tiles.slice(tiles.num_rows - 1).set_column(
        1, tiles.schema.field(1), pa.array([99], pa.int64())
    )
    tamper(target, pa.concat_tables([twice, nobody]))
    before = newest(target)
    shown = repair(target, *ALWAYS)
    assert not shown.ok
    assert newest(target) == before
    assert sum(day.spurious for day in shown.days) == 1
    assert sum(day.changed for day in shown.days) == 3
    assert {day.day for day in shown.days} == {*days, tiles.column("tile_day")[-1].as_py()}
    reported = [str(change) for day in shown.days for change in day.examples]
    assert any(line.startswith("(99) ") and line.endswith(" -> None") for line in reported)
    part = repair(target, days[0], days[0])
    assert [day.day for day in part.days] == [days[0]]

    feed.commit(20)
    with pytest.raises(GenerationError, match=r"1 snapshots of .* behind, .* --bounded"):
        repair(target, *ALWAYS)
    fixed = repair(target, *ALWAYS, fix=True)
    assert fixed.ok
    assert fixed.snapshot == newest(target)
    feed.assert_exact()
    assert repair(target, *ALWAYS).days == ()
    assert [s.kind for s in snapshots(target.lake, target.tables[0])][-1] == "OVERWRITE"

    result = worker.run_once()
    assert result.caught_up
    _assert_online(spend, feed, store)
    feed.commit(20)
    assert submit(target, bounded=True, resume=True).resumed is not None
    feed.assert_exact()
    assert worker.run_once().caught_up
    _assert_online(spend, feed, store)


def _assert_online(spend: FeatureView, feed: Feed, store: MemoryStore) -> None:
    events = event_rows(pa.concat_tables(feed.events))
    fetcher = FeatureFetcher("shop", [spend.compiled], store)
    refs = [FeatureRef("spend", f.name) for f in spend.compiled.features]
    high_ms = max(t for e in events if (t := e["at_ms"]) is not None and t < 20_000 * DAY_MS)
    for as_of_ms in (high_ms, high_ms + 1, high_ms + DAY_MS):
        customers = [1, 2, -4, 2**40]
        rows = event_rows(fetcher.get(refs, {"customer_id": customers}, as_of_ms).table)
        for customer, row in zip(customers, rows, strict=True):
            mine = [e for e in events if e["customer_id"] == customer]
            expected = answer(spend, mine, as_of_ms, online=True)
            assert differences(spend, mine, as_of_ms, expected, row, online=True) == []


@pytest.mark.long
def test_tiles_without_events_are_removed_and_missing_ones_restored(
    project: Project, target: TileTarget, feed: Feed
) -> None:
    feed.commit(40)
    submit(target, bounded=True)
    tiles = read_arrow(target.lake, target.tables[0])
    gone = tiles.column("tile_day")[0].as_py()
    commit = target.lake.table(target.tables[0]).new_batch_write_builder().new_commit()
    commit.truncate_partitions([{"tile_day": gone}])
    commit.close()
    tamper(
        target, tiles.slice(0, 1).set_column(0, tiles.schema.field(0), [pa.array([7], pa.int32())])
    )
    around = ["backfill", "spend", "--from", "1969-01-01", "--to", "2030-01-01"]
    around += ["--project", str(project.config.root)]
    shown = CliRunner().invoke(cli, [*around, "--dry-run"])
    assert shown.exit_code == 1, shown.output
    assert "1970-01-08: tiles of 1 entities: 1 too much" in shown.output
    assert "are missing" in shown.output
    assert shown.output.endswith("nothing was written; without --dry-run these days are replaced\n")
    fixed = CliRunner().invoke(cli, [*around, "--json"])
    assert fixed.exit_code == 0, fixed.output
    reported = json.loads(fixed.stdout)
    by_day = {day["day"]: (day["missing"] > 0, day["spurious"]) for day in reported["days"]}
    assert by_day == {str(date(1970, 1, 1) + timedelta(gone)): (True, 0), "1970-01-08": (False, 1)}
    assert reported["snapshot"] == newest(target)
    feed.assert_exact()
    wrong = CliRunner().invoke(cli, [*around, "--from", "2031-01-01"])
    assert wrong.exit_code == 2
    assert "--from 2031-01-01 is after --to 2030-01-01" in wrong.output


@pytest.mark.long
def test_nothing_is_compared_while_a_job_may_write(target: TileTarget, feed: Feed) -> None:
    feed.commit(10)
    submit(target, bounded=True)
    job = target.record().job
    target.update(job={**(job or {}), "state": "LOST"})
    with pytest.raises(GenerationError, match="its last job is LOST, so a commit of it may be"):
        repair(target, *ALWAYS)
    assert repair(target, *ALWAYS, fix=True).days == ()
    assert target.record().job != job
    feed.assert_exact()
