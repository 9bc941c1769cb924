"""Spool files reach the table once, whatever is killed in between."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from paimon_features.core.errors import OwnershipError
from paimon_features.lake import read_arrow, snapshots
from paimon_features.lake.ownership import lease
from paimon_features.lake.ownership.lease import ProcessHolder, acquire, holder_of
from paimon_features.online.store import MemoryStore
from paimon_features.serving.request_log import commit as module
from paimon_features.serving.request_log.commit import SpoolCommitter
from paimon_features.serving.request_log.log_rows import log_schema
from paimon_features.serving.request_log.spool import SpoolFile, described_schema
from tests.clicks import clicks_view
from tests.long_cases import quick_cases
from tests.project.verification.shop import NAME, Shop, counts

DAY_1 = 1_700_000_000_000


class KilledError(BaseException):
    """The process ends here."""


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path, [clicks_view()], MemoryStore())


def row(name: str, **values: Any) -> dict[str, Any]:
    empty = dict.fromkeys(log_schema().names)
    return {**empty, "request_id": name, "project": NAME, "served_at_ms": DAY_1, **values}


def in_table(shop: Shop) -> list[str]:
    if not shop.lake.exists("served_shop"):
        return []
    found: list[str] = read_arrow(shop.lake, "served_shop", ["request_id"]).column(0).to_pylist()
    return sorted(found)


def test_rows_are_in_the_table_as_they_were_written_partitioned_by_day(shop: Shop) -> None:
    a = row("a", feature_values='{"x":0.1}', record_snapshot=2**62, row=3)
    b = row("b", served_at_ms=DAY_1 + 86_400_000)
    shop.write([a], "w-1")
    shop.write([b], "w-2")
    assert counts(shop.bring()) == {"files": 2, "rows": 2, "commits": 1}
    table = read_arrow(shop.lake, "served_shop").sort_by("request_id")
    assert table.select(log_schema().names).to_pylist() == [a, b]
    assert table.column("served_day").to_pylist() == [19675, 19676]
    assert table.column("spool_file").to_pylist() == ["w-1.arrow", "w-2.arrow"]
    assert counts(shop.bring()) == {}


def test_open_files_are_left_to_their_workers_and_taken_once_these_are_gone(shop: Shop) -> None:
    shop.spool.mkdir()
    file = SpoolFile(shop.spool, "w-1", described_schema(log_schema(), NAME, "w"))
    file.append(pa.RecordBatch.from_pylist([row("a")], log_schema()))
    assert counts(shop.bring()) == {}
    file.abandon()
    assert counts(shop.bring()) == {"files": 1, "rows": 1, "commits": 1, "recovered": 1}
    assert in_table(shop) == ["a"]


def test_a_torn_end_is_reported_and_the_rows_before_it_are_kept(shop: Shop) -> None:
    path = shop.write([row("a")], "w-1")
    with path.open("ab") as file:
        file.write(b"\xff\xff\xff\xff\x10")
    reported: list[str] = []
    assert counts(shop.bring(on_message=reported.append)) == {
        "files": 1, "rows": 1, "commits": 1, "torn": 1, "torn_bytes": 5,
    }  # fmt: skip
    assert "last 5 bytes are torn" in reported[0]
    assert in_table(shop) == ["a"]


def test_files_that_cannot_be_read_and_those_of_others_go_aside(shop: Shop) -> None:
    shop.write([row("a")], "w-1")
    shop.write([row("b", project="other")], "w-2")
    (shop.spool / "w-3.arrow").write_bytes(b"nonsense")
    reported: list[str] = []
    assert counts(shop.bring(on_message=reported.append)) == {
        "files": 1, "rows": 1, "commits": 1, "rejected": 2,
    }  # fmt: skip
    assert "is of the project other, not shop" in reported[0]
    assert "w-3.arrow is not a spool file" in reported[1]
    assert sorted(path.name for path in (shop.spool / "rejected").iterdir()) == [
        "w-2.arrow", "w-3.arrow",
    ]  # fmt: skip


def test_a_file_that_comes_again_is_not_taken_twice(shop: Shop) -> None:
    path = shop.write([row("a")], "w-1")
    copy = path.read_bytes()
    shop.bring()
    path.write_bytes(copy)
    assert counts(shop.bring()) == {"repeated": 1}
    assert in_table(shop) == ["a"]


def test_a_file_that_comes_again_later_or_into_another_folder_is_not_taken_twice(
    shop: Shop, tmp_path: Path
) -> None:
    path = shop.write([row("a")], "w-1")
    copy = path.read_bytes()
    shop.bring()
    shop.bring(keep_s=0)  # the committed file is removed
    path.write_bytes(copy)
    assert counts(shop.bring()) == {"repeated": 1}
    shop.write([row("b")], "w-2")
    other = tmp_path / "other"
    other.mkdir()
    (other / "w-2.arrow").write_bytes((shop.spool / "w-2.arrow").read_bytes())
    both = SpoolCommitter(shop.lake, NAME, [shop.spool, other], keep_s=1e12)
    assert counts(both.run_once()) == {"files": 1, "rows": 1, "commits": 1, "repeated": 1}
    assert in_table(shop) == ["a", "b"]


def test_committed_files_stay_for_as_long_as_they_are_to_be_kept(shop: Shop) -> None:
    shop.write([row("a")], "w-1")
    shop.bring()
    kept = shop.spool / "committed" / "w-1.arrow"
    assert counts(shop.bring(keep_s=60.0)) == {}
    os.utime(kept, (time.time() - 61, time.time() - 61))
    assert counts(shop.bring(keep_s=60.0)) == {"removed": 1}
    assert not kept.exists()


def test_another_process_that_commits_is_not_disturbed(shop: Shop) -> None:
    shop.bring()
    with (
        acquire(shop.lake, "served_shop", ProcessHolder.of(os.getppid()), "commit"),
        pytest.raises(OwnershipError, match="served_shop"),
    ):
        shop.bring()


def test_files_are_not_committed_twice_where_the_ledger_was_lost(shop: Shop) -> None:
    #  commit of w-1 -- killed before it is moved -- the side folder is lost -- w-2 -- next pass
    path = shop.write([row("a")], "w-1")
    shop.bring()
    os.rename(shop.spool / "committed" / path.name, path)
    shutil.rmtree(shop.lake.side_folder)
    shop.write([row("b")], "w-2")
    lease.release(shop.lake, "served_shop")
    assert counts(shop.bring()) == {"files": 1, "rows": 1, "commits": 1}
    assert in_table(shop) == ["a", "b"]


def _steps(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Before the step with number ``at`` of those that leave something behind, all ends."""
    count = 0

    def wrapped(own: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **options: Any) -> Any:
            nonlocal count
            count += 1
            if count == at:
                raise KilledError
            return own(*args, **options)

        return step

    for name in ("write_json", "append_arrow", "_move", "recover"):
        monkeypatch.setattr(module, name, wrapped(getattr(module, name)))


@pytest.mark.parametrize("at", quick_cases(range(1, 12), 1, 4, 5, 9))
def test_a_committer_killed_at_any_step_loses_nothing_and_takes_nothing_twice(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    # the first ledger, recover, then for each of two files a commit: ledger, commit, move, ledger
    monkeypatch.setattr(module, "COMMIT_BYTES", 1)
    shop.write([row("a"), row("b")], "w-1")
    shop.write([row("c")], "w-2")
    with monkeypatch.context() as patch:
        _steps(patch, at)
        try:
            shop.bring()
            killed = False
        except KilledError:
            killed = True
    assert killed == (at <= 10)
    shop.write([row("d")], "w-3")
    shop.bring()
    assert in_table(shop) == ["a", "b", "c", "d"]
    assert not list(shop.spool.glob("*.arrow"))
    assert len(list((shop.spool / "committed").iterdir())) == 3
    assert len(list(snapshots(shop.lake, "served_shop"))) == 3


def test_a_table_that_was_rolled_back_takes_new_files(shop: Shop) -> None:
    for name in "abc":
        shop.write([row(name)], f"w-{name}")
        shop.bring()
    shop.lake.table("served_shop").rollback_to(1)
    shop.write([row("d")], "w-d")
    shop.bring()
    assert in_table(shop) == ["a", "d"]


def test_no_folder_is_no_error_and_an_empty_file_is_put_away(shop: Shop) -> None:
    assert counts(shop.bring()) == {}
    shop.spool.mkdir()
    SpoolFile(shop.spool, "w-1", described_schema(log_schema(), NAME, "w")).complete()
    committer = SpoolCommitter(shop.lake, NAME, [shop.spool])
    assert counts(committer.run_once()) == {"files": 1, "commits": 1}
    assert holder_of(shop.lake, "served_shop") is None  # free to be maintained
    assert counts(committer.run_once()) == {}
