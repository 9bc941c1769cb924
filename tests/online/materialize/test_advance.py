"""Splitting the snapshots of a pass into runs that fit into memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paimon_features.lake.reading.deltas import DataFile
from paimon_features.online.materialize.advance import Files, groups


def file(rows: int) -> DataFile:
    return DataFile(0, {"tile_day": 0}, "path", 0, "ADD", rows, 1, 0)


@given(
    commits=st.lists(st.tuples(st.integers(1, 3), st.lists(st.integers(1, 9), max_size=4))),
    behind=st.integers(0, 3),
    max_rows=st.integers(1, 20),
)
def test_runs_consist_of_complete_snapshots_within_the_limit(
    commits: list[tuple[int, list[int]]], behind: int, max_rows: int
) -> None:
    at, files = 0, Files()
    for step, sizes in commits:
        at += step
        files += [(at, file(rows)) for rows in sizes]
    cut = list(groups(files, at + behind, max_rows))
    assert [pair for group, _ in cut for pair in group] == files
    # with the marker at the end of a run, exactly the snapshots of the run are applied
    ends = [up_to for _, up_to in cut]
    assert ends == sorted(set(ends))
    assert ends[-1] == at + behind
    done = 0
    for group, up_to in cut:
        assert all(done < of <= up_to for of, _ in group)
        done = up_to
        rows = sum(one.rows for _, one in group)
        assert rows <= max_rows or len({of for of, _ in group}) == 1


def test_snapshots_without_files_are_one_empty_run() -> None:
    assert list(groups([], 7, 100)) == [([], 7)]
