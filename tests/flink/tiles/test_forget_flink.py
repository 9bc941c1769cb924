"""A deleted entity stays deleted when the tile job resumes, also once older snapshots are gone."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner

from paimon_features.cli import cli
from paimon_features.core.errors import GenerationError
from paimon_features.core.types.schema import Int64
from paimon_features.lake import read_arrow
from paimon_features.lake.metadata.snapshots import snapshot_ids
from paimon_features.project import Project
from paimon_features.project.forget import Deletion, EntitySet
from paimon_features.testing.reference.tiler import event_rows
from paimon_features.tiles.flink.submission import submit
from paimon_features.tiles.jobs.target import TileTarget
from tests.chaos import part_of_chaos
from tests.flink.feed import Feed
from tests.tile_jobs import wrong_tiles

pytestmark = pytest.mark.flink


def assert_exact(feed: Feed) -> None:
    rows = event_rows(pa.concat_tables(feed.events))
    target = feed.target
    assert wrong_tiles(target.lake, feed.view, target.tables[0], rows) == []


@part_of_chaos("four jobs")
def test_a_tile_job_resumes_after_a_deletion_without_the_entity(
    project: Project, target: TileTarget, feed: Feed
) -> None:
    #  tile job  |- 1st -|            |- 2nd, resumed -|            |- 3rd, resumed -|
    #  customer 1         deleted                       expired
    entities = EntitySet.of(["customer_id=1"], {"customer_id": Int64})
    feed.commit(60)
    submit(target, bounded=True)
    feed.commit(10)
    with pytest.raises(GenerationError, match="submit spend --bounded"):
        Deletion(project, entities, online=False).carry_out()
    submit(target, bounded=True)
    done = Deletion(project, entities, online=False).carry_out()
    assert {table.table for table in done.tables if table.rows} >= {target.events, target.tables[0]}
    feed.events = [
        table.filter(pc.invert(pc.fill_null(pc.equal(table["customer_id"], 1), False)))
        for table in feed.events
    ]
    assert_exact(feed)

    feed.commit(20)
    assert submit(target, bounded=True, resume=True).resumed is not None
    assert_exact(feed)

    arguments = ["forget", "--entity", "customer_id=2", "--yes", "--no-online", "--expire-now"]
    found = CliRunner().invoke(cli, [*arguments, "--json", "--project", str(project.root)])
    assert found.exit_code == 0, found.output
    report = json.loads(found.stdout)
    assert report["remains"] == []
    for name in (target.events, target.tables[0]):
        assert len(snapshot_ids(target.lake, name)) == 1
        assert 2 not in read_arrow(target.lake, name, ["customer_id"])["customer_id"].to_pylist()
    feed.events = [
        table.filter(pc.invert(pc.fill_null(pc.equal(table["customer_id"], 2), False)))
        for table in feed.events
    ]
    feed.commit(20)
    assert submit(target, bounded=True, resume=True).resumed is not None
    assert_exact(feed)
