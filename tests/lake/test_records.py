"""Each record of the side folder: what its loss means, and that it does not go unnoticed."""

from __future__ import annotations

import ast
import os
import re
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from paimon_features.cli.checks.check_records import ACCEPTED
from paimon_features.core.errors import LeaseLostError, RecordLostError
from paimon_features.core.types.schema import Int64
from paimon_features.lake import append_arrow
from paimon_features.lake.catalog import Lake
from paimon_features.lake.marked_records import LOSSES, Record, lost_records
from paimon_features.lake.metadata import rollback, table_history
from paimon_features.lake.ownership import lease
from paimon_features.lake.side_folder import generations
from paimon_features.lake.side_folder.generations import GenerationRecord
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.writing.table_writer import committed_identifiers

TABLE = "tiles_spend_g1"
ROWS = pa.table({"n": pa.array([1], pa.int64())})
GENERATION = GenerationRecord("spend", 1, TABLE, "abc", 1, state="active")


@pytest.fixture
def table(lake: Lake) -> str:
    lake.create(TableSpec(TABLE, {"n": Int64}, options={"bucket": "-1"}))
    return TABLE


def lose(lake: Lake, kind: str | None) -> None:
    shutil.rmtree(lake.side_folder / kind if kind else lake.side_folder)


@pytest.mark.parametrize("kind", ["commits", None])
def test_commits_a_repeated_commit_is_refused_once_no_snapshot_shows_it(
    lake: Lake, table: str, kind: str | None
) -> None:
    append_arrow(lake, table, ROWS, commit_user="run", commit_identifier=5)
    append_arrow(lake, table, ROWS)
    lose(lake, kind)
    assert committed_identifiers(lake, table, "run") == 5  # nothing expired: snapshots are enough
    os.remove(f"{lake.path(table)}/snapshot/snapshot-1")
    with pytest.raises(RecordLostError, match=r"commits/features.tiles_spend_g1/run.json.*twice"):
        append_arrow(lake, table, ROWS, commit_user="run", commit_identifier=5)
    # a later commit of the same user says it again, and so does acceptance
    assert committed_identifiers(lake, table, "other") is None
    (lost,) = lost_records(lake)
    lost.accept_loss()
    append_arrow(lake, table, ROWS, commit_user="run", commit_identifier=6)
    assert lost_records(lake) == []


@pytest.mark.parametrize("kind", ["generations", None])
def test_generations_a_view_with_tile_tables_does_not_start_again(
    lake: Lake, table: str, kind: str | None
) -> None:
    generations.save(lake, GENERATION)
    generations.update(lake, "spend", 1, incarnation=3)
    lose(lake, kind)
    assert generations.views(lake) == ["spend"]
    for refused in (generations.load, generations.active):
        with pytest.raises(RecordLostError, match=r"table 'tiles_spend_g1'.*features.spend.json"):
            refused(lake, "spend")
    with pytest.raises(RecordLostError):
        generations.save(lake, GENERATION)
    assert generations.load(lake, "other") == []
    lake.drop(table)  # the tiles are computed again, from the events
    assert generations.load(lake, "spend") == generations.views(lake) == []


@pytest.mark.parametrize("kind", ["leases", "leases/features.tiles_spend_g1", None])
def test_leases_nobody_becomes_the_owner_until_an_operator_says_so(
    lake: Lake, table: str, kind: str | None
) -> None:
    held = lease.acquire(lake, table)
    lose(lake, kind)
    if kind is not None and "/" in kind:
        (lake.side_folder / kind).mkdir()  # restored without its files
    with pytest.raises(LeaseLostError, match="claim 1 does not exist any more"):
        append_arrow(lake, table, ROWS)
    with pytest.raises(RecordLostError, match="two owners could commit.*jobs --release TABLE"):
        lease.acquire(lake, table)
    lease.release(lake, table)
    with lease.acquire(lake, table), pytest.raises(Exception, match="no longer held"):
        held.check()


@pytest.mark.parametrize("kind", ["removals", None])
def test_removals_an_earlier_time_is_not_read_from_another_table(
    lake: Lake, table: str, kind: str | None
) -> None:
    generations.save(lake, GENERATION)
    for _ in range(2):
        append_arrow(lake, table, ROWS)
    rollback.rollback(lake, GENERATION, 1)
    lose(lake, kind)
    with pytest.raises(RecordLostError, match="which snapshots of the table were removed"):
        table_history.removals(lake, table)
    with pytest.raises(RecordLostError):
        lake.drop(table)
    (lost,) = [record for record in lost_records(lake) if record.kind == "removals"]
    assert (lost.name, lost.path.name) == (table, f"features.{table}.json")
    assert "which snapshots of the table were removed" in str(lost.error())
    lost.accept_loss()
    assert table_history.removals(lake, table) == ()
    lake.drop(table)
    assert [record.kind for record in lost_records(lake)] == []
    shutil.rmtree(lake.side_folder / "removals")  # it is protected again
    assert [record.kind for record in lost_records(lake)] == ["removals"]


def test_a_mark_of_removals_of_an_older_version_protects_as_well(lake: Lake) -> None:
    mark = Path(lake.path("_paimon_features")) / "removals-of.gone.json"
    mark.parent.mkdir()
    mark.write_text('{"record": "removals"}')
    assert [(record.kind, record.name) for record in lost_records(lake)] == [("removals", "gone")]
    with pytest.raises(RecordLostError, match="--accept-loss"):
        table_history.removals(lake, "gone")


def test_scores_are_marked_in_the_folder_of_the_database(lake: Lake) -> None:
    record = Record(lake, "scores", "features.v.run/2.json", "features.v.run.2", None)
    assert record.read() is None
    record.write({"as_of_ms": 5})
    assert record.read() == {"as_of_ms": 5}
    lose(lake, None)
    with pytest.raises(RecordLostError, match="a resumed run could read others"):
        record.read()
    assert lake.list() == []


def test_a_record_of_a_table_that_does_not_exist_yet_is_not_marked(lake: Lake) -> None:
    record = Record(lake, "leases", "features.t.json", "t", "t")
    record.write({"token": 1})
    assert not Path(lake.path("t")).exists()
    record.path.unlink()
    assert record.read() is None


def test_locks_and_caches_are_made_again(lake: Lake, table: str) -> None:
    append_arrow(lake, table, ROWS)
    with lease.acquire(lake, table):
        pass
    for kind in {path.name for path in lake.side_folder.iterdir()}.difference(LOSSES):
        lose(lake, kind)  # locks; rollups and merges are tested where they are made
    append_arrow(lake, table, ROWS)
    with lease.acquire(lake, table):
        assert lost_records(lake) == []


def test_lost_records_are_listed_by_table(lake: Lake, table: str) -> None:
    generations.save(lake, GENERATION)
    append_arrow(lake, table, ROWS, commit_user="run/1", commit_identifier=5)
    with lease.acquire(lake, table):
        assert lost_records(lake) == []
    lose(lake, None)
    found = [(record.kind, record.name, record.table) for record in lost_records(lake)]
    assert found == [
        ("commits", "run%2F1", table),
        ("generations", "spend", table),
        ("leases", table, table),
    ]


ROOT = Path(__file__).parents[2]
KIND = re.compile(
    r'side_folder / "(\w+)"|Record\((?:self\.)?_?lake, "(\w+)"'
    r'|^_KIND = "(\w+)"|\{SIDE_FOLDER\}/(\w+)/',
    re.MULTILINE,
)


def test_every_kind_of_file_is_documented_with_its_loss_and_a_test() -> None:
    code = [
        path.read_text("utf-8")
        for package in ("paimon_features", "trainer_bridge", "jobs")
        for path in (ROOT / package).rglob("*.py")
    ]
    kinds = {match[match.lastindex or 0] for text in code for match in KIND.finditer(text)}
    assert kinds > set(LOSSES)
    page = (ROOT / "docs/reference/warehouse.md").read_text("utf-8")
    rows = {
        match[1]: line for line in page.splitlines() if (match := re.match(r"\| `(\w+)/` \|", line))
    }
    assert set(rows) == kinds
    for row in rows.values():
        found = re.search(r"`(tests/[\w/]+\.py)::(test_\w+)`", row)
        assert found is not None, row
        tree = ast.parse((ROOT / found[1]).read_text("utf-8"))
        assert found[2] in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert not set(ACCEPTED) - set(LOSSES)
