"""The reader on an S3-compatible server: what it fetches, and what it does when that fails."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.errors import TableError
from paimon_features.core.types.schema import Float64, Int64
from paimon_features.lake.catalog import Lake
from paimon_features.lake.metadata.consumers import consumers
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.writing.table_writer import append_arrow
from tests.reference.order import reference_order
from tests.servers.object_store import ObjectStore, object_store
from tests.waiting import LONG_S
from trainer_bridge.dataframe import Dataset
from trainer_bridge.readers.snapshot_reader import SnapshotReader
from trainer_bridge.testing.sample_tables import make_samples, x_by_row_number


@pytest.fixture(scope="module")
def running() -> Iterator[ObjectStore]:
    with object_store("bucket") as store:
        yield store


@pytest.fixture
def store(running: ObjectStore) -> ObjectStore:
    running.fail(0)
    running.requests.clear()
    return running


def patient(store: ObjectStore) -> dict[str, str]:
    """Its options: what is slow on a loaded machine is neither an error nor a retry."""
    times = {"connect-timeout-s": f"{LONG_S:g}", "request-timeout-s": f"{LONG_S:g}"}
    return {**store.options, **times}


@pytest.fixture
def lake(store: ObjectStore, tmp_path: Path, request: pytest.FixtureRequest) -> Lake:
    place = f"s3://bucket/{request.node.name}"
    return Lake.open(place, "features", options=patient(store), side_folder=tmp_path)


def of_data(method: str, path: str) -> bool:
    return path.endswith(".parquet")


def test_batches_from_s3_are_the_reference_order_and_resume(lake: Lake, store: ObjectStore) -> None:
    table = make_samples(lake, [20, 30, 7])
    # whoever reads needs no folder for locks
    reading = Lake.open(lake.warehouse, "features", options=patient(store))
    x = x_by_row_number(reading, table)
    options = {"columns": ["x"], "batch_size": 10, "seed": 4, "block_rows": 16}
    with SnapshotReader(reading, table, consumer="trainer", **options) as reader:
        assert consumers(lake, table) == {"trainer": 3}
        state = reader.state_dict()
        blocks = [block.rows for block in reader.layout.blocks]
        order = reference_order(blocks, state["streams"], 4, 0)
        found, states = [], []
        for batch in reader:
            found += batch["x"].tolist()
            states.append(reader.state_dict())
        assert found == [x[row] for row in order]
        reader.load_state_dict(states[2])
        assert [v for batch in reader for v in batch["x"].tolist()] == found[30:]
    assert consumers(lake, table) == {}


def test_a_reader_goes_to_another_process_with_its_place(lake: Lake, store: ObjectStore) -> None:
    table = make_samples(lake, [20, 30, 7])
    with SnapshotReader(lake, table, columns=["x"], batch_size=10) as reader:
        next(iter(reader))
        other = pickle.loads(pickle.dumps(reader))
        assert other.state_dict() == reader.state_dict()
        with other:
            assert [b["x"].tolist() for b in other] == [b["x"].tolist() for b in reader]
        # the catalog is reopened as well
        assert other.lake.schema(table) == lake.schema(table)


def test_only_the_columns_and_row_groups_that_are_read_are_fetched(
    lake: Lake, store: ObjectStore
) -> None:
    columns = [f"c{number}" for number in range(20)]
    lake.create(TableSpec("wide", dict.fromkeys(columns, Float64)))
    dice = np.random.default_rng(0)
    append_arrow(lake, "wide", pa.table({name: dice.random(60_000) for name in columns}))
    with SnapshotReader(lake, "wide", columns=["c3"], batch_size=10_000) as reader:
        (block,) = reader.layout.blocks
        store.requests.clear()
        total = sum(float(batch["c3"].sum()) for batch in reader)
    assert 29_000 < total < 31_000
    # a twentieth of the file, and its footer
    assert store.fetched_bytes() < block.size / 20 * 1.1 + 70_000


def test_a_table_with_a_primary_key_is_merged_and_filtered_from_s3(
    lake: Lake, store: ObjectStore
) -> None:
    lake.create(TableSpec("keyed", {"k": Int64, "v": Float64}, primary_key=("k",)))
    append_arrow(lake, "keyed", pa.table({"k": [1, 2, 3], "v": [1.0, 2.0, 3.0]}))
    append_arrow(lake, "keyed", pa.table({"k": [2, 4], "v": [20.0, 40.0]}))
    # without a side folder, what merging came to is kept nowhere
    reading = Lake.open(lake.warehouse, "features", options=patient(store))
    for own in (lake, reading):
        with SnapshotReader(own, "keyed", where="v > 2", batch_size=8, shuffle=False) as reader:
            rows = {k: v for b in reader for k, v in zip(b["k"], b["v"], strict=True)}
        assert rows == {2: 20.0, 3: 3.0, 4: 40.0}


def test_a_data_frame_finds_its_files_by_the_environment(
    lake: Lake, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make_samples(lake, [20, 30])
    monkeypatch.setenv("S3_ENDPOINT", store.endpoint.removeprefix("http://"))
    monkeypatch.setenv("S3_USE_HTTPS", "0")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", store.key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    folder = f"{lake.path(table)}/bucket-0"
    # the files of a folder have random names: each is in one of the two halves
    halves = [f"{folder}/*[{digits}]-0.parquet" for digits in ("0-7", "8-9a-f")]
    for files in (f"{folder}/*.parquet", folder, halves):
        values = [v for part in Dataset.from_parquet(files, ["x"]).batch(64) for v in part["x"]]
        assert sorted(int(v) for v in values) == list(range(50))


def test_a_burst_of_failures_delays_the_batches_and_is_counted(
    lake: Lake, store: ObjectStore
) -> None:
    table = make_samples(lake, [20, 30, 7])
    for threads in (0, 2):
        with SnapshotReader(
            lake, table, columns=["x"], batch_size=10, block_rows=16, threads=threads
        ) as reader:
            store.fail(3, of_data)
            assert sorted(v for batch in reader for v in batch["x"].tolist()) == list(range(57))
            assert reader.stats.retries == 3


def test_a_store_that_stays_away_ends_in_an_error_that_names_the_file(
    lake: Lake, store: ObjectStore
) -> None:
    table = make_samples(lake, [20, 30])
    short = Lake.open(lake.warehouse, "features", options={**patient(store), "attempts": "2"})
    reader = SnapshotReader(short, table, columns=["x"], batch_size=10, block_rows=16)
    store.fail(1_000, of_data)
    with pytest.raises(TableError, match=r"'samples', snapshot 2, block \d, file s3://.*503") as it:
        list(reader)
    assert it.value.__notes__ == ["tried 2 times"]
    store.fail(0)
    assert sorted(v for batch in reader for v in batch["x"].tolist()) == list(range(50))
    reader.close()
    # the server has a thread for each connection, which the client keeps
    left = [thread.name for thread in threading.enumerate() if "snapshot" in thread.name]
    assert left == []
