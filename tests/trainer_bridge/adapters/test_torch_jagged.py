"""Lists, codes and fixed vectors as tensors, and a batch that is moved as a whole."""

from __future__ import annotations

import importlib.util
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.errors import (
    ConfigurationError,
    MissingExtraError,
    RequestError,
    UnknownNameError,
)
from paimon_features.core.types.schema import Float32, Int64, List, String
from paimon_features.lake.catalog import Lake
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.writing.table_writer import append_arrow
from trainer_bridge.batches.ragged import Ragged
from trainer_bridge.readers.snapshot_reader import SnapshotReader

pytestmark = pytest.mark.torch

ROWS: dict[str, Any] = {
    "x": [0, 1, 2, 3],
    "tags": [[7, 8], [], None, [9]],
    "shares": [[0.5, 0.25], [], None, [1.0]],
    "vector": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]],
    "city": ["Rome", "Oslo", None, "Rome"],
}


@pytest.fixture
def adapter() -> Any:
    from trainer_bridge.adapters import torch

    return torch


@pytest.fixture
def reader(lake: Lake) -> SnapshotReader:
    lake.create(
        TableSpec(
            "t",
            {
                "x": Int64,
                "tags": List(Int64),
                "shares": List(Float32),
                "vector": List(Float32),
                "city": String,
            },
        )
    )
    append_arrow(lake, "t", pa.table(ROWS, schema=lake.schema("t")))
    return SnapshotReader(
        lake,
        "t",
        batch_size=3,
        shuffle=False,
        masks=["tags", "shares", "city"],
        shapes={"vector": [2]},
        codes=["city"],
    )


def test_lists_are_nested_tensors_vectors_matrices_and_texts_codes(
    reader: SnapshotReader, adapter: Any
) -> None:
    import torch

    first, last = adapter.loader(reader)
    tags = first["tags"]
    assert tags.is_nested
    assert tags.layout == torch.jagged
    assert [row.tolist() for row in tags.unbind()] == [[7, 8], [], []]
    assert [row.tolist() for row in last["tags"].unbind()] == [[9]]
    assert first["tags_present"].tolist() == [True, True, False]
    assert first["vector"].tolist() == ROWS["vector"][:3]
    codes = reader.vocabularies["city"].words.to_pylist()
    assert codes[int(first["city"][0])] == "Rome"
    assert first["city"].dtype == torch.int32
    assert first["city_present"].tolist() == [True, True, False]


def test_the_parts_of_lists_share_memory_and_keep_the_mask(
    reader: SnapshotReader, adapter: Any
) -> None:
    loader = adapter.loader(reader, ragged="parts")
    batch = next(iter(reader))
    tags = loader.tensors(batch)["tags"]
    assert np.shares_memory(tags.values.numpy(), batch.ragged["tags"].values)
    assert tags.values.tolist() == [7, 8]
    assert tags.offsets[0].tolist() == [0, 2, 2, 2]
    assert tags.lengths.tolist() == [2, 0, 0]
    assert tags.mask.tolist() == [True, True, False]
    assert len(tags) == 3


def test_keyed_lists_have_the_parts_of_a_keyed_jagged_tensor(
    reader: SnapshotReader, adapter: Any
) -> None:
    import torch

    loader = adapter.loader(reader, keyed={"sparse": ["tags", "x"], "weighted": {"tags": "shares"}})
    batch = next(iter(loader))
    assert "tags" not in batch
    assert "shares" not in batch
    keyed = batch["sparse"]
    assert keyed.keys == ("tags", "x")
    assert keyed.values.tolist() == [7, 8, 0, 1, 2]
    assert keyed.lengths.tolist() == [2, 0, 0, 1, 1, 1]
    assert keyed.offsets.tolist() == [0, 2, 2, 2, 3, 4, 5]
    assert keyed.stride == 3
    assert keyed["x"].values.tolist() == [0, 1, 2]
    assert keyed["tags"].lengths.tolist() == [2, 0, 0]
    weighted = batch["weighted"]
    assert weighted.weights.tolist() == [0.5, 0.25]
    table = torch.nn.EmbeddingBag(10, 3, mode="sum", include_last_offset=True)
    pooled = table(weighted.values, weighted.offsets, per_sample_weights=weighted.weights)
    by_hand = 0.5 * table.weight[7] + 0.25 * table.weight[8]
    assert torch.allclose(pooled[0], by_hand)
    assert pooled[1:].abs().sum() == 0


def test_lists_are_moved_with_all_their_parts(reader: SnapshotReader, adapter: Any) -> None:
    keyed = {"sparse": {"tags": "shares"}}
    batch = next(iter(adapter.loader(reader, keyed=keyed)))["sparse"]
    parts = next(iter(adapter.loader(reader, ragged="parts")))["tags"]
    for lists, names in ((batch, ("values", "weights", "lengths", "offsets")),
                         (parts, ("values", "offsets", "mask"))):  # fmt: skip
        moved = lists.to("meta")
        for name in names:
            part = getattr(moved, name)
            devices = {each.device.type for each in (part if isinstance(part, tuple) else (part,))}
            assert devices == {"meta"}, name
    assert moved.offsets[0].shape == (2,)  # of the second batch, which has one row
    assert batch.to("cpu").values.tolist() == [7, 8]
    with pytest.raises(UnknownNameError, match="unknown column read 'tag'.*did you mean 'tags'"):
        adapter.loader(reader, keyed={"sparse": ["tag"]})


def test_deduplicated_lists_carry_inverse_indices(adapter: Any) -> None:
    stored = Ragged(np.array([1, 2, 3]), (np.array([0, 2, 3]),))
    keyed = adapter.keyed_jagged({"a": stored, "b": stored}, inverse=np.array([0, 0, 1]))
    assert keyed.inverse_indices[0] == ("a", "b")
    assert keyed.inverse_indices[1].tolist() == [[0, 0, 1], [0, 0, 1]]
    own = adapter.keyed_jagged({"a": stored}, inverse=[np.array([1, 0])])
    assert own.inverse_indices[1].tolist() == [[1, 0]]
    with pytest.raises(ConfigurationError, match="2 inverse indices for 1 keys"):
        adapter.keyed_jagged({"a": stored}, inverse=[np.array([1]), np.array([0])])


def test_keyed_columns_that_do_not_go_together_are_refused(
    reader: SnapshotReader, adapter: Any
) -> None:
    one = Ragged(np.array([1, 2]), (np.array([0, 2]),))
    floats = Ragged(np.array([1.0]), (np.array([0, 1]),))
    deep = Ragged(np.array([1]), (np.array([0, 1]), np.array([0, 1])))
    for columns, message in (
        ({}, "of no columns"),
        ({"a": one, "b": floats}, r"'b' has items of float64\[\], column 'a' of int64"),
        ({"a": deep}, "'a' has lists of depth 2; keys take depth 1"),
        ({"a": one, "b": np.array([1, 2])}, "'b' has 2 rows, column 'a' 1"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            adapter.keyed_jagged(columns)
    with pytest.raises(ConfigurationError, match="not as long as"):
        adapter.keyed_jagged({"a": one}, weights={"a": floats})
    with pytest.raises(ConfigurationError, match="expected one for every key: a, b"):
        adapter.keyed_jagged({"a": one, "b": one}, weights={"a": one})
    with pytest.raises(ConfigurationError, match="called like another column"):
        adapter.loader(reader, keyed={"x": ["tags"]})
    with pytest.raises(ConfigurationError, match="'nested' or 'parts'"):
        adapter.loader(reader, ragged="dense")
    with pytest.raises(ConfigurationError, match="'vector' of lists; expected plain numbers"):
        adapter.loader(reader, stack={"m": ["vector"]})
    with pytest.raises(RequestError, match="ragged='parts'"):
        adapter.Jagged.of(deep).nested()


@pytest.mark.skipif(importlib.util.find_spec("torchrec") is not None, reason="torchrec is there")
def test_without_torchrec_the_error_says_what_to_install(adapter: Any) -> None:
    keyed = adapter.keyed_jagged({"a": np.array([1, 2])})
    with pytest.raises(MissingExtraError, match="pip install torchrec"):
        keyed.to_kjt()


@pytest.mark.skipif(importlib.util.find_spec("torchrec") is None, reason="needs torchrec")
def test_a_keyed_jagged_tensor_of_torchrec_has_the_same_lists(adapter: Any) -> None:
    stored = Ragged(np.array([1, 2, 3]), (np.array([0, 2, 3]),))
    keyed = adapter.keyed_jagged({"a": stored, "b": stored}).to_kjt()
    assert keyed["b"].to_dense()[0].tolist() == [1, 2]


@pytest.mark.parametrize("ragged", ["nested", "parts"])
def test_a_batch_is_moved_block_by_block_and_stays_what_it_was(
    reader: SnapshotReader, adapter: Any, ragged: str
) -> None:
    import torch

    loader = adapter.loader(reader, ragged=ragged, keyed={"sparse": ["x"]}, row_numbers=True)
    batch = next(iter(loader))
    batch["added"] = torch.ones(3)
    batch["note"] = "as it is"
    moves: list[torch.Tensor] = []

    def move(tensor: torch.Tensor) -> torch.Tensor:
        moves.append(tensor)
        return tensor.clone()

    for other in (batch.moved(move), batch.to("cpu"), pickle.loads(pickle.dumps(batch))):
        assert list(other) == list(batch)
        assert (other["city"] == batch["city"]).all()
        assert other["vector"].tolist() == batch["vector"].tolist()
        assert other["sparse"].values.tolist() == batch["sparse"].values.tolist()
        assert other["note"] == "as it is"
        assert other["added"].tolist() == [1, 1, 1]
        ends = [
            b["tags"].offsets[0] if ragged == "parts" else b["tags"].offsets()
            for b in (other, batch)
        ]
        assert ends[0].tolist() == ends[1].tolist() == [0, 2, 2, 2]
        # columns are still views of one block
        block = other.blocks["int32"]
        assert other["city"].untyped_storage().data_ptr() == block.untyped_storage().data_ptr()
    blocks = [tensor for tensor in moves if any(tensor is b for b in batch.blocks.values())]
    assert len(blocks) == len(batch.blocks)


@pytest.mark.parametrize("ragged", ["nested", "parts"])
def test_lists_come_through_worker_processes(
    reader: SnapshotReader, adapter: Any, ragged: str
) -> None:
    from torch.utils.data import DataLoader

    loader = adapter.loader(reader, ragged=ragged, keyed={"sparse": ["x"]})
    first, last = DataLoader(loader, batch_size=None, num_workers=1)
    rows = [first["tags"], last["tags"]]
    if ragged == "nested":
        assert [[t.tolist() for t in part.unbind()] for part in rows] == [[[7, 8], [], []], [[9]]]
    else:
        assert [part.values.tolist() for part in rows] == [[7, 8], [9]]
    assert last["sparse"].values.tolist() == [3]
    assert last["vector"].tolist() == [[7.0, 8.0]]


def test_a_wide_batch_crosses_to_the_trainer_in_one_block(lake: Lake, adapter: Any) -> None:
    from torch.utils.data import DataLoader

    names = [f"f{number}" for number in range(200)]
    lake.create(TableSpec("wide", dict.fromkeys(names, Float32)))
    values = np.arange(200 * 64, dtype=np.float32).reshape(64, 200)
    append_arrow(lake, "wide", pa.table({n: values[:, i] for i, n in enumerate(names)}))
    reader = SnapshotReader(lake, "wide", batch_size=16, shuffle=False, threads=0)
    plain = list(adapter.loader(reader))
    assert len(pickle.dumps(plain[0])) < 2 * 16 * 200 * 4
    for batch, wanted in zip(
        DataLoader(adapter.loader(reader), batch_size=None, num_workers=1), plain, strict=True
    ):
        assert all((batch[name] == wanted[name]).all() for name in names)
        places = {batch[name].untyped_storage().data_ptr() for name in names}
        assert len(places) == 1
