"""What ``status`` reports of ingestion and iteration jobs, by their records."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from paimon_features.core.errors import JobError
from paimon_features.core.process.ports import free_ports
from paimon_features.core.process.process_holder import ProcessHolder
from paimon_features.flink.stream_jobs import (
    OLD_MS,
    StreamJob,
    StreamJobRecord,
    list_stream_jobs,
    record_end,
    record_job,
    recorded,
)
from paimon_features.lake import Lake

NOW = 10 * OLD_MS
RUNNING = StreamJob(
    "ingest", "kafka-clicks-t", "a" * 32, "RUNNING", None, "local", NOW - 2 * OLD_MS,
    ("events_clicks",), NOW - 1_000, None, NOW - 1_000, 0, 0, True,
)  # fmt: skip


def record(state: Path, process: ProcessHolder | None = None) -> StreamJobRecord:
    gone = f"http://127.0.0.1:{free_ports(1)[0]}"
    found = StreamJobRecord(
        "ingest", "kafka-clicks-t", "a" * 32, gone, process is not None, process, 1, ("events",)
    )
    record_job(state, found)
    return found


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        ({"lag": 7}, None),
        ({"lag": None}, None),
        ({"committed_ms": 1}, None),
        ({"lag": 7, "committed_ms": 1}, "7 messages behind, no commit"),
        ({"lag": 7, "committed_ms": None}, "7 messages behind, no commit"),
        ({"lag": None, "connected": False}, "its lag is unknown"),
        ({"checkpoint_ms": None}, "no checkpoint"),
        ({"checkpoint_ms": None, "since_ms": NOW - 1_000}, None),
        ({"restarts": 3, "last_error": "no broker"}, "restarted 3 times: no broker"),
        ({"state": "RESTARTING", "last_error": "no broker"}, "RESTARTING: no broker"),
        ({"state": "FAILED", "last_error": "no broker"}, "FAILED: no broker"),
        ({"state": "LOST", "detail": "its client has ended"}, "LOST (its client has ended)"),
        ({"state": "STOPPED", "connected": None, "lag": None}, None),
        ({"state": "FINISHED", "kind": "iteration"}, None),
        ({"kind": "iteration", "checkpoint_ms": None}, None),
    ],
)
def test_what_needs_attention(changes: dict[str, object], message: str | None) -> None:
    found = replace(RUNNING, **changes).attention(NOW)  # type: ignore[arg-type]
    assert found is None if message is None else message in str(found)


def test_a_job_whose_client_was_killed_is_lost(tmp_path: Path) -> None:
    lake = Lake.open(str(tmp_path / "lake"), "features")
    client = subprocess.Popen(["sleep", "60"])
    record(tmp_path, ProcessHolder.of(client.pid))
    assert [job.state for job in list_stream_jobs(lake, tmp_path, 0.5)] == ["UNKNOWN"]
    client.kill()
    client.wait()
    (job,) = list_stream_jobs(lake, tmp_path, 0.5)
    assert job.state == "LOST"
    assert "its client" in str(job.attention(NOW))


def test_a_job_whose_cluster_does_not_respond_is_unknown(tmp_path: Path) -> None:
    lake = Lake.open(str(tmp_path / "lake"), "features")
    found = record(tmp_path)
    (job,) = list_stream_jobs(lake, tmp_path, 0.5)
    assert (job.state, job.detail) == ("UNKNOWN", f"{found.rest} does not respond")


def test_the_error_of_a_failed_job_is_its_first_line_without_secrets(tmp_path: Path) -> None:
    lake = Lake.open(str(tmp_path / "lake"), "features")
    first = record(tmp_path)
    with pytest.raises(JobError), recorded(tmp_path, first):
        raise JobError("cannot log in: password=hunter22\nat line 2")
    (job,) = list_stream_jobs(lake, tmp_path)
    assert (job.state, job.last_error) == ("FAILED", "cannot log in: password=***")
    record_end(tmp_path, first.job_id, "FINISHED")
    assert list_stream_jobs(lake, tmp_path)[0].state == "FAILED"


def test_an_interrupted_job_is_stopped(tmp_path: Path) -> None:
    lake = Lake.open(str(tmp_path / "lake"), "features")
    with pytest.raises(KeyboardInterrupt), recorded(tmp_path, record(tmp_path)):
        raise KeyboardInterrupt
    assert [job.state for job in list_stream_jobs(lake, tmp_path)] == ["STOPPED"]
