"""``lookup --explain``, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paimon_features.cli._explanation import time_line
from paimon_features.core.windows import DAY_MS, HOUR_MS, MINUTE_MS
from paimon_features.project import Project
from tests.commands import invoke as run
from tests.shop_projects import started_shop

NOW = 1_323_432_000_000


@pytest.fixture
def project(tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Project:
    times = [NOW - DAY_MS, NOW - 90 * MINUTE_MS, NOW - MINUTE_MS]
    project = started_shop(tmp_path, redis_url, monkeypatch, {12346: times})
    assert run("materialize", "customer_spend").exit_code == 0
    return project


@pytest.mark.redis
def test_a_number_is_taken_apart_in_words_a_drawing_and_a_table(project: Project) -> None:
    done = run(
        "lookup", "customer_spend:sum_amount_1d", "--entity", "customer_id=12346", "--as-of",
        "2011-12-09T12:00:00", "--explain",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0] == "customer_spend: customer_id=12346, read at 2011-12-09 12:00:00 UTC"
    assert lines[1].startswith("record of snapshot 1 (all of its bucket: 1), newest event 2011-12")
    assert lines[3] == "sum_amount_1d = 7.5"
    assert "from 3 events in 3 cells of 1h" in lines[4]
    drawn = [line for line in lines if line.endswith("|")]
    assert [line.count("#") > 0 for line in drawn] == [False, True, False]  # 1d, 1h, 5min
    table = [line.split() for line in lines if line.startswith(("1h ", "together"))]
    assert [row[0] for row in table] == ["1h", "1h", "1h", "together"]
    assert [row[-1] for row in table] == ["2.5", "2.5", "2.5", "7.5"]


@pytest.mark.redis
def test_every_feature_is_reported_and_json_has_it_all(project: Project) -> None:
    explain = ("lookup", "customer_spend", "--explain", "--as-of", str(NOW))
    requested = (*explain, "--entity", "customer_id=12346")
    view = project.view("customer_spend")
    reported = run(*requested).output
    for feature in view.features:
        assert f"\n{feature.name} = " in reported
    document = json.loads(run(*requested, "--json").stdout)
    assert [f["name"] for f in document["features"]] == [f.name for f in view.features]
    assert document["as_of_ms"] == NOW
    missing = run(*explain, "--entity", "customer_id=1")
    assert missing.exit_code == 0
    assert "no record in the online store" in missing.output
    assert "MISSING" in missing.output


@pytest.mark.redis
def test_what_cannot_be_explained_is_reported(project: Project) -> None:
    for arguments, message in (
        (("nothing", "--entity", "customer_id=1"), "unknown service 'nothing'"),
        (("customer_spend", "--entity", "customer_id=1,2"), "expected one value"),
        (("customer_spend", "--entity", "shop=1"), "expected KEY=VALUE"),
        (("customer_spend:x", "--entity", "customer_id=1"), "unknown feature"),
        (("customer_spend", "--entity", "customer_id=1", "--request", "a=1"), "does not apply"),
        (("customer_spend", "--entity", "customer_id=1", "--as-of", "noon"), "expected UTC"),
    ):
        done = run("lookup", "--explain", *arguments)
        assert done.exit_code == 2, done.output
        assert message in done.output


def test_the_drawing_marks_cells_that_count_and_the_edges_of_the_window() -> None:
    def cell(level: int, start_ms: int, size_ms: int) -> dict[str, Any]:
        return {"level": level, "start_ms": start_ms, "end_ms": start_ms + size_ms}

    five = 5 * MINUTE_MS
    document = {
        "levels_ms": [five, HOUR_MS],
        "as_of_ms": 72 * five,
        "cells": [cell(0, 71 * five, five), cell(1, 0, HOUR_MS), cell(1, 5 * HOUR_MS, HOUR_MS)],
    }
    feature = {"start_ms": 0, "end_ms": 72 * five, "cells": [{"cell": 0}, {"cell": 1}]}
    assert time_line(document, feature) == [
        "    1h |" + "#" * 12 + " " * 48 + "." * 12 + "|",
        "  5min |" + " " * 71 + "#|",
        "        [" + " " * 71 + ")",
        "        1970-01-01 00:00:00" + " " * 30 + "1970-01-01 06:00:00 UTC",
    ]
    hop = {"start_ms": 0, "end_ms": 36 * five, "cells": []}
    assert time_line(document, hop)[2] == "        [" + " " * 35 + ")"
