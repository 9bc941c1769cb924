"""Folding file by file in the oldest one's memory, against folding by sorted rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.errors import TableError
from paimon_features.testing.sizes import every_seed
from trainer_bridge.blocks.folds import CHOOSING, fold, take
from trainer_bridge.blocks.layers import Layers
from trainer_bridge.blocks.merge import group_rows, newest_rows

TYPES = [pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.timestamp("ms"), pa.date32()]
TYPES += [pa.string(), pa.bool_(), pa.decimal128(12, 2)]
NUMBERS = ("sum", "product", "min", "max")


def functions_of(kind: pa.DataType) -> list[str]:
    if pa.types.is_boolean(kind):
        return [*CHOOSING, "bool_or", "bool_and"]
    if pa.types.is_string(kind):
        return [*CHOOSING, "min", "max", "listagg"]
    if pa.types.is_temporal(kind):
        return [*CHOOSING, "min", "max"]
    return [*CHOOSING, *(NUMBERS[:1] + NUMBERS[2:] if pa.types.is_decimal(kind) else NUMBERS)]


def random_column(dice: np.random.Generator, kind: pa.DataType, rows: int) -> pa.ChunkedArray:
    """Values with or without nulls, in one chunk or two, at their memory's begin or within it."""
    how = dice.integers(4)
    if not how:
        return pa.chunked_array([pa.nulls(rows, kind)])
    if pa.types.is_floating(kind):
        special = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e30]
        raw = np.where(dice.random(rows + 3) < 0.3, dice.choice(special, rows + 3), 0)
        values: Any = pa.array(raw + dice.normal(size=rows + 3) * (raw == 0) * dice.integers(2))
        values = values.cast(kind, safe=False)
    else:
        values = pa.array(dice.integers(-9, 9, rows + 3))
        if pa.types.is_temporal(kind):
            values = values.cast(f"int{kind.bit_width}")
        values = values.cast(pa.decimal128(21, 2) if pa.types.is_decimal(kind) else kind)
        values = values.cast(kind)
    if how > 1:
        mask = dice.random(rows + 3) < 0.3
        values = pa.array(
            [None if hidden else v for v, hidden in zip(values.to_pylist(), mask, strict=True)],
            kind,
        )
    part = values.slice(int(dice.integers(4)), rows)
    cut = int(dice.integers(rows + 1)) if dice.random() < 0.3 else 0
    return pa.chunked_array([part.slice(0, cut), part.slice(cut)] if cut else [part])


def random_keys(dice: np.random.Generator) -> list[np.ndarray[Any, Any]]:
    """The sorted keys of some files; the first has all of them, or most, or a few."""
    every = np.sort(dice.choice(900, dice.integers(1, 60), replace=False))
    parts = [every if dice.random() < 0.5 else every[dice.random(len(every)) < 0.7]]
    for _ in range(dice.integers(1, 6)):
        parts.append(every[dice.random(len(every)) < dice.random() ** 3])
    return [part for part in parts if len(part)] or [every]


def in_bytes(values: pa.Array) -> tuple[Any, ...]:
    """Values as they are compared here: floats to the bit, but for which NaN it is."""
    if not pa.types.is_floating(values.type):
        return tuple(values.to_pylist())
    return tuple(None if v is None else repr(v) for v in values.to_pylist())


@every_seed(24)
def test_folding_file_by_file_equals_folding_sorted_rows(seed: int) -> None:
    dice = np.random.default_rng(seed)
    keys = random_keys(dice)
    sizes = [len(part) for part in keys]
    groups = group_rows([pa.chunked_array([pa.array(np.concatenate(keys))])])
    found = Layers.of(groups, sizes)
    assert found is not None
    direct = Layers.of_keys(keys)
    assert (direct is None) == (2 * max(sizes) < sum(sizes))
    for other in filter(None, [direct]):
        assert other.count == found.count
        assert [own.tolist() for own in other.owns] == [own.tolist() for own in found.owns]
    newest = newest_rows(keys)
    assert (newest is None) == (np.ptp(np.concatenate(keys)) + 1 > 32 * sum(sizes))
    if newest is not None:
        assert np.flatnonzero(newest).tolist() == sorted(groups.last.tolist())
    layers = Layers.unpack(len(groups), sizes, found.pack())
    assert [own.tolist() for own in layers.owns] == [own.tolist() for own in found.owns]
    assert layers.last.tolist() == groups.last.tolist()
    for kind in TYPES:
        for function in functions_of(kind):
            parts = [random_column(dice, kind, size) for size in sizes]
            whole = pa.chunked_array([c for part in parts for c in part.chunks], kind)
            # a copy, since the layers may write over what they are given
            before = pa.chunked_array([pa.array(whole.to_pylist(), kind)])
            wanted = fold(groups, before, function)
            got = layers.fold(parts, function)
            got.validate(full=True)
            assert got.type == kind
            assert in_bytes(got) == in_bytes(wanted), (kind, function)
        parts = [random_column(dice, kind, size) for size in sizes]
        whole = pa.chunked_array([c for part in parts for c in part.chunks], kind)
        wanted = take(pa.chunked_array([pa.array(whole.to_pylist(), kind)]), groups.last)
        assert in_bytes(layers.take(parts)) == in_bytes(wanted)


def test_a_sum_that_may_leave_its_type_is_refused_as_by_sorted_rows_or_right() -> None:
    layers = Layers(2, (np.array([0, 1]), np.array([0, 1])))
    most = 2**63 - 1

    def folded(*parts: list[int | None]) -> list[int | None]:
        columns = [pa.chunked_array([pa.array(part, pa.int64())]) for part in parts]
        return layers.fold(columns, "sum").to_pylist()

    assert folded([most, 1], [-1, 5]) == [most - 1, 6]
    assert folded([-most, None], [-1, -most - 1]) == [-most - 1, -most - 1]
    with pytest.raises(TableError, match="a sum exceeds int64"):
        folded([most, 1], [1, 5])


def test_files_whose_groups_do_not_ascend_are_no_layers() -> None:
    groups = group_rows([pa.chunked_array([[1, 3, 3, 2]])])
    assert Layers.of(groups, [3, 1]) is None  # a file with a key twice
    groups = group_rows([pa.chunked_array([[3, 1, 2]])])
    assert Layers.of(groups, [2, 1]) is None  # a file that is not sorted
    assert Layers.of_keys([np.array([1, 2, 3, 4]), np.array([3, 3])]) is None
    assert Layers.of_keys([np.array([2, 1, 3, 4]), np.array([3])]) is None
    assert newest_rows([np.array([1, 2]), np.array([3, 3])]) is None
    assert newest_rows([np.array([1, 2]), np.array([3, 2])]) is None
    assert newest_rows([np.array([-(2**63), 2**63 - 1])]) is None


def test_steps_take_as_many_bytes_as_the_widest_needs() -> None:
    owns = (np.arange(70_000), np.array([5, 260]), np.array([0, 256]), np.array([0, 69_999]))
    layers = Layers(70_000, owns)
    packed = layers.pack()
    assert [len(part) for part in packed] == [0, 2, 4, 8]
    found = Layers.unpack(70_000, [70_000, 2, 2, 2], packed)
    assert [own.tolist() for own in found.owns] == [own.tolist() for own in owns]
