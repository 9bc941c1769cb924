"""``check records`` and ``ingest --mark-ingested`` as a user types them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from paimon_features.ingest.ledger import IngestLedger
from paimon_features.lake.ownership import lease
from paimon_features.project import Project
from tests.commands import run

DEFINITIONS = """
import paimon_features as pf

clicks = pf.EventSource("clicks", schema={"id": pf.Int64, "at_ms": pf.Int64}, event_time="at_ms")
"""

pytestmark = pytest.mark.usefixtures("project")


def test_a_lost_folder_is_shown_and_its_records_are_rebuilt_or_given_up(
    project: Project, tmp_path: Path
) -> None:
    for name, row in (("a", "1,5"), ("b", "2,6")):
        (tmp_path / f"{name}.csv").write_text(f"id,at_ms\n{row}\n")
    marked = json.loads(
        run("ingest", "files", "clicks", "a.csv", "--mark-ingested", "--json").stdout
    )
    assert marked == {"marked": [str(tmp_path / "a.csv")], "skipped": {}}
    lease.acquire(project.lake, "events_clicks").release()
    assert run("check", "records").output == "no record is lost\n"

    shutil.rmtree(project.lake.side_folder)
    found = json.loads(run("check", "records", "--json", code=1).stdout)
    assert {(record["kind"], record["table"]) for record in found} == {
        ("ingests", "events_clicks"),
        ("leases", "events_clicks"),
        ("leases", "rejected_clicks"),
    }
    refused = run("ingest", "files", "clicks", "a.csv", code=1).output
    assert "ingests/features.clicks.json does not exist, but was written before" in refused
    assert "--mark-ingested" in run("check", "records", "--accept-loss", code=1).output

    assert (
        "1 file is recorded" in run("ingest", "files", "clicks", "a.csv", "--mark-ingested").output
    )
    assert "skipped" in run("ingest", "files", "clicks", "a.csv", "--mark-ingested").output
    assert json.loads(run("check", "records", "--json").stdout) == []
    ledger = IngestLedger(project.lake, project.definitions.source("clicks"))
    assert [file.path for run in ledger.runs() for file in run.files] == [str(tmp_path / "a.csv")]


def test_marking_takes_nothing_else() -> None:
    refused = run("ingest", "files", "clicks", "a.csv", "--mark-ingested", "--again", code=2)
    assert "takes nothing but the source and FILES" in refused.output
