"""The loader's permutation and gather by the native core: the numbers and bytes of NumPy's."""

from __future__ import annotations

import random
from bisect import bisect_left
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.native import CORE
from paimon_features.testing.sizes import cases
from trainer_bridge.batches import numpy_form, ragged
from trainer_bridge.batches.forms import ArrowForm, stacked_columns
from trainer_bridge.blocks import layers
from trainer_bridge.order import blocks_of_rows, global_order, permutation
from trainer_bridge.order.global_order import GlobalOrder

pytestmark = pytest.mark.skipif(CORE is None, reason="the native core is not built (make test)")
SIZES = (1, 2, 3, 1_023, 1_024, 10**6, 2**31, 2**53 + 1, 2**62 - 1)


@given(seed=st.integers(0, 2**32 - 1))
@cases(60)
def test_a_permutation_is_the_reference_s(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.choice((0, 1, 5, 300))
    sizes = np.array([rng.choice(SIZES) for _ in range(count)], np.uint64)
    if rng.random() < 0.5:
        sizes = np.full(1, rng.choice(SIZES), np.uint64)
    each = np.broadcast_to(sizes, count).tolist()
    numbers = np.array([rng.randrange(size) for size in each], np.uint64)
    keys = np.array([rng.randrange(2**64) for _ in range(rng.choice((1, count)))], np.uint64)
    if len(keys) not in (1, count):
        keys = keys[:1]
    got = permutation.permute(numbers, sizes, keys)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(permutation, "CORE", None)
        assert got.tolist() == permutation.permute(numbers, sizes, keys).tolist()


@pytest.mark.parametrize("core", [CORE, None], ids=["native", "numpy"])
def test_numbers_that_are_out_of_range_are_refused(core: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for module in (global_order, permutation, blocks_of_rows):
            patch.setattr(module, "CORE", core)
        with pytest.raises(ValueError, match="not below its size"):
            permutation.permute([5], [5], [1])
        for shuffle in (True, False):
            order = GlobalOrder([3, 2], streams=2, seed=1, epoch=0, shuffle=shuffle)
            for position in (-1, 5, 6, 9, 2**62):
                with pytest.raises(ValueError, match="expected positions from 0 to 4, got "):
                    order.rows(np.array([0, position]))
        for row in (-1, 9, 2**62):
            with pytest.raises(ValueError, match="is in no block"):
                list(blocks_of_rows.by_block(np.array([0, row]), np.array([0, 3, 7, 9])))
        assert not list(blocks_of_rows.by_block(np.array([], np.int64), np.array([0, 3])))


@given(seed=st.integers(0, 2**32 - 1))
@cases(60)
def test_ascending_keys_are_located_as_by_numpy(seed: int) -> None:
    rng = np.random.default_rng(seed)

    def ascending(most: int) -> Any:
        # here dense and there with wide gaps, so that steps of each length are taken
        steps = rng.integers(1, rng.choice([2, 5, 1_000, 2**40]), int(rng.integers(0, most)))
        return np.cumsum(steps) - int(rng.integers(0, 50))

    values = ascending(5_000)
    keys = ascending(rng.choice([3, 300, 5_000]))
    if len(values) and rng.random() < 0.5:
        keys = np.unique(np.append(keys, rng.choice(values, 20)))
    if len(keys) > 1 and rng.random() < 0.2:
        keys[rng.integers(0, len(keys))] = keys[0]
    found = []
    for core in (CORE, None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(layers, "CORE", core)
            located = layers.located(values, keys) if len(values) else None
        found.append(None if located is None else (located[0].tolist(), located[1]))
    assert found[0] == found[1]
    if found[0] is not None:
        assert found[0][0] == [bisect_left(values.tolist(), key) for key in keys.tolist()]
        assert found[0][1] == len(set(keys.tolist()) - set(values.tolist()))


@given(seed=st.integers(0, 2**32 - 1))
@cases(60)
def test_rows_are_moved_as_by_numpy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kind = rng.choice(["u1", "i4", "f8", "M8[ms]", "?"])
    width = int(rng.integers(1, 7))
    source = rng.integers(0, 100, (int(rng.integers(1, 50)), width)).astype(kind)
    count = int(rng.integers(0, 60))
    rows, places = rng.integers(0, len(source), count), rng.permutation(60)[:count]
    results = []
    for core in (CORE, None):
        out = np.zeros((60, width), kind)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ragged, "CORE", core)
            ragged.move_items(ragged.items(source), rows, ragged.items(out), places)
        results.append(out.tobytes())
    assert results[0] == results[1]


@given(seed=st.integers(0, 2**32 - 1))
@cases(60)
def test_an_order_is_the_reference_s(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 3_000, int(rng.integers(1, 6)))
    order = GlobalOrder(
        sizes, streams=int(rng.integers(1, min(8, sizes.sum()) + 1)), seed=seed, epoch=3
    )
    step = int(rng.integers(1, 4))  # of the ranks
    positions = rng.permutation(len(order)) if rng.random() < 0.5 else np.arange(len(order))[::step]
    got = order.rows(positions)
    with pytest.MonkeyPatch.context() as patch:
        for module in (global_order, permutation):
            patch.setattr(module, "CORE", None)
        assert got.tolist() == order.rows(positions).tolist()


@given(seed=st.integers(0, 2**32 - 1))
@cases(60)
def test_rows_are_found_in_their_blocks_as_by_numpy(seed: int) -> None:
    rng = np.random.default_rng(seed)
    first_rows = np.concatenate([[0], np.cumsum(rng.integers(1, 9, int(rng.integers(1, 7))))])
    numbers = rng.integers(0, first_rows[-1], int(rng.integers(1, 90)))
    results = []
    for core in (CORE, None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(blocks_of_rows, "CORE", core)
            found = blocks_of_rows.by_block(numbers, first_rows)
            results.append([(b, o.tolist(), p.tolist()) for b, o, p in found])
    assert results[0] == results[1]


@given(seed=st.integers(0, 2**32 - 1))
@cases(60)
def test_columns_become_blocks_as_by_numpy_and_rows_are_picked_from_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kinds = [("f4", "float32"), ("i8", "int64"), ("i2", "int16"), ("u1", "uint8")]
    kind, name = kinds[int(rng.integers(len(kinds)))]
    columns = [f"c{number}" for number in range(int(rng.integers(1, 12)))]
    rows = int(rng.integers(1, 300))
    cuts = [np.sort(rng.integers(0, rows + 1, int(rng.integers(0, 3)))) for _ in columns]
    values = [rng.integers(0, 100, rows).astype(kind) for _ in columns]
    table = pa.table(
        [pa.chunked_array(np.split(v, c)) for v, c in zip(values, cuts, strict=True)], columns
    )
    form = numpy_form.NumpyForm(table.schema, table="t")
    block = form.decode(table).blocks[name]
    assert block.tolist() == np.stack(values, axis=1).tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(numpy_form, "CORE", None)
        assert form.decode(table).blocks[name].tolist() == block.tolist()
        assert (
            form.pick({0: form.decode(table)}, np.array([0, rows]), np.zeros(1, np.int64)) is None
        )
    first_rows = np.array([0, rows, 2 * rows])
    numbers = rng.integers(0, 2 * rows, 50)
    second = form.decode(table.slice(0).select(columns))
    picked = form.pick({0: form.decode(table), 1: second}, first_rows, numbers)
    assert picked is not None
    assert picked.blocks[name].tolist() == block[numbers % rows].tolist()


@given(seed=st.integers(0, 2**32 - 1))
@cases(30)
def test_groups_of_columns_become_the_rows_that_all_at_once_become(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, width = int(rng.integers(1, 300)), int(rng.integers(64, 90))
    kind = ["f4", "i8"][int(rng.integers(2))]
    values = {f"c{number}": rng.integers(0, 99, rows).astype(kind) for number in range(width)}
    table, cut = pa.table(values), int(rng.integers(0, rows))
    for form in (numpy_form.NumpyForm(table.schema, table="t"), ArrowForm(table.schema)):
        for step in (8, 24):
            parts = [
                (start, table.slice(start, size).select(table.column_names[low : low + step]))
                for start, size in ((0, cut), (cut, rows - cut))
                for low in range(0, width, step)
            ]
            found = form.decode_groups(parts, rows)
            if isinstance(found, pa.Table):
                assert found.equals(table)
                stacked = stacked_columns(found.columns)
                assert stacked is not None
                assert stacked.view(kind).tolist() == np.stack(list(values.values())).tolist()
            else:
                assert isinstance(found, numpy_form.NumpyRows)
                block = next(iter(found.blocks.values()))
                assert block.tolist() == np.stack(list(values.values()), axis=1).tolist()
        assert form.column_groups(table.schema, 20_000)
