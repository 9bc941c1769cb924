"""A project that an earlier release wrote is read, resumed and served by this one.

``data/project_2026_11_24.tar.xz`` was written by the commit of that day (534317b): definitions,
400 ingested events and two rejected rows, tiles, a tile job that was stopped with a savepoint, a
training set of 60 rows, the state of a reader after three batches of eight, the content of the
online store (key -> value, hexadecimal), and what that release answered.
"""

from __future__ import annotations

import http.client
import json
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest
import redis

from paimon_features.lake import read_arrow
from paimon_features.project import Project
from paimon_features.project.verification.parity import verify
from tests.commands import run
from tests.patient_stores import make_patient
from tests.serving.live import serving
from tests.waiting import await_true
from trainer_bridge import SnapshotReader

ARCHIVE = Path(__file__).parent / "data" / "project_2026_11_24.tar.xz"


@pytest.fixture
def shop(tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project in another folder than that in which it was written, and its online store."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / "shop"
    make_patient(folder / "paimon-features.toml")
    with redis.Redis.from_url(redis_url) as store:
        for key, value in read_json(folder / "online-store.json").items():
            store.set(bytes.fromhex(key), bytes.fromhex(value))
    monkeypatch.setenv("PAIMON_FEATURES_ONLINE_URL", redis_url)
    return folder


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def output_of(folder: Path, *words: str) -> str:
    return run(*words, project=folder).stdout


def lookup(folder: Path) -> Any:
    entities = ["--entity", "user_id=3,7,99", "--as-of", "2025-10-14T09:00"]
    return json.loads(output_of(folder, "lookup", "orders_v1", *entities, "--json"))


def test_what_was_written_is_read(shop: Path) -> None:
    assert "no changes" in output_of(shop, "plan")
    expected = read_json(shop / "expected-lookup.json")
    for part in ("rows", "statuses", "event_time_ms"):
        assert lookup(shop)[part] == expected[part]
    run("materialize", project=shop)
    assert lookup(shop)["rows"] == expected["rows"]

    status = json.loads(output_of(shop, "status", "--json"))
    assert status["ok"]
    assert [(job["view"], job["state"]) for job in status["jobs"]] == [("spend", "STOPPED")]


def test_a_reader_goes_on_in_the_middle_of_its_epoch(shop: Path) -> None:
    saved = read_json(shop / "reader-state.json")
    reader = SnapshotReader(
        Project.open(shop).lake,
        "training_orders",
        columns=["user_id", "sum_amount_7d", "label"],
        fill={"sum_amount_7d": 0.0},
        batch_size=8,
        shuffle=True,
        seed=3,
    )
    reader.load_state_dict(saved["state"])
    assert [batch["user_id"].astype(int).tolist() for batch in reader] == saved["rest"]


def test_every_reply_is_right_while_its_project_is_upgraded(shop: Path) -> None:
    """A server of this release reads records of the earlier one, which are replaced meanwhile."""
    expected = read_json(shop / "expected-lookup.json")
    request = {
        "feature_service": "orders_v1",
        "entities": {"user_id": [row["user_id"] for row in expected["rows"]]},
        "as_of": expected["now_ms"],
    }
    columns = {name: [row[name] for row in expected["rows"]] for name in expected["rows"][0]}
    wrong: list[Any] = []
    count, ended = 0, threading.Event()

    def read_on(connection: http.client.HTTPConnection) -> None:
        nonlocal count
        while not ended.is_set():
            connection.request("POST", "/get-online-features", json.dumps(request))
            reply = json.loads(connection.getresponse().read())
            names = reply.get("metadata", {}).get("feature_names")
            got = names and {
                name: result["values"] for name, result in zip(names, reply["results"], strict=True)
            }
            if got != columns:
                wrong.append(reply)
            count += 1

    with serving(shop) as (connection, _):
        traffic = threading.Thread(target=read_on, args=(connection,))
        traffic.start()
        try:
            for words in (["apply"], ["materialize"], ["materialize", "--rebuild"]):
                before = count
                run(*words, project=shop)
                await_true(lambda before=before: count > before)
        finally:
            ended.set()
            traffic.join()
    assert wrong == []


@pytest.mark.flink
def test_the_tile_job_resumes_from_the_savepoint_and_everything_agrees(shop: Path) -> None:
    run("apply", project=shop)
    run("ingest", "files", "orders", str(shop / "second.csv"), project=shop)
    # a file that the earlier release has ingested is not ingested again
    run("ingest", "files", "orders", str(shop / "first.csv"), project=shop)
    resumed = json.loads(output_of(shop, "submit", "spend", "--bounded", "--json"))["resumed"]
    assert "savepoint" in resumed
    run("materialize", project=shop)

    # each feature from the online store, from tiles and from events; and each event is there once
    project = Project.open(shop)
    report = verify(project, "orders_v1", settle_s=0.0)
    assert report.ok
    assert report.compared > 500
    assert read_arrow(project.lake, "events_orders").num_rows == 600
