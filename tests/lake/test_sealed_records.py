"""Records that are older than their tables, or damaged: never read as if they were the newest."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import paimon_features as pf
from paimon_features.cli import cli
from paimon_features.core.errors import DamagedFileError, RecordLostError
from paimon_features.core.types.schema import Int64
from paimon_features.ingest.ledger import IngestLedger
from paimon_features.lake import append_arrow
from paimon_features.lake.catalog import Lake
from paimon_features.lake.marked_records import Record, lost_records
from paimon_features.lake.metadata import table_history
from paimon_features.lake.metadata.table_history import Removal
from paimon_features.lake.reading.scrub import scrub_side_folder
from paimon_features.lake.side_folder import generations
from paimon_features.lake.side_folder.generations import GenerationRecord
from paimon_features.lake.specs import TableSpec, events_spec
from paimon_features.lake.storage.json_files import read_json, write_json
from paimon_features.lake.writing.table_writer import committed_identifiers

TABLE = "tiles_spend_g1"
ROWS = pa.table({"n": pa.array([1], pa.int64())})
GENERATION = GenerationRecord("spend", 1, TABLE, "abc", 1, state="active")
SOURCE = pf.EventSource("sales", schema={"user": Int64, "t": Int64}, event_time="t")


@pytest.fixture
def table(lake: Lake) -> str:
    lake.create(TableSpec(TABLE, {"n": Int64}, options={"bucket": "-1"}))
    return TABLE


@pytest.fixture
def record(lake: Lake, table: str) -> Record:
    """A record that was written three times."""
    found = Record(lake, "ingests", "features.sales.json", "sales", table)
    for n in range(3):
        found.write({"runs": n})
    return found


def marks(record: Record) -> list[Path]:
    return sorted(Path(record.lake.path(TABLE)).glob("_paimon_features/ingests.*.json"))


def expire(lake: Lake, table: str, until: int) -> None:
    folder = Path(lake.path(table)) / "snapshot"
    for number in range(1, until):
        (folder / f"snapshot-{number}").unlink()
    (folder / "EARLIEST").write_text(str(until))


def test_an_older_copy_of_a_record_counts_as_lost(record: Record) -> None:
    older = record.path.read_bytes()
    record.write({"runs": 3})
    newest = record.path.read_bytes()
    record.path.write_bytes(older)
    for read in (record.read, record.require):
        with pytest.raises(RecordLostError, match="is older than the table that depends on it"):
            read()
    assert lost_records(record.lake) == [record]
    record.path.write_bytes(newest)
    assert record.read() == {"runs": 3}
    assert lost_records(record.lake) == []
    record.path.write_bytes(older)
    record.write({"runs": 4})  # by somebody who knows what it contained, from the snapshots
    assert (record.read(), record.is_lost()) == ({"runs": 4}, False)


def test_an_accepted_loss_begins_again(record: Record) -> None:
    older = record.path.read_bytes()
    record.write({"runs": 3})
    record.path.write_bytes(older)
    record.accept_loss()
    assert record.read() == {"runs": 2}
    record.write({"runs": 7})
    assert (record.read(), record.is_lost()) == ({"runs": 7}, False)
    record.path.write_bytes(older)
    assert record.is_lost()


def test_a_crash_between_the_record_and_its_mark_loses_nothing(record: Record) -> None:
    write_json(record.path, {"runs": 3})
    assert (record.read(), record.is_lost()) == ({"runs": 3}, False)
    record.write({"runs": 4})
    assert record.read() == {"runs": 4}


def test_tables_of_an_earlier_backup_than_their_record_are_no_loss(record: Record) -> None:
    (mark,) = marks(record)
    older = mark.read_bytes()
    record.write({"runs": 3})
    mark.write_bytes(older)
    assert (record.read(), record.is_lost()) == ({"runs": 3}, False)


def test_records_and_marks_of_an_earlier_version_are_read(record: Record) -> None:
    (mark,) = marks(record)
    record.path.write_text('{"runs": 1}')
    content = {"record": "ingests/features.sales.json", "name": "sales", "accepted": False}
    mark.write_text(json.dumps(content))
    assert record.read() == {"runs": 1}
    record.path.unlink()
    assert record.is_lost()
    record.path.write_text('{"runs": 1}')
    record.write({"runs": 2})
    older = record.path.read_bytes()
    record.write({"runs": 3})
    record.path.write_bytes(older)
    assert record.is_lost()


@pytest.mark.parametrize("which", ["record", "mark"])
def test_every_flipped_bit_is_found(record: Record, which: str) -> None:
    path = record.path if which == "record" else marks(record)[0]
    content = path.read_bytes()
    for at in range(len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[at] ^= 1 << bit
            path.write_bytes(flipped)
            try:
                assert record.read() == {"runs": 2}, (at, bit)
            except DamagedFileError:
                assert [damage.path for damage in scrub_side_folder(record.lake)] == [str(path)]


@pytest.mark.parametrize("length", [0, 1, 20])
def test_a_record_that_was_cut_off_is_damaged(record: Record, length: int) -> None:
    record.path.write_bytes(record.path.read_bytes()[:length])
    with pytest.raises(DamagedFileError, match=r"features.sales.json is not valid JSON"):
        record.read()
    with pytest.raises(DamagedFileError):
        record.write({"runs": 9})


def test_a_record_in_the_place_of_another_is_damaged(record: Record) -> None:
    other = record.path.with_name("features.other.json")
    other.write_bytes(record.path.read_bytes())
    with pytest.raises(DamagedFileError, match="features.other.json is damaged"):
        read_json(other)


def ingest(ledger: IngestLedger, name: str) -> None:
    file: Any = SimpleNamespace(path=Path(f"/{name}.csv"), size=1, sha256=name)
    run = ledger.begin([file], {}, 1_000)
    day = pa.array([0], pa.int32())
    rows = {"user": [1], "t": [1], "event_day": day, "ingest_time_ms": [run.time_ms]}
    user = f"ingest-{run.id}_00000000-0000-0000-0000-000000000000"
    append_arrow(ledger.lake, SOURCE.table, pa.table(rows), commit_user=user, commit_identifier=1)
    ledger.finish(run, None, None)


def test_files_are_not_ingested_twice_by_an_older_ledger(lake: Lake) -> None:
    lake.create(events_spec(SOURCE.table, dict(SOURCE.schema)))
    ledger = IngestLedger(lake, SOURCE)
    ingest(ledger, "first")
    older = ledger.record.path.read_bytes()
    ingest(ledger, "second")
    ingest(ledger, "third")
    expire(lake, SOURCE.table, 3)
    ledger.check()
    ledger.record.path.write_bytes(older)
    second: Any = SimpleNamespace(path=Path("/second.csv"), size=1, sha256="second")
    for refused in (ledger.check, ledger.runs, lambda: ledger.choose([second])):
        with pytest.raises(RecordLostError, match="mark-ingested"):
            refused()
    third: Any = SimpleNamespace(path=Path("/third.csv"), size=1, sha256="third")
    ledger.adopt([second, third], 5_000)
    ledger.check()
    assert ledger.choose([second, third]).new == ()


def test_a_commit_is_not_repeated_by_an_older_record(lake: Lake, table: str) -> None:
    for identifier in (5, 6):
        append_arrow(lake, table, ROWS, commit_user="run", commit_identifier=identifier)
        if identifier == 5:
            shutil.copytree(lake.side_folder / "commits", lake.side_folder.with_name("backup"))
    append_arrow(lake, table, ROWS)
    shutil.rmtree(lake.side_folder / "commits")
    shutil.copytree(lake.side_folder.with_name("backup"), lake.side_folder / "commits")
    assert committed_identifiers(lake, table, "run") == 6  # its snapshot shows it
    expire(lake, table, 3)
    with pytest.raises(RecordLostError, match=r"run.json is older.*twice"):
        append_arrow(lake, table, ROWS, commit_user="run", commit_identifier=6)


def test_generations_of_an_older_record_are_refused(lake: Lake, table: str) -> None:
    generations.save(lake, GENERATION)
    path = lake.side_folder / "generations" / "features.spend.json"
    older = path.read_bytes()
    generations.update(lake, "spend", 1, incarnation=3)
    path.write_bytes(older)
    for refused in (generations.load, generations.active):
        with pytest.raises(RecordLostError, match="is older"):
            refused(lake, "spend")


def test_removals_of_an_older_record_are_refused(lake: Lake, table: str) -> None:
    path = lake.side_folder / "removals" / f"features.{table}.json"
    table_history.record_removal(lake, table, Removal("rolled back", 0, 5, 1, 2))
    older = path.read_bytes()
    table_history.record_removal(lake, table, Removal("rolled back", 5, 9, 1, 2))
    path.write_bytes(older)
    with pytest.raises(RecordLostError, match=r"is older than the tables \(1 of 2 removals\)"):
        table_history.removals(lake, table)
    (lost,) = lost_records(lake)
    assert lost.kind == "removals"
    lost.accept_loss()
    assert len(table_history.removals(lake, table)) == 1
    content = bytearray(path.read_bytes())
    content[content.index(b"until_ms") + 11] ^= 1
    path.write_bytes(content)
    with pytest.raises(DamagedFileError, match="does not match its digest"):
        table_history.removals(lake, table)


def test_the_command_check_finds_damaged_records(tmp_path: Path) -> None:
    (tmp_path / "paimon-features.toml").write_text('[project]\nname = "shop"\n')
    (tmp_path / "features.py").write_text("")
    lake = pf.Project.open(tmp_path).lake
    lake.create(TableSpec(TABLE, {"n": Int64}, options={"bucket": "-1"}))
    append_arrow(lake, TABLE, ROWS, commit_user="run", commit_identifier=5)
    command = ["check", "--project", str(tmp_path)]
    assert CliRunner().invoke(cli, command).exit_code == 0
    path = lake.side_folder / "commits" / f"{lake.database}.{TABLE}" / "run.json"
    path.write_text(path.read_text().replace('"identifier": 5', '"identifier": 4'))
    found = CliRunner().invoke(cli, command)
    assert found.exit_code == 1
    assert str(path) in found.output
