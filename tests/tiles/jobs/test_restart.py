"""The rules of "never twice", without Flink: from a record, histories and checkpoints."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from paimon_features.core.errors import GenerationError
from paimon_features.flink.checkpoints import (
    Branch,
    Checkpoint,
    checkpoint_number,
    find_checkpoints,
    read_checkpoint,
)
from paimon_features.lake.metadata.snapshots import BATCH_IDENTIFIER, Snapshot
from paimon_features.tiles.jobs.restart import (
    GenerationState,
    Start,
    TableHistory,
    decide_backfill,
    decide_rollback,
    decide_start,
)

A, B, C = "a" * 32, "b" * 32, "c" * 32
USER = "spend-g1-0001"


def snapshot(number: int, identifier: int, user: str = USER, kind: str = "APPEND") -> Snapshot:
    return Snapshot(number, kind, f"{user}_uuid", identifier, 0, 1, 1, 0)


def history(*identifiers: int, first: int = 1, name: str = "tiles_spend_g1") -> TableHistory:
    return TableHistory(name, tuple(snapshot(first + i, n) for i, n in enumerate(identifiers)))


def checkpoint(number: int, job_id: str = A) -> Checkpoint:
    return Checkpoint(number, Path(f"/state/{job_id}/chk-{number}"), job_id)


EMPTY = GenerationState(
    view="spend",
    generation=1,
    commit_user=None,
    branch=Branch(),
    backfilled=False,
    backfill_snapshot=None,
    handover_snapshot=None,
    last_committed=None,
    tables=(history(), history(name="skipped_spend_g1")),
    checkpoints=(),
)
STREAMED = replace(
    EMPTY,
    commit_user=USER,
    branch=Branch(((A, None),)),
    last_committed=8,
    tables=(history(7, 8, 9), history(9, name="skipped_spend_g1")),
    checkpoints=(checkpoint(8), checkpoint(9)),
)
BACKFILLED = replace(
    EMPTY,
    commit_user=USER,
    backfilled=True,
    backfill_snapshot=1,
    handover_snapshot=41,
    tables=(history(BATCH_IDENTIFIER), history(name="skipped_spend_g1")),
)


@pytest.mark.parametrize("state", [STREAMED, BACKFILLED])
def test_a_job_does_not_continue_on_events_that_were_created_again(state: GenerationState) -> None:
    with pytest.raises(GenerationError, match="were dropped and created again.*--rebuild"):
        decide_start(replace(state, events_replaced=True))
    assert decide_start(replace(EMPTY, events_replaced=True)) == Start()


# -- starting ----------------------------------------------------------------------------------


def test_an_empty_generation_starts_with_all_events() -> None:
    assert decide_start(EMPTY) == Start()


def test_a_job_that_never_committed_starts_over() -> None:
    died = replace(EMPTY, commit_user=USER, branch=Branch(((A, None),)))
    assert decide_start(died) == Start()


def test_a_job_goes_on_from_the_newest_checkpoint_of_its_record() -> None:
    assert decide_start(STREAMED) == Start(resume=checkpoint(9))


def test_a_checkpoint_whose_commit_did_not_happen_is_gone_on_from_all_the_same() -> None:
    # Paimon commits the checkpoint's rows when the job resumes
    ahead = replace(STREAMED, checkpoints=(checkpoint(9), checkpoint(12)))
    assert decide_start(ahead).resume == checkpoint(12)


def test_checkpoints_of_another_history_are_not_seen() -> None:
    stranger = replace(STREAMED, checkpoints=(*STREAMED.checkpoints, checkpoint(50, B)))
    assert decide_start(stranger).resume == checkpoint(9)


def test_a_checkpoint_older_than_the_table_is_refused_and_the_rollback_named() -> None:
    old = replace(STREAMED, checkpoints=(checkpoint(8),))
    with pytest.raises(GenerationError, match="submit spend --rollback"):
        decide_start(old)


def test_a_checkpoint_older_than_the_table_of_skipped_rows_is_refused_too() -> None:
    old = replace(
        STREAMED,
        tables=(history(7, 8), history(9, name="skipped_spend_g1")),
        checkpoints=(checkpoint(8),),
    )
    with pytest.raises(GenerationError, match="--rollback"):
        decide_start(old)


def test_compactions_by_maintenance_are_no_strangers() -> None:
    tiles = TableHistory(
        "tiles_spend_g1", (snapshot(1, 9), snapshot(2, BATCH_IDENTIFIER, "other", "COMPACT"))
    )
    ledger = replace(STREAMED, tables=(tiles, STREAMED.tables[1]))
    assert decide_start(ledger).resume == checkpoint(9)


def test_tiles_without_a_checkpoint_are_refused_and_the_rebuild_named() -> None:
    with pytest.raises(GenerationError, match="submit spend --rebuild"):
        decide_start(replace(STREAMED, checkpoints=()))


def test_tiles_without_a_record_are_refused_and_the_rebuild_named() -> None:
    unknown = replace(EMPTY, tables=(history(3), history(name="skipped_spend_g1")))
    with pytest.raises(GenerationError, match="no record of its job.*--rebuild"):
        decide_start(unknown)


def test_rows_that_another_committed_are_refused() -> None:
    mixed = TableHistory("tiles_spend_g1", (snapshot(1, 9), snapshot(2, 1, "someone")))
    with pytest.raises(GenerationError, match=r"snapshot 2 .*'someone_uuid'.*--rebuild"):
        decide_start(replace(STREAMED, tables=(mixed, STREAMED.tables[1])))


def test_a_table_that_lost_commits_is_refused() -> None:
    # rolled back by hand: going on from checkpoint 9 would leave events out
    for skipped in (history(name="skipped_spend_g1"), STREAMED.tables[1]):
        lost = replace(STREAMED, tables=(history(7), skipped))
        with pytest.raises(GenerationError, match="rolled back or restored"):
            decide_start(lost)


def test_commits_that_have_expired_behind_maintenance_are_not_lost_and_not_forgotten() -> None:
    #  snapshots      1   2   3   4        30  31 ...
    #  committed by   7   8   9   (the job, expired)  maintenance
    compacted = snapshot(30, BATCH_IDENTIFIER, "other", "COMPACT")
    tiles = TableHistory("tiles_spend_g1", (compacted,))
    ledger = replace(STREAMED, tables=(tiles, history(name="skipped_spend_g1")))
    assert decide_start(ledger).resume == checkpoint(9)
    older = replace(ledger, checkpoints=(checkpoint(7),))
    with pytest.raises(GenerationError, match="--rollback"):
        decide_start(older)
    with pytest.raises(GenerationError, match="expired, the oldest is 30"):
        decide_rollback(older, checkpoint(7))
    # after a backfill, starting at the handover would count twice what the stream has read
    gone = replace(ledger, backfilled=True, handover_snapshot=41, last_committed=None)
    with pytest.raises(GenerationError, match="none of its checkpoints"):
        decide_start(replace(gone, checkpoints=()))


def test_a_stream_starts_after_its_backfill() -> None:
    assert decide_start(BACKFILLED) == Start(from_snapshot=42)


def test_a_stream_behind_a_backfill_goes_on_from_its_checkpoint() -> None:
    tiles = TableHistory("tiles_spend_g1", (snapshot(1, BATCH_IDENTIFIER), snapshot(2, 3)))
    ledger = replace(
        BACKFILLED,
        branch=Branch(((A, None),)),
        tables=(tiles, BACKFILLED.tables[1]),
        checkpoints=(checkpoint(3),),
    )
    assert decide_start(ledger) == Start(resume=checkpoint(3))
    with pytest.raises(GenerationError, match="--rebuild"):
        decide_start(replace(ledger, checkpoints=()))


def test_a_backfill_whose_tiles_are_gone_is_not_gone_on_from() -> None:
    with pytest.raises(GenerationError, match="contain less"):
        decide_start(replace(BACKFILLED, tables=EMPTY.tables))


def test_a_backfill_of_which_no_event_entered_a_tile_is_gone_on_from() -> None:
    nothing = replace(BACKFILLED, backfill_snapshot=None, tables=EMPTY.tables)
    assert decide_start(nothing) == Start(from_snapshot=42)


def test_a_backfill_that_did_not_end_is_not_gone_on_from() -> None:
    broken = replace(BACKFILLED, backfilled=False)
    with pytest.raises(GenerationError, match="backfill spend' starts it again"):
        decide_start(broken)


@pytest.mark.parametrize("tables", [EMPTY.tables, STREAMED.tables])
def test_a_copy_that_did_not_end_is_not_gone_on_from(tables: tuple[TableHistory, ...]) -> None:
    cut_off = replace(EMPTY, generation=2, copied_from=1, tables=tables)
    with pytest.raises(GenerationError, match="spend --from-generation 1' starts it again"):
        decide_start(cut_off)
    assert decide_backfill(cut_off) is False


# -- backfilling -------------------------------------------------------------------------------


def test_a_backfill_starts_on_an_empty_generation_only() -> None:
    assert decide_backfill(EMPTY) is True
    for taken in (STREAMED, BACKFILLED, replace(STREAMED, tables=EMPTY.tables)):
        with pytest.raises(GenerationError, match="backfill spend --rebuild"):
            decide_backfill(taken)


def test_an_unfinished_backfill_starts_again_on_emptied_tables() -> None:
    unfinished = replace(BACKFILLED, backfilled=False)
    assert decide_backfill(unfinished) is False
    assert decide_backfill(replace(unfinished, tables=EMPTY.tables)) is False


def test_an_unfinished_backfill_does_not_empty_tables_with_rows_of_others() -> None:
    unfinished = replace(BACKFILLED, backfilled=False)
    foreign = TableHistory("tiles_spend_g1", (snapshot(1, BATCH_IDENTIFIER, "someone"),))
    streamed = history(7)
    for table in (foreign, streamed):
        with pytest.raises(GenerationError, match="backfill spend --rebuild"):
            decide_backfill(replace(unfinished, tables=(table, unfinished.tables[1])))
    with pytest.raises(GenerationError, match="backfill spend --rebuild"):
        decide_backfill(replace(unfinished, commit_user=None))


# -- rolling back ------------------------------------------------------------------------------


def test_a_rollback_goes_to_the_last_snapshot_of_the_checkpoint() -> None:
    #  snapshots     1   2   3   4          5
    #  committed by  7   8   9   9 compact  10
    tiles = TableHistory(
        "tiles_spend_g1",
        (*history(7, 8, 9).snapshots, snapshot(4, 9, kind="COMPACT"), snapshot(5, 10)),
    )
    ledger = replace(STREAMED, tables=(tiles, STREAMED.tables[1]))
    assert decide_rollback(ledger, checkpoint(9)) == {"tiles_spend_g1": 4}
    assert decide_rollback(ledger, checkpoint(8)) == {"tiles_spend_g1": 2, "skipped_spend_g1": None}
    assert decide_rollback(ledger, checkpoint(10)) == {}


def test_a_rollback_behind_a_backfill_keeps_it() -> None:
    tiles = TableHistory("tiles_spend_g1", (snapshot(1, BATCH_IDENTIFIER), snapshot(2, 3)))
    ledger = replace(BACKFILLED, branch=Branch(((A, None),)), tables=(tiles, BACKFILLED.tables[1]))
    assert decide_rollback(ledger, checkpoint(2)) == {"tiles_spend_g1": 1}


def test_a_rollback_to_an_expired_snapshot_is_refused() -> None:
    ledger = replace(STREAMED, tables=(history(8, 9, first=20), STREAMED.tables[1]))
    with pytest.raises(GenerationError, match="expired, the oldest is 20.*--rebuild"):
        decide_rollback(ledger, checkpoint(7))


def test_a_rollback_to_a_checkpoint_of_another_history_is_refused() -> None:
    with pytest.raises(GenerationError, match="not part of the history"):
        decide_rollback(STREAMED, checkpoint(8, B))


# -- branches ----------------------------------------------------------------------------------


def test_a_branch_holds_what_its_jobs_went_on_from_and_nothing_behind_it() -> None:
    #  A  7  8  9  10
    #           +-- B  10  11
    #                   +-- (C, which died before its first checkpoint)
    branch = Branch().then(A, None).then(B, checkpoint(9, A)).then(C, checkpoint(11, B))
    assert branch.contains(checkpoint(9, A))
    assert not branch.contains(checkpoint(10, A))
    assert branch.contains(checkpoint(11, B))
    assert branch.then(A[::-1] + "", checkpoint(10, B)).jobs[-1][1] == 10
    rolled_back = branch.then("d" * 32, checkpoint(8, A))
    assert not rolled_back.contains(checkpoint(9, A))
    assert not rolled_back.contains(checkpoint(11, B))
    assert rolled_back.contains(checkpoint(9, "d" * 32))


def test_a_branch_survives_the_record() -> None:
    branch = Branch().then(A, None).then(B, checkpoint(9, A))
    assert Branch.of({"branch": [list(step) for step in branch.jobs]}) == branch
    assert Branch.of(None) == Branch()


# -- checkpoints on disk -----------------------------------------------------------------------


def metadata(number: int) -> bytes:
    return struct.pack(">iiq", 0x4960672D, 5, number) + b"state"


def make(folder: Path, job_id: str, name: str, content: bytes | None) -> Path:
    path = folder / job_id / name
    path.mkdir(parents=True)
    if content is not None:
        (path / "_metadata").write_bytes(content)
    return path


def test_checkpoints_and_savepoints_are_recognized_by_their_metadata(tmp_path: Path) -> None:
    make(tmp_path, A, "chk-7", metadata(7))
    make(tmp_path, A, "savepoint-aaaaaa-0123", metadata(12))
    make(tmp_path, B, "chk-9", metadata(9))
    make(tmp_path, B, "chk-10", None)  # its job died while it was written
    make(tmp_path, B, "shared", None)
    make(tmp_path, "not a job", "chk-99", metadata(99))
    assert [(c.id, c.job_id) for c in find_checkpoints(tmp_path)] == [(7, A), (9, B), (12, A)]
    assert find_checkpoints(None) == find_checkpoints(tmp_path / "none") == ()


def test_what_is_no_checkpoint_says_so(tmp_path: Path) -> None:
    with pytest.raises(GenerationError, match="not a complete checkpoint"):
        read_checkpoint(make(tmp_path, A, "chk-1", None))
    with pytest.raises(GenerationError, match="has another format"):
        read_checkpoint(make(tmp_path, A, "chk-2", b"something else, and longer"))
    with pytest.raises(GenerationError, match="the parent folder"):
        read_checkpoint(make(tmp_path, "copy", "chk-3", metadata(3)))
    with pytest.raises(GenerationError):
        checkpoint_number(metadata(4)[:10])


def test_a_job_may_run_again_under_its_id() -> None:
    #  A ----8--9  A (from 9) --10--11  B (from 11) --12   A (from 12) --13
    first = Branch().then(A, None)
    again = first.then(A, checkpoint(9, A))
    assert again == first
    assert again.contains(checkpoint(11, A))
    branch = again.then(B, checkpoint(11, A)).then(A, checkpoint(12, B))
    assert branch.jobs == ((A, None), (B, 11), (A, 12))
    assert [branch.contains(checkpoint(n, A)) for n in (11, 12, 13)] == [True, False, True]
    assert [branch.contains(checkpoint(n, B)) for n in (11, 12, 13)] == [False, True, False]
    assert branch.then(A, checkpoint(13, A)) == branch
    # back to one before: what followed it belongs to another history
    assert branch.then(A, checkpoint(10, A)).jobs == ((A, None),)
    with pytest.raises(GenerationError, match="not part of the history"):
        branch.then(A, checkpoint(12, A))
