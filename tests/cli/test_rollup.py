"""``maintain --only rollup``, as a user runs it."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

from paimon_features.core.windows import DAY_MS
from paimon_features.lake.ownership.lease import ProcessHolder, acquire
from paimon_features.project import Project
from tests.cli.test_training_set import NOW, commit
from tests.cli.test_training_set import project as project
from tests.commands import invoke

__all__ = ["project"]

run = partial(invoke, "maintain", "--only", "rollup")


def test_a_named_view_is_rolled_up_and_lifetimes_are_by_default(project: Project) -> None:
    assert "no view has a lifetime window" in run().output
    commit(
        project, [(1, NOW - day * DAY_MS - 600_000 * n, 1.0) for day in range(9) for n in (1, 2)]
    )
    first = run("customer")
    assert first.exit_code == 0, first.output
    assert first.output.startswith("customer: 0 rollups up to date, ")
    # a window of its own, over the same tiles
    text = Path("features.py").read_text()
    Path("features.py").write_text(text.replace('pf.Count(windows=["7d"])', "pf.Count()"))
    reported = json.loads(run("--json").stdout)["customer"]
    assert reported["created"] == 0 < reported["fresh"]


def test_what_another_process_rolls_up_is_refused_with_its_owner(project: Project) -> None:
    init = replace(ProcessHolder.current(), host="elsewhere")
    with acquire(project.lake, "rollup_customer_g1", init, purpose="roll its tiles up"):
        done = run("customer")
    assert done.exit_code == 1
    assert "rollup_customer_g1' is owned by" in done.output


def test_an_unknown_view_is_refused_with_what_there_is(project: Project) -> None:
    done = run("custmer")
    assert done.exit_code == 2
    assert "customer" in done.output
