"""Damaged records next to the tables: an error that names the file, never an answer by default."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from paimon_features.core.errors import (
    DamagedFileError,
    OwnershipError,
    PaimonFeaturesError,
    TableError,
)
from paimon_features.core.types.schema import Int64
from paimon_features.lake import append_arrow
from paimon_features.lake.catalog import Lake
from paimon_features.lake.marked_records import lost_records
from paimon_features.lake.metadata import rollback, table_history
from paimon_features.lake.ownership import lease
from paimon_features.lake.ownership.lease import ProcessHolder
from paimon_features.lake.side_folder import generations
from paimon_features.lake.side_folder.generations import GenerationRecord
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.table_folders import lease_folder
from paimon_features.testing.sizes import every_seed

TABLE = "tiles_spend_g1"
ROWS = pa.table({"n": pa.array([1], pa.int64())})
GENERATION = GenerationRecord("spend", 1, TABLE, "abc", 1, state="active")


@pytest.fixture
def lake(lake: Lake) -> Lake:
    """A table with a generation, removals, and a living owner that is not this process."""
    lake.create(TableSpec(TABLE, {"n": Int64}, options={"bucket": "-1"}))
    generations.save(lake, GENERATION)
    for _ in range(2):
        append_arrow(lake, TABLE, ROWS)
    rollback.rollback(lake, GENERATION, 1)
    for _ in range(3):
        lease.acquire(lake, TABLE).release()
    lease.acquire(lake, TABLE, ProcessHolder.of(os.getppid()))._forget()
    return lake


def claims(lake: Lake) -> list[Path]:
    folder = Path(str(lease_folder(lake, TABLE)))
    return [*folder.glob("claim-*"), folder / "oldest"]


def damaged(content: bytes, rng: random.Random, flips: int) -> Iterator[bytes]:
    yield from (b"", b"{}", b"[]", b"null", b"5", b'"x"', b"\xff\xfe", b"[" * 200_000)
    yield from (content[: rng.randrange(len(content))], b'{"table": "tiles_spend_g1"}')
    for _ in range(flips):
        flipped = bytearray(content)
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
        yield bytes(flipped)


def test_the_owner_lives_to_begin_with(lake: Lake) -> None:
    with pytest.raises(OwnershipError, match="it is running"):
        lease.acquire(lake, TABLE)


@every_seed(3)
def test_a_damaged_claim_of_a_living_owner_does_not_free_the_table(lake: Lake, seed: int) -> None:
    rng = random.Random(seed)
    number = max(int(path.name[6:]) for path in claims(lake) if path.name != "oldest")
    newest = Path(str(lease_folder(lake, TABLE))) / f"claim-{number}"
    for path in claims(lake):
        if not path.exists():
            continue
        content = path.read_bytes()
        for wrong in damaged(content, rng, flips=60):
            path.write_bytes(wrong)
            with pytest.raises(TableError) as refused:
                lease.acquire(lake, TABLE)
            if path == newest and wrong not in (content, b""):
                assert isinstance(refused.value, DamagedFileError | OwnershipError)
            with pytest.raises(TableError), lease.committing(lake, TABLE, "test"):
                pass
        path.write_bytes(content)
    with pytest.raises(OwnershipError):
        lease.acquire(lake, TABLE)


@pytest.mark.parametrize("wrong", ["{}", "[]", "", "{", '{"nonce": "a", "holder": {}}'])
def test_a_damaged_claim_is_named_with_what_to_do_and_can_be_released(
    lake: Lake, wrong: str
) -> None:
    newest = max(
        Path(str(lease_folder(lake, TABLE))).glob("claim-*"), key=lambda path: int(path.name[6:])
    )
    newest.write_text(wrong)
    with pytest.raises(DamagedFileError, match=r"jobs --release TABLE") as refused:
        lease.acquire(lake, TABLE)
    assert newest.name.replace("-", " ") in str(refused.value).replace("-", " ")
    with pytest.raises(DamagedFileError):
        lease.holder_of(lake, TABLE)
    assert lease.release(lake, TABLE) is None
    with lease.acquire(lake, TABLE):
        append_arrow(lake, TABLE, ROWS)


def test_an_owner_whose_claim_is_damaged_commits_no_more(lake: Lake) -> None:
    lease.release(lake, TABLE)
    with lease.acquire(lake, TABLE) as held:
        path = Path(str(lease_folder(lake, TABLE))) / f"claim-{held.record.number}"
        path.write_text("{}")
        with pytest.raises(TableError, match=r"damaged"):
            append_arrow(lake, TABLE, ROWS)
        content = held._fence.claim
        assert content.damage is None
        lease.release(lake, TABLE)


def answers(lake: Lake) -> dict[str, Any]:
    """What the records say."""
    again = Lake.open(lake.warehouse, lake.database)
    return {
        "generations": generations.load(again, "spend"),
        "views": generations.views(again),
        "lost": lost_records(again),
        "removals": table_history.removals(again, TABLE),
        "schema": again.schema(TABLE),
        "rows": again.exists(TABLE),
    }


@every_seed(2)
def test_other_records_are_right_or_named(lake: Lake, seed: int) -> None:
    rng = random.Random(seed)
    right = answers(lake)
    folders = (lake.side_folder, Path(lake.path("_paimon_features")), Path(lake.path(TABLE)))
    files = [
        *(folders[0] / "generations").glob("*.json"),
        *(folders[0] / "removals").glob("*.json"),
        *folders[1].glob("removals-of.*"),
        *(folders[2] / "_paimon_features").glob("*.json"),  # marks and CRCs of schemas
    ]
    assert len(files) >= 6, files
    for path in files:
        content = path.read_bytes()
        # flips of a digit or a letter are those of digests in the records
        for wrong in damaged(content, rng, flips=0):
            path.write_bytes(wrong)
            try:
                found = answers(lake)
            except PaimonFeaturesError as error:
                found = {"error": str(error)}
            named = path.stem in found.get("error", "")
            assert named or found == right, (path, wrong[:80], found)
        path.write_bytes(content)
