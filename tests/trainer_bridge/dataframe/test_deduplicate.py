"""Deduplicated data: written, read and restored, row by row what it was."""

from __future__ import annotations

import random
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from paimon_features.core.errors import (
    ConfigurationError,
    RequestError,
    TableError,
    UnknownNameError,
)
from paimon_features.lake import Lake
from paimon_features.testing.sizes import seeds
from trainer_bridge.dataframe import (
    DataFrame,
    Dataset,
    Deduplicated,
    deduplicate,
    unbatch_and_to_sparse,
    write_deduplicated_parquet,
    write_deduplicated_table,
)

GROUPS = [["user", "tags", "vector"], ["shop", "words"]]


def random_rows(dice: random.Random, count: int) -> pa.Table:
    """Users and shops with features of their own, which now and then change."""

    def tags(user: int) -> list[int] | None:
        return [None, [], [user], [user, user + 1]][user % 4]

    users = [dice.randrange(6) for _ in range(count)]
    shops = [dice.choice(["x", "y", "z"]) for _ in range(count)]
    odd = [dice.random() < 0.1 for _ in range(count)]
    return pa.table(
        {
            "user": pa.array(users, pa.int64()),
            "tags": pa.array(
                [tags(u + o) for u, o in zip(users, odd, strict=True)], pa.list_(pa.int64())
            ),
            "vector": pa.array([[u / 2, -0.0] for u in users], pa.list_(pa.float32())),
            "item": pa.array(range(count), pa.int32()),
            "seen": pa.array(
                [[n] * (n % 3) if n % 5 else None for n in range(count)], pa.list_(pa.int64())
            ),
            "shop": pa.array(shops, pa.string()),
            "words": pa.array(
                [[[s], []] if s != "z" else None for s in shops], pa.list_(pa.list_(pa.string()))
            ),
        }
    )


def as_lists(column: Any) -> list[Any]:
    if isinstance(column, Deduplicated):
        column = column.restore()
    return column.to_lists() if hasattr(column, "to_lists") else column.tolist()


@pytest.mark.parametrize("seed", seeds(25))
def test_rows_come_back_as_they_were_in_any_blocks_and_batches(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    table = random_rows(dice, dice.choice([1, 7, 60]))
    block_rows = dice.choice([1, 4, 25, 1000])
    parts = [table.slice(at, 9) for at in range(0, len(table), 9)]
    path = tmp_path / "d.parquet"
    blocks = write_deduplicated_parquet(parts, path, block_rows, GROUPS)
    assert blocks == -(-len(table) // block_rows)
    data = Dataset.from_parquet(
        path,
        [*DATA_FIELDS, "shop", "words"],
        key_idx_field_names=["user_index", "shop_index"],
        value_field_names=GROUPS,
        restore=dice.random() < 0.5,
    )
    assert [field.name for field in data.fields] == [
        *[f.name for f in DATA_FIELDS],
        "shop",
        "words",
    ]
    size = dice.choice([1, 5, 100])
    batches = list(data.rebatch(size))
    assert [len(b["item"]) for b in batches[:-1]] == [size] * (len(batches) - 1)
    wanted = table.select([field.name for field in data.fields]).to_pydict()
    assert {n: [v for b in batches for v in as_lists(b[n])] for n in wanted} == wanted


DATA_FIELDS = [
    DataFrame.Field("user", np.int64),
    DataFrame.Field("tags", np.int64, ragged_rank=1),
    DataFrame.Field("vector", np.float32, shape=[2]),
    DataFrame.Field("item", np.int32),
    DataFrame.Field("seen", np.int64, ragged_rank=1),
]


def test_a_batch_counts_stored_blocks_and_leaves_other_columns_as_they_are(tmp_path: Path) -> None:
    # the file of HybridBackend's own test
    feature = [[[1], [2, 3]], [[4], [5]]]
    table = pa.table(
        {
            "user_feat": feature,
            "user_feat_idx": [[0, 1, 0, 1], [0, 0, 1, 1]],
            "item": [[1, 2, 3, 4], [5, 6, 7, 8]],
            "block": [7, 8],
        }
    )
    pq.write_table(table, tmp_path / "d.parquet")
    data = Dataset.from_parquet(
        tmp_path, key_idx_field_names=["user_feat_idx"], value_field_names=[["user_feat"]]
    )
    (batch,) = data.batch(2)
    assert batch["user_feat"].to_list() == [[1], [2, 3], [1], [2, 3], [4], [4], [5], [5]]
    assert batch["item"].to_list() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert batch["block"].tolist() == [7, 8]
    assert "user_feat_idx" not in batch
    first, second = data.batch(1)
    assert (first["user_feat"].to_list(), second["item"].to_list()) == (
        [[1], [2, 3], [1], [2, 3]],
        [[5, 6, 7, 8]],
    )
    rows = next(iter(data.rebatch(6)))
    assert rows["item"].tolist() == [1, 2, 3, 4, 5, 6]
    assert rows["block"].tolist() == [7, 7, 7, 7, 8, 8]
    shuffled = [b["item"].to_list()[0][0] for b in data.shuffle_batch(1, 2, seed=5)]
    assert sorted(shuffled) == [1, 5]


def test_unrestored_columns_are_values_and_an_inverse(tmp_path: Path) -> None:
    table = random_rows(random.Random(1), 40)
    write_deduplicated_parquet(table, tmp_path / "d.parquet", 20, ["user", "tags", "vector"])
    data = Dataset.from_parquet(
        tmp_path,
        DATA_FIELDS,
        key_idx_field_names=["user_index"],
        value_field_names=[["user", "tags", "vector"]],
        restore=False,
        masks=["seen", "tags"],
        item_masks=["seen", "tags"],
    )
    (batch,) = data.batch(2)
    present = [value is not None for value in table.column("tags").to_pylist()]
    assert as_lists(batch["tags_present"]) == present
    seen = table.column("seen").to_pylist()
    assert [*chain.from_iterable(batch["seen"].to_list())] == [value or [] for value in seen]
    assert as_lists(batch["seen_present"].inner) == [value is not None for value in seen]
    # a mask of items has the lists that its column has: stored once too, or in blocks
    assert as_lists(batch["tags_present_1"]) == [
        [True] * len(value or []) for value in table.column("tags").to_pylist()
    ]
    assert batch["tags_present_1"].inverse is batch["tags"].inverse
    assert all(
        (own == its).all()
        for own, its in zip(batch["seen_present_1"].splits, batch["seen"].splits, strict=True)
    )
    with pytest.raises(RequestError, match="'tags' has a null list inside a block; .*rebatch"):
        list(
            Dataset.from_parquet(
                tmp_path, key_idx_field_names=["user_index"], value_field_names=[["user"]]
            ).batch(2)
        )
    once = batch["tags"]
    assert isinstance(once, Deduplicated)
    assert len(once) == 40
    assert len(once.values) < 40
    # columns of a group share what identifies their rows
    assert once.inverse is batch["vector"].inverse
    assert as_lists(once) == table.column("tags").to_pylist()
    assert DataFrame.parse(batch, pad=True)["tags"].shape[0] == 40
    # a batch of rows that were batched before keeps their values once
    for again in data.batch(2).map(lambda batch: {"tags": batch["tags"]}).rebatch(5).rebatch(40):
        assert as_lists(again["tags"]) == table.column("tags").to_pylist()
        assert len(again["tags"].values) == len(once.values)
    user = data.batch(2).map(lambda batch: {"user": batch["user"][3:4]})
    (row,) = user.apply(unbatch_and_to_sparse())
    assert row["user"] == table["user"][3].as_py()


def test_a_table_of_the_lake_holds_blocks_too(lake: Lake) -> None:
    table = random_rows(random.Random(2), 50)
    snapshot = write_deduplicated_table(table, lake, "dedup", 16, GROUPS)
    groups = {"key_idx_field_names": ["user_index", "shop_index"], "value_field_names": GROUPS}
    data = Dataset.from_table(lake, "dedup", snapshot_id=snapshot, **groups)
    batches = list(data.rebatch(12))
    assert {n: [v for b in batches for v in as_lists(b[n])] for n in table.column_names} == (
        table.to_pydict()
    )
    write_deduplicated_table(table, lake, "dedup", 16, GROUPS)
    assert (
        sum(len(b["item"]) for b in Dataset.from_table(lake, "dedup", **groups).rebatch(9)) == 100
    )
    with pytest.raises(TableError, match="exists with a different definition"):
        write_deduplicated_table(table.drop_columns(["seen"]), lake, "dedup", 16, GROUPS)


def test_the_same_user_shares_an_entry_only_where_all_columns_agree() -> None:
    table = pa.table({"user": [1, 1, 1, 2], "age": [30.0, 30.0, -0.0, 0.0]})
    (block,) = deduplicate(table, 10, ["user", "age"]).to_pylist()
    assert block == {"user": [1, 1, 2], "age": [30.0, -0.0, 0.0], "user_index": [0, 0, 1, 2]}


def test_what_cannot_be_deduplicated_is_refused(lake: Lake) -> None:
    table = pa.table({"user": [1], "age": [2], "user_index": [3]})
    for arguments, error, message in (
        ((0, ["user"]), ConfigurationError, "block_size=0"),
        ((5, []), ConfigurationError, "expected one or several lists of columns"),
        ((5, ["user", ["age"]]), ConfigurationError, "expected one or several lists of columns"),
        ((5, ["user"]), ConfigurationError, "'user_index' would be duplicated"),
        ((5, ["user"], ["user"]), ConfigurationError, "'user' would be duplicated"),
        ((5, ["who"]), UnknownNameError, "unknown column to deduplicate 'who'"),
    ):
        with pytest.raises(error, match=message):
            deduplicate(table, *arguments)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="no rows to deduplicate"):
        write_deduplicated_parquet([], "nowhere.parquet", 5, ["user"])
    with pytest.raises(ConfigurationError, match="no rows to deduplicate"):
        write_deduplicated_table(table.slice(1), lake, "nothing", 5, ["user"])
    assert not lake.exists("nothing")


def test_entries_of_every_kind_of_column_are_compared_by_all_they_contain() -> None:
    rows = [
        # the same user each time; a letter is a row that differs from all others
        ("a", {"x": 1, "y": [0.5]}, [("k", 1)], "red"),
        ("a", {"x": 1, "y": [0.5]}, [("k", 1)], "red"),
        ("b", {"x": 1, "y": None}, [("k", 1)], "red"),
        ("c", {"x": None, "y": None}, [("k", 1)], "red"),
        ("d", None, [("k", 1)], "red"),
        ("e", None, [("k", None)], "red"),
        ("f", None, [], "red"),
        ("g", None, None, "red"),
        ("h", None, None, None),
        ("g", None, None, "red"),
        ("a", {"x": 1, "y": [0.5]}, [("k", 1)], "red"),
    ]
    letters, structs, maps, words = zip(*rows, strict=True)
    table = pa.table(
        {
            "user": [1] * len(rows),
            "struct": pa.array(
                structs, pa.struct([("x", pa.int64()), ("y", pa.list_(pa.float64()))])
            ),
            "map": pa.array(maps, pa.map_(pa.string(), pa.int64())),
            "word": pa.array(words).dictionary_encode(),
        }
    )
    names = table.column_names
    for start in (0, 1):  # a part of a column, which begins within its memory
        part = table.slice(start)
        (block,) = deduplicate(part, 100, names).to_pylist()
        first = list(dict.fromkeys(letters[start:]))
        assert block["user_index"] == [first.index(letter) for letter in letters[start:]]
        for name in names:
            restored = [block[name][place] for place in block["user_index"]]
            assert restored == part[name].to_pylist()


def test_columns_that_do_not_belong_together_are_reported(tmp_path: Path) -> None:
    table = pa.table({"u": [[1, 2]], "i": [[0, 5]], "item": [[1, 2, 3]]})
    pq.write_table(table, tmp_path / "d.parquet")

    def data(**options: Any) -> Dataset:
        groups = {"key_idx_field_names": ["i"], "value_field_names": [["u"]]}
        return Dataset.from_parquet(tmp_path, **{**groups, **options})

    with pytest.raises(RequestError, match="column 'u': index 5 in a block .* has 2 unique values"):
        list(data().batch(1))
    pq.write_table(table.set_column(1, "i", [[[0, 1]]]), tmp_path / "d.parquet")
    with pytest.raises(RequestError, match="column 'item': 3 rows in a block of 2 by 'i'"):
        list(data().rebatch(1))
    assert next(iter(data().batch(1)))["u"].tolist() == [1, 2]
    with pytest.raises(ConfigurationError, match="expected one list of value fields per"):
        data(value_field_names=[])
    with pytest.raises(ConfigurationError, match="expected lists of distinct names"):
        data(value_field_names=[["i"]])
    with pytest.raises(UnknownNameError, match="'w'"):
        data(value_field_names=[["w"]])
    with pytest.raises(RequestError, match="columns of different lengths .*'item': 1.*Dataset.reb"):
        list(data().batch(1).rebatch(1))
    pq.write_table(pa.table({"u": [[1, 2], None], "i": [[0], []]}), tmp_path / "d.parquet")
    with pytest.raises(RequestError, match="'u' has a null where a block of rows is expected"):
        list(data().batch(1))
    pq.write_table(pa.table({"u": [1, 2], "i": [[0], [0]]}), tmp_path / "d.parquet")
    with pytest.raises(RequestError, match="column 'u' is an index or value column .* not a list"):
        list(data().batch(1))


def test_blocks_of_several_row_groups_come_in_one_batch(tmp_path: Path) -> None:
    table = random_rows(random.Random(7), 23)
    stored = deduplicate(table, 5, GROUPS)
    pq.write_table(stored, tmp_path / "d.parquet", row_group_size=2)
    fields = [
        # the level of the blocks may be counted, or not
        DataFrame.Field("tags", ragged_rank=2),
        *(field for field in DATA_FIELDS if field.name in ("item", "vector")),
    ]
    groups = {"key_idx_field_names": ["user_index"], "value_field_names": [GROUPS[0]]}
    data = Dataset.from_parquet(tmp_path, fields, **groups)
    batches = list(data.batch(3))
    assert [len(batch["item"]) for batch in batches] == [3, 2]
    for name in ("tags", "vector"):
        found = [value for batch in batches for value in as_lists(batch[name])]
        assert found == table[name].to_pylist()
    assert [x for b in batches for row in b["item"].to_list() for x in row] == list(range(23))
