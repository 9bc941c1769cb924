"""Following a table that a real Flink writes, compacts and expires."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from paimon_features.core.types.schema import Float64, Int64
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.snapshots import snapshots
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.writing.table_writer import append_arrow
from trainer_bridge.streams.following_reader import FollowingReader
from trainer_bridge.testing.sample_tables import sample_rows

pytestmark = pytest.mark.flink


def insert(first: int, count: int) -> str:
    rows = ", ".join(f"({n}, CAST({n / 2} AS DOUBLE))" for n in range(first, first + count))
    return f"INSERT INTO samples VALUES {rows}"


def test_commits_of_flink_and_python_are_followed_and_held_against_its_expiry(
    lake: Lake, flink_sql: Callable[..., None]
) -> None:
    two_files = {"compaction.min.file-num": "2"}
    lake.create(TableSpec("samples", {"x": Int64, "y": Float64}, options=two_files))
    flink_sql(lake.warehouse, [insert(0, 25)])
    python = sample_rows(25, 10).select(["x", "y"])
    append_arrow(lake, "samples", python)
    options = {"columns": ["x"], "batch_size": 8, "idle_timeout_s": 0.1}
    with FollowingReader(lake, "samples", start=1, consumer="trainer", **options) as reader:
        batches = iter(reader)
        first = [next(batches) for _ in range(4)]
        state = reader.state_dict()
        expire = "CALL sys.expire_snapshots(`table` => 'features.samples', retain_max => 1, "
        flink_sql(
            lake.warehouse,
            [
                "CALL sys.compact(`table` => 'features.samples')",
                insert(35, 7),
                f"{expire} retain_min => 1)",
            ],
            config={"table.dml-sync": "true"},
        )
        kinds = {found.id: found.kind for found in snapshots(lake, "samples")}
        assert list(kinds.values()).count("COMPACT") == 1
        assert list(kinds) == list(range(state["snapshot_id"] - 1, max(kinds) + 1))
        rest = list(batches)
    values = [value for batch in [*first, *rest] for value in batch["x"].tolist()]
    assert sorted(values) == list(range(42))
    commits = [batch.epoch for batch in [*first, *rest]]
    assert commits == sorted(commits)
    # compaction gave nothing
    assert {kinds[commit] for commit in commits if commit in kinds} == {"APPEND"}
    with FollowingReader(lake, "samples", start="new", **options) as resumed:
        resumed.load_state_dict(state)
        assert [batch["x"].tolist() for batch in resumed] == [b["x"].tolist() for b in rest]
