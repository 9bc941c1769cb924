"""The variables of a superstep iteration live in a table: one commit per epoch, each once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from paimon_features.core.documents.signed_pickle import Seal
from paimon_features.core.errors import JobError, TableError
from paimon_features.iteration.supersteps.variable_table import (
    CommittedEpoch,
    VariableTable,
    check_shape,
)
from paimon_features.lake import Lake
from tests.waiting import LONG_S

BEGUN = CommittedEpoch(0, "running", feedback=3, criteria=0, shape="one variable")


@pytest.fixture
def table(tmp_path: Path) -> VariableTable:
    made = VariableTable(Lake.open(tmp_path, "shop"), "ranks")
    made.create()
    return made


def begin(table: VariableTable) -> CommittedEpoch:
    part = table.write(0, 0, {(0, 0): [1, 2], (0, 1): ["three"]}, {})
    return table.commit(None, BEGUN, [part], readers=2)


def test_nothing_is_committed_before_the_first_commit(table: VariableTable) -> None:
    assert table.committed() is None
    table.write(0, 0, {(0, 0): [1]}, {})
    assert table.committed() is None
    assert list(table.outputs(0)) == []


def test_each_subtask_reads_its_own_variables_of_the_last_commit(table: VariableTable) -> None:
    first = begin(table)
    assert (first.snapshot_id, first.epoch) == (1, 0)
    assert list(table.variables(first, 0)) == [(0, [1, 2])]
    assert list(table.variables(first, 1)) == [(0, ["three"])]

    parts = [
        table.write(0, 1, {(0, 0): ["b"], (1, 0): ["other"]}, {(0, 1): ["out 1"]}),
        table.write(0, 0, {(0, 0): ["a"]}, {(0, 0): ["out 0"]}),
    ]
    second = table.commit(first, replace(BEGUN, epoch=1), parts, readers=2)
    assert table.committed() == second
    assert (second.snapshot_id, second.epoch) == (2, 1)
    # by writer, whatever came first
    assert list(table.variables(second, 0)) == [(0, ["a"]), (0, ["b"]), (1, ["other"])]
    # subtask 1 has none now, and does not find its old ones
    assert list(table.variables(second, 1)) == []
    assert list(table.outputs(0)) == [(0, ["out 0"]), (0, ["out 1"])]
    # the epoch before is still there to be looked at
    assert list(table.variables(first, 1)) == [(0, ["three"])]


def test_of_two_commits_after_the_same_epoch_the_second_is_rejected(table: VariableTable) -> None:
    first = begin(table)
    other = VariableTable(table.lake, "ranks")
    part = other.write(0, 0, {(0, 0): ["other"]}, {(0, 0): ["from other"]})
    mine = table.write(0, 0, {(0, 0): ["mine"]}, {(0, 0): ["from me"]})
    table.commit(first, replace(BEGUN, epoch=1), [mine], readers=2)
    with pytest.raises(TableError, match="is at snapshot 2, expected 1: another process"):
        other.commit(first, replace(BEGUN, epoch=1), [part], readers=2)
    assert list(table.outputs(0)) == [(0, ["from me"])]


def test_a_commit_whose_answer_is_lost_is_found(
    table: VariableTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pypaimon.write.table_commit import BatchTableCommit

    commit = BatchTableCommit.commit

    def lost(self: BatchTableCommit, *arguments: object) -> None:
        commit(self, *arguments)  # type: ignore[arg-type]
        raise OSError("the connection broke")

    monkeypatch.setattr(BatchTableCommit, "commit", lost)
    assert begin(table).snapshot_id == 1

    def refused(self: BatchTableCommit, *arguments: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(BatchTableCommit, "commit", refused)
    part = table.write(0, 0, {(0, 0): ["a"]}, {})
    with pytest.raises(TableError, match="commit after snapshot 1 failed: no space left"):
        table.commit(table.committed(), replace(BEGUN, epoch=1), [part], readers=2)
    state = table.committed()
    assert state is not None
    assert state.epoch == 0


def test_another_program_cannot_continue_with_the_variables(table: VariableTable) -> None:
    state = begin(table)
    check_shape(state, "one variable", "ranks")
    with pytest.raises(JobError, match="had one variable, this one has two"):
        check_shape(state, "two", "ranks")


KILLED = """
import os, signal, sys
from dataclasses import replace
from paimon_features.iteration.supersteps.variable_table import VariableTable
from paimon_features.lake import Lake
import paimon_features.lake.writing.distributed_commit as distributed_commit
table = VariableTable(Lake.open(sys.argv[1], "shop"), "ranks")
state = table.committed()
part = table.write(0, 0, {(0, 0): ["new"]}, {(0, 0): ["new"]})
if sys.argv[2] == "before":
    os.kill(os.getpid(), signal.SIGKILL)
distributed_commit.read_snapshot_file = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
table.commit(state, replace(state, epoch=1), [part], readers=2)
"""


def test_rows_that_others_write_are_not_unpickled(table: VariableTable) -> None:
    """Whoever else can write into the lake has another key."""
    state = begin(table)
    other = VariableTable(table.lake, "ranks", Seal.random())
    with pytest.raises(JobError, match="'ranks': a row of table 'iteration_ranks' was not written"):
        list(other.variables(state, 0))
    part = other.write(1, 0, {(0, 0): ["forged"]}, {(0, 0): ["forged"]})
    state = other.commit(state, replace(BEGUN, epoch=1), [part], readers=2)
    with pytest.raises(JobError, match="not written with the key of this job"):
        list(table.outputs(0))
    with pytest.raises(JobError, match="not written with the key of this job"):
        list(table.variables(state, 0))


@pytest.mark.parametrize(("when", "epoch"), [("before", 0), ("after", 1)])
def test_a_kill_around_the_commit_leaves_the_previous_or_the_next_epoch(
    table: VariableTable, when: str, epoch: int
) -> None:
    begin(table)
    command = [sys.executable, "-c", KILLED, str(table.lake.warehouse), when]
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    ended = subprocess.run(command, env=here, check=False, timeout=LONG_S)
    assert ended.returncode == -signal.SIGKILL
    state = table.committed()
    assert state is not None
    assert state.epoch == epoch
    assert len(list(table.outputs(0))) == epoch
