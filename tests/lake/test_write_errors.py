"""A file system that refuses writes: a typed error, nothing committed, and the same write later."""

from __future__ import annotations

import errno
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.errors import StorageWriteError
from paimon_features.core.types.schema import Int64, String
from paimon_features.lake import Lake, TableSpec, append_arrow, read_arrow
from paimon_features.lake.ownership.lease import acquire
from paimon_features.lake.storage.json_files import read_json, write_json
from paimon_features.lake.storage.write_errors import write_errors
from paimon_features.lake.writing.overwrite import Overwrite

TEXTS = np.random.default_rng(7).integers(0, 2**63, 50_000).astype(str)
ROWS = pa.table({"x": np.arange(len(TEXTS)), "s": TEXTS, "day": np.zeros(len(TEXTS), np.int64)})
COLUMNS = {"x": Int64, "s": String, "day": Int64}
KEYED = TableSpec("keyed", {"day": Int64, "x": Int64, "s": String}, ("day", "x"), ("day",))
SPECS = (TableSpec("plain", COLUMNS, partition_by=("day",)), KEYED.with_options({"bucket": "2"}))


@contextmanager
def full_from(size: int) -> Iterator[None]:
    """No file may grow beyond ``size`` bytes: what a full disk is to a writer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake.open(tmp_path / "lake", "features")
    for spec in SPECS:
        lake.create(spec)
    return lake


def overwrite(lake: Lake, name: str) -> None:
    with Overwrite(lake, name, "tests") as work:
        work.replace(ROWS.select(lake.schema(name).names))
        work.commit()


@pytest.mark.parametrize("name", ["plain", "keyed"])
@pytest.mark.parametrize("write", [append_arrow, overwrite])
@pytest.mark.parametrize("size", [50, 100_000])
def test_a_refused_write_is_a_typed_error_and_commits_nothing(
    lake: Lake, name: str, write: Callable[..., None], size: int
) -> None:
    arguments = (ROWS,) if write is append_arrow else ()
    with (
        full_from(size),
        pytest.raises(StorageWriteError, match="cannot be written: File too large; raise"),
    ):
        write(lake, name, *arguments)
    assert read_arrow(lake, name).num_rows == 0
    write(lake, name, *arguments)
    assert read_arrow(lake, name).num_rows == ROWS.num_rows
    assert list(Path(lake.path(name)).rglob("*.tmp")) == []


def test_a_table_that_cannot_be_created_can_be_created_later(lake: Lake) -> None:
    spec = TableSpec("later", COLUMNS)
    with full_from(10), pytest.raises(StorageWriteError, match="'later' cannot be created: File"):
        lake.create(spec)
    lake.create(spec)
    assert lake.schema("later").names == list(COLUMNS)


def test_a_record_that_cannot_be_written_keeps_its_content(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_json(path, {"a": 1})
    with full_from(5), pytest.raises(StorageWriteError, match=r"record\.json cannot be written"):
        write_json(path, {"a": "x" * 1_000})
    assert read_json(path) == {"a": 1}
    assert [each.name for each in tmp_path.iterdir()] == ["record.json"]


@pytest.mark.parametrize(
    ("number", "remedy"),
    [(errno.ENOSPC, "free some space"), (errno.EDQUOT, "quota"), (errno.EROFS, "mount")],
)
def test_the_error_says_what_to_do(number: int, remedy: str) -> None:
    for error in (OSError(number, "text"), ValueError(f"at write: (os error {number})")):
        outer = RuntimeError("it failed")
        outer.__cause__ = error
        with pytest.raises(StorageWriteError, match=f"^log: .*{remedy}"), write_errors("log"):
            raise outer


@pytest.mark.parametrize("error", [ValueError("no"), FileNotFoundError(errno.ENOENT, "gone")])
def test_other_errors_are_left_as_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as caught, write_errors("the log"):
        raise error
    assert caught.value is error


def test_a_lease_that_cannot_be_written_is_a_typed_error(lake: Lake) -> None:
    with full_from(5), pytest.raises(StorageWriteError, match="the lease of table 'plain' cannot"):
        acquire(lake, "plain")
    with acquire(lake, "plain"):
        append_arrow(lake, "plain", ROWS)
