"""Versions of fitted transformers in the lake: unique, ordered, immutable."""

from __future__ import annotations

import multiprocessing
import shutil
import threading
import time
from typing import Any

import pyarrow as pa
import pytest

from paimon_features.core.errors import (
    DefinitionError,
    OwnershipError,
    RecordLostError,
    TableError,
    TransformError,
    UnknownNameError,
)
from paimon_features.lake import Lake, append_arrow, latest_snapshot, read_arrow
from paimon_features.lake.ownership.lease import FlinkJobHolder, acquire, release
from paimon_features.lake.writing import table_writer as writer
from paimon_features.models.fitted_table import (
    fitted_names,
    fitted_versions,
    load_fitted,
    save_fitted,
)
from paimon_features.transformers import FeatureNormalizer, OneHotEncoder, StandardScaler
from tests.waiting import LONG_S

ON = {"table": "training_churn", "snapshot_id": 7}


def scaler(*values: float) -> StandardScaler:
    return StandardScaler().fit([[value] for value in values])


def save(lake: Lake, transformer: Any, name: str = "amount", on: Any = ON) -> int:
    return save_fitted(lake, name, transformer, fitted_on=on, now_ms=1_000).version


def test_versions_increase_and_are_immutable(lake: Lake) -> None:
    first = scaler(1, 2)
    assert save(lake, first) == 1
    first.partial_fit([[9.0]])  # the saved version does not change with it
    assert save(lake, first) == 2
    assert save(lake, OneHotEncoder().fit([["a"]])) == 3
    assert save(lake, scaler(5), "other") == 1
    assert [v.version for v in fitted_versions(lake, "amount")] == [1, 2, 3]
    assert load_fitted(lake, "amount", 1).transformer == scaler(1, 2)
    assert load_fitted(lake, "amount").kind == "one_hot_encoder"
    assert load_fitted(lake, "amount", 1).fitted_on == ON
    assert fitted_names(lake) == ["amount", "other"]
    row = read_arrow(lake, "fitted_amount").to_pylist()[0]
    assert (row["version"], row["kind"], row["rows"]) == (1, "standard_scaler", 2)
    assert row["digest"] == load_fitted(lake, "amount", 1).digest


def test_saving_an_equal_transformer_creates_no_version(lake: Lake) -> None:
    assert [save(lake, scaler(1, 2)) for _ in range(3)] == [1, 1, 1]
    newest = latest_snapshot(lake, "fitted_amount")
    assert newest is not None
    assert newest.id == 1
    assert save(lake, scaler(1, 2), on={}) == 2  # fitted on other data
    assert save(lake, scaler(1, 2)) == 3  # an older state is saved as a new version


def test_versions_continue_where_the_side_folder_was_lost(lake: Lake) -> None:
    assert save(lake, scaler(1, 2)) == 1
    shutil.rmtree(lake.side_folder / "fitted")
    assert save(lake, scaler(1, 2)) == 1
    assert save(lake, scaler(3, 4)) == 2
    shutil.rmtree(lake.side_folder)
    with pytest.raises(RecordLostError, match="two owners could commit"):
        save(lake, scaler(5, 6))
    release(lake, "fitted_amount")
    assert save(lake, scaler(3, 4)) == 2
    assert save(lake, scaler(5, 6)) == 3


def test_a_crash_after_the_commit_leaves_one_version(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = writer._commit

    def committed_then_killed(*args: Any) -> None:
        real(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(writer, "_commit", committed_then_killed)
    with pytest.raises(KeyboardInterrupt):
        save(lake, scaler(1, 2))
    monkeypatch.setattr(writer, "_commit", real)
    assert save(lake, scaler(1, 2)) == 1
    assert read_arrow(lake, "fitted_amount").num_rows == 1


def test_concurrent_threads_each_save_a_version(lake: Lake) -> None:
    found: dict[int, int] = {}
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: save(lake, scaler(n, n + 1))}))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found.values()) == list(range(1, 9))
    for n, version in found.items():
        assert load_fitted(lake, "amount", version).transformer == scaler(n, n + 1)


def _saves(warehouse: str, start: int) -> None:
    lake = Lake.open(warehouse, "features")
    for n in range(3):
        save(lake, scaler(start + n, 1000))


def test_concurrent_processes_lose_no_version(lake: Lake) -> None:
    other = multiprocessing.get_context("spawn").Process(target=_saves, args=(lake.warehouse, 100))
    other.start()
    while not lake.exists("fitted_amount") and other.is_alive():
        time.sleep(0.001)
    _saves(lake.warehouse, 0)
    other.join(LONG_S)
    assert other.exitcode == 0
    found = fitted_versions(lake, "amount")
    assert [v.version for v in found] == list(range(1, 7))
    assert len({v.digest for v in found}) == 6


def test_a_table_owned_by_a_job_is_not_modified(lake: Lake) -> None:
    job = FlinkJobHolder("http://127.0.0.1:9", "ab" * 16)
    acquire(lake, "fitted_amount", job, "fit")
    with pytest.raises(OwnershipError, match="fitted_amount"):
        save(lake, scaler(1))


def test_invalid_names_versions_and_rows_are_rejected(lake: Lake) -> None:
    save(lake, scaler(1, 2))
    with pytest.raises(
        UnknownNameError, match="unknown fitted transformer 'amont'; available: amount"
    ):
        load_fitted(lake, "amont")
    with pytest.raises(UnknownNameError, match="'amount' has no version 4; it has: 1"):
        load_fitted(lake, "amount", 4)
    with pytest.raises(TransformError, match="is not fitted"):
        save(lake, StandardScaler())
    with pytest.raises(TransformError, match="a FeatureNormalizer cannot be stored"):
        save(lake, FeatureNormalizer())
    with pytest.raises(DefinitionError, match="fitted transformer 'A b'"):
        save(lake, scaler(1), "A b")
    row = read_arrow(lake, "fitted_amount")
    params = pa.array([row["params"][0].as_py().replace("1.5", "1.6")])
    damaged = row.set_column(row.column_names.index("params"), "params", params)
    append_arrow(lake, "fitted_amount", damaged.set_column(0, "version", pa.array([2], pa.int32())))
    with pytest.raises(TableError, match="'fitted_amount', version 2: its content has the digest"):
        load_fitted(lake, "amount", 1)
