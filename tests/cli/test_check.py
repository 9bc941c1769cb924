"""``check`` as a user types it: every kind of damage is found, and what it is in."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paimon_features.lake import Lake, append_arrow
from paimon_features.lake.metadata.tags import create_tag
from paimon_features.project import Project
from tests import commands
from tests.data_files import replace_file

FEATURES = """
import paimon_features as pf

clicks = pf.EventSource("clicks", schema={"id": pf.Int64, "at_ms": pf.Int64}, event_time="at_ms")
user = pf.Entity("user", keys={"id": pf.Int64})
views = pf.FeatureView(
    "spend", source=clicks, entity=user, features=[pf.Count(windows=["1d"])]
)
"""
TABLE, TILES = "events_clicks", "tiles_spend_g1"
ROWS = 200

run = partial(commands.run, "check")


def rows(start: int) -> pa.Table:
    return pa.table(
        {
            "id": np.arange(ROWS) + start,
            "at_ms": np.arange(ROWS) + 86_400_000,
            "event_day": np.ones(ROWS, np.int32),
            "ingest_time_ms": np.zeros(ROWS, np.int64),
        }
    )


def tiles(lake: Lake, start: int) -> pa.Table:
    columns: dict[str, Any] = {
        f.name: np.arange(ROWS) + start if f.name == "id" else np.ones(ROWS, np.int64)
        for f in lake.schema(TILES)
    }
    return pa.table(columns)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with three commits into an events table, the second tagged, and two of tiles."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "paimon-features.toml").write_text('[project]\nname = "shop"\n')
    (folder / "features.py").write_text(FEATURES)
    project = Project.open(str(folder))
    project.apply()
    for commit in range(3):
        append_arrow(project.lake, TABLE, rows(1_000 * commit))
        if commit == 1:
            create_tag(project.lake, TABLE, "kept", 2)
        if commit < 2:
            append_arrow(project.lake, TILES, tiles(project.lake, 100 * commit))
    return folder


@pytest.fixture
def lake(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lake:
    shutil.copytree(template, tmp_path / "p")
    monkeypatch.chdir(tmp_path / "p")
    return Project.open(".").lake


def damages(*arguments: str) -> list[dict[str, Any]]:
    found: dict[str, Any] = json.loads(run(*arguments, "--json", code=1).stdout)
    assert not found["ok"]
    return list(found["damages"])


def data_files(lake: Lake, table: str) -> list[Path]:
    found = Path(lake.path(table)).glob("*/bucket-*/*.parquet")
    return sorted(found, key=lambda path: path.stat().st_mtime_ns)


def flip(path: Path, at: int | None = None) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if at is None else at] ^= 4
    path.write_bytes(content)


def test_a_sound_warehouse_has_no_damage(lake: Lake) -> None:
    output = run().output
    assert f"{TABLE}: 3 snapshots, 3 manifests, 3 data files (" in output
    assert "no damage found" in output
    assert "no CRC32" not in output
    found = json.loads(run(TABLE, "--json").stdout)
    assert found["ok"]
    assert found["damages"] == []
    assert [(table["table"], table["pages_without_crc"]) for table in found["tables"]] == [
        (TABLE, 0)
    ]
    assert "1 data files not read" not in output
    assert "unknown table 'nope'" in run("nope", code=2).output


def test_a_damaged_data_file_is_named_with_its_snapshots_and_what_to_do(lake: Lake) -> None:
    path = data_files(lake, TABLE)[0]
    chunk = pq.read_metadata(path).row_group(0).column(0)
    flip(path, chunk.data_page_offset + 40)
    (damage,) = damages(TABLE)
    assert damage["path"] == str(path)
    assert "column 'id', row group 0" in damage["problem"]
    assert damage["snapshots"] == [1, 2, 3]
    assert damage["tags"] == ["kept"]
    text = run(code=1).output
    assert f"DAMAGED {path}" in text
    assert "in snapshots: 1, 2, 3" in text
    assert "in tags: kept" in text
    assert "to do: restore the file from a backup" in text


def delete(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


# a snapshot or tag that does not exist has expired: nothing refers to it
@pytest.mark.parametrize(
    ("pattern", "harm", "snapshots"),
    [
        ("snapshot/snapshot-2", cut, [2]),
        ("schema/schema-0", cut, []),
        ("tag/tag-kept", cut, []),
        ("manifest/manifest-[0-9a-f]*", cut, None),
        ("manifest/manifest-list-*", cut, None),
        ("event_day=1/bucket-0/*.parquet", cut, None),
        ("manifest/manifest-[0-9a-f]*", delete, None),
        ("manifest/manifest-list-*", delete, None),
        ("event_day=1/bucket-0/*.parquet", delete, None),
    ],
)
def test_every_kind_of_file_is_read(
    lake: Lake, pattern: str, harm: Callable[[Path], None], snapshots: list[int] | None
) -> None:
    path = sorted(Path(lake.path(TABLE)).glob(pattern))[0]
    harm(path)
    found = damages(TABLE)
    assert any(path.name in damage["path"] or path.name in damage["problem"] for damage in found)
    if snapshots is not None:
        assert found[0]["snapshots"] == snapshots


def test_keys_that_are_out_of_order_or_out_of_range_are_found(lake: Lake) -> None:
    files = data_files(lake, TILES)
    *_, first, second = sorted(files, key=lambda path: pq.read_metadata(path).num_rows)
    ordered = pq.ParquetFile(first).read()
    replace_file(first, ordered.take(pa.array(range(ordered.num_rows)[::-1])))
    table = pq.ParquetFile(second).read()
    place = table.schema.get_field_index("id")
    replace_file(second, table.set_column(place, "id", pa.array(np.arange(table.num_rows) + 900)))
    problems = {damage["path"]: damage["problem"] for damage in damages(TILES)}
    assert "not in the order of their keys" in problems[str(first)]
    assert "its keys are [900, 1] to" in problems[str(second)]
    assert "backfill VIEW --rebuild" in damages(TILES)[0]["remedy"]


def test_since_and_sample_bound_the_data_files(lake: Lake) -> None:
    for path in data_files(lake, TABLE):
        flip(path, pq.read_metadata(path).row_group(0).column(0).data_page_offset + 40)
    assert len(damages(TABLE)) == 3
    assert "3 data files not read; no damage found" in run(TABLE, "--since", "2100-01-01").output
    assert len(damages(TABLE, "--since", "1h")) == 3
    assert "3 data files not read" in run(TABLE, "--sample", "0.000001").output


def test_records_next_to_the_tables_are_read(lake: Lake) -> None:
    record = next(lake.side_folder.rglob("*.json"))
    record.write_text('{"half":')
    found = damages()
    assert [damage["path"] for damage in found if str(record) == damage["path"]]
