"""``check leases`` as an operator reads it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import partial

import pytest

from paimon_features.lake.ownership import claims
from paimon_features.lake.ownership.lease import FlinkJobHolder, ProcessHolder, acquire
from paimon_features.project import Project
from tests import commands

run = partial(commands.run, "check", "leases")


def test_owners_are_shown_with_their_state(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run().output == "no table has an owner\n"
    me = ProcessHolder.current()
    unseen = replace(me, boot="another machine")
    gone = FlinkJobHolder("http://127.0.0.1:9", "0af1", replace(me, started=1))
    with acquire(project.lake, "a", me, "ingest into 'clicks'"), acquire(project.lake, "d"):
        monkeypatch.setattr(claims, "BEAT_S", 1.0)
        acquire(project.lake, "b", unseen, "backfill it")
        monkeypatch.setattr(claims, "BEAT_S", 0.02)
        acquire(project.lake, "c", unseen)._forget()  # as if it was killed
        acquire(project.lake, "e", gone)
        acquire(project.lake, "f").release()
        table = [line.split("  ") for line in run().output.splitlines()]
        found = {line[0]: line[-1].strip() for line in table}
        rows = json.loads(run("--json").output)
    why = "it is on another machine, or this one was restarted since; its heartbeat"
    assert found == {
        "TABLE": "STATE",
        "a": "it is running",
        "b": f"{why} continues",
        "c": f"{why} has stopped",
        "d": "it is running",
        "e": "its cluster has ended",
    }
    assert rows[0]["owner"] == f"process {os.getpid()} on {me.host}"
    assert {cell.strip() for cell in table[1]} >= {rows[0]["owner"], "ingest into 'clicks'"}
    assert [row["table"] for row in rows] == ["a", "b", "c", "d", "e"]
    assert rows[1]["purpose"] == "backfill it"
    assert rows[1]["number"] == 1
