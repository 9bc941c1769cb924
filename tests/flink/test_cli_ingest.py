"""The command ``ingest`` up to the job, which has separate tests."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from paimon_features.core.process.ports import free_ports
from paimon_features.ingest.file_ingestion import IngestResult
from paimon_features.project import Project
from paimon_features.project import engines_flink as module
from tests.commands import invoke

FEATURES = """
import paimon_features as pf

clicks = pf.EventSource("clicks", schema={"id": pf.Int64, "at_ms": pf.Int64}, event_time="at_ms")
loop = pf.FeedbackSource("loop", sample_keys={"id": pf.Int64})
"""

run = partial(invoke, "ingest")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    (tmp_path / "paimon-features.toml").write_text('[project]\nname = "shop"\n')
    (tmp_path / "features.py").write_text(FEATURES)
    (tmp_path / "a.csv").write_text("id,at_ms\n1,2010-12-01\n")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    opened = Project.open(".")
    opened.apply()
    return opened


def test_the_help_shows_every_input_and_what_is_guaranteed() -> None:
    for command, texts in (
        ((), ("written to rejected_SOURCE with the reason", "ingest changes orders shop.orders")),
        (("files",), (
            "paimon-features ingest files retail events.parquet",
            "paimon-features ingest files retail exports/ --column invoice_time_ms=InvoiceDate",
        )),
        (("topic",), (
            "ingest topic clicks shop.clicks --kafka broker:9092",
            "each message counts once, whatever was killed in between",
            "--column COLUMN=kafka:key, kafka:timestamp,",
            "a password comes from PAIMON_FEATURES_KAFKA_PASSWORD or password_file",
        )),
        (("changes",), ("retraction column of SOURCE is set from the row kind",)),
    ):  # fmt: skip
        page = " ".join(run(*command, "--help").output.split())
        for text in texts:
            assert text in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("files clicks", "name the files or folders to ingest"),
        ("files sales a.csv", "unknown source 'sales'; available: clicks, loop"),
        ("files loop a.csv", "source 'loop' is feedback, which trainers write by FeedbackWriter"),
        ("files clicks gone.csv", "gone.csv: no such file or folder"),
        ("files clicks features.py", "expected a name that ends with .csv, .csv.gz, .parquet"),
        ("files clicks empty", ": no file to ingest in this folder"),
        ("files clicks a.csv --column id", "--column id: expected <column of the source>="),
        ("files clicks a.csv --column id=Id", "unknown column 'Id'; available: at_ms, id"),
        (
            "files clicks a.csv --column x=id",
            "unknown column 'x' of source 'clicks'; available: at_ms, id",
        ),
        ("files clicks a.csv --cluster nowhere", "expected host:port of its REST interface"),
        ("files clicks a.csv --cluster", "'paimon-features cluster start' starts one"),
        ("files clicks --engine local --stop", "leave out --engine local"),
        ("files clicks a.csv --engine local --cluster h:1", "concern Flink's jobs"),
        ("files clicks a.csv --stop", "does not apply to --stop"),
        ("files clicks a.csv --topic t", "No such option '--topic'"),
        ("topic clicks", "name the topic to ingest"),
        ("topic clicks --start latest", "name the topic to ingest"),
        ("topic clicks t", "a topic requires --kafka HOST:PORT, or brokers under"),
        ("topic clicks t --kafka b:1 --start soon", "--start: expected earl"),
        ("topic clicks t --kafka b:1 --format debezium-json", "has no retraction column"),
        (
            "topic clicks t --kafka b:1 --column id=kafka:value",
            "--column id=kafka:value: expected one of: kafka:key",
        ),
        ("topic clicks t --kafka b", "'b' is not host:port"),
        ("topic clicks a/b --kafka b:1", "topic 'a/b': expected letters"),
        ("topic clicks t --status", "does not apply to --status"),
        ("topic clicks --status --stop", "does not apply to --stop"),
        ("topic clicks --status", "no job on a cluster ingests into 'clicks'"),
        ("topic clicks --stop", "no job on a cluster ingests into 'clicks'"),
        ("topic clicks --stop --cluster h:1", "no job on a cluster ingests into 'clicks'"),
        ("changes clicks", "name the table whose changes to ingest"),
        ("changes clicks shop.t", "unknown database 'shop'; available:"),
        ("changes clicks t", "unknown table 't'; available: events_clicks"),
        ("changes clicks events_clicks", "source 'clicks' has no retraction column"),
    ],
)
def test_wrong_use_exits_with_two_before_anything_starts(words: str, message: str) -> None:
    done = run(*words.split())
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert done.stdout == ""


def test_an_unreachable_cluster_is_an_external_failure() -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    done = run("files", "clicks", "a.csv", "--cluster", address)
    assert done.exit_code == 1
    assert f"the cluster http://{address} does not answer" in done.stderr


def test_a_source_that_is_not_applied_is_rejected_with_the_command_to_run(tmp_path: Path) -> None:
    (tmp_path / "features.py").write_text(FEATURES.replace('"clicks"', '"taps"'))
    done = run("files", "taps", "a.csv")
    assert done.exit_code == 2
    assert "source 'taps' has no table 'events_taps' yet; 'paimon-features apply'" in done.stderr


RESULT = IngestResult(
    run_id="17b3",
    files=("/in/a.csv", "/in/b.jsonl"),
    skipped=(("/in/old.csv", "ingested before, by run 99"),),
    accepted=1_500,
    rejected={"wrong_type": 480, "missing_time": 20},
    examples={"wrong_type": "column id: expected int64, got 'x' (/in/a.csv)", "missing_time": "?"},
    ignored_columns=("remark",),
    absent_columns=("page",),
    elapsed_s=2.0,
    events_snapshot=7,
    finished_run="42",
    forgotten_files=("/in/c.csv",),
)


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments of the job, which is replaced and returns RESULT."""
    seen: dict[str, Any] = {}

    def ingest_files(*arguments: Any, **options: Any) -> IngestResult:
        seen.update(options, mapping=arguments[3], paths=arguments[2], source=arguments[1].name)
        return RESULT

    monkeypatch.setattr(module, "ingest_files", ingest_files)
    return seen


def test_a_run_is_reported_with_its_rate_and_an_example_per_reason(
    requested: dict[str, Any],
) -> None:
    done = run("files", "clicks", "a.csv", "empty", "--column", "id=Id", "--again")
    assert done.exit_code == 0
    assert done.output.splitlines() == [
        "run 42 had been interrupted and is now finished",
        "an interrupted run had committed nothing of /in/c.csv: ingest that again",
        "skipped /in/old.csv: ingested before, by run 99 (--again ingests it again)",
        "columns that clicks does not have: remark",
        "keys missing from the first rows, read as null: page",
        "1,500 events from 2 files in 2.0 s (1,000 rows/s), events_clicks is at snapshot 7",
        "500 rows are kept in rejected_clicks:",
        "        480  wrong_type         e.g. column id: expected int64, got 'x' (/in/a.csv)",
        "         20  missing_time       e.g. ?",
    ]
    assert requested["paths"] == (Path("a.csv"), Path("empty"))
    assert (requested["source"], requested["mapping"], requested["again"]) == (
        "clicks",
        {"id": "Id"},
        True,
    )


def test_json_output_is_one_complete_document(requested: dict[str, Any]) -> None:
    document = json.loads(run("files", "clicks", "a.csv", "--json").stdout)
    assert document == {
        "run_id": "17b3",
        "rows": 1500,
        "rejected": {"wrong_type": 480, "missing_time": 20},
        "examples": dict(RESULT.examples),
        "seconds": 2.0,
        "files": ["/in/a.csv", "/in/b.jsonl"],
        "skipped": {"/in/old.csv": "ingested before, by run 99"},
        "ignored_columns": ["remark"],
        "absent_columns": ["page"],
        "events_snapshot": 7,
        "finished_run": "42",
        "forgotten_files": ["/in/c.csv"],
        "released": 0,
    }
    assert requested["progress"].silent


def test_the_local_engine_ingests_without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    done = run("files", "clicks", "a.csv", "--engine", "local")
    assert done.exit_code == 0, done.output
    assert "1 events from 1 file" in done.output
    again = json.loads(run("files", "clicks", "a.csv", "--engine", "local", "--json").stdout)
    assert (again["run_id"], list(again["skipped"])) == (None, [str(Path("a.csv").resolve())])
