"""Columns of random types as tensors, against a reference that converts value by value."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.errors import ConfigurationError, RequestError, UnknownNameError
from paimon_features.testing.sizes import every_seed
from tests.reference.column_values import reference_item_mask, reference_values
from trainer_bridge.batches import numpy_form
from trainer_bridge.batches.numpy_form import NumpyForm
from trainer_bridge.batches.ragged import Ragged, Rows
from trainer_bridge.batches.tensor_columns import TensorColumn
from trainer_bridge.batches.vocabulary import Vocabulary

WORDS = ["", "Oslo", "a", "rome", "東京"]
LEAVES: dict[pa.DataType, Any] = {
    pa.int8(): lambda r: r.randrange(-128, 128),
    pa.uint16(): lambda r: r.randrange(2**16),
    pa.int64(): lambda r: r.randrange(-(2**63), 2**63),
    pa.float32(): lambda r: float(np.float32(r.gauss(0, 1e9))),
    pa.float64(): lambda r: r.choice([r.gauss(0, 1), float("inf"), -0.0]),
    pa.bool_(): lambda r: r.random() < 0.5,
    pa.date32(): lambda r: dt.date(1960, 1, 1) + dt.timedelta(r.randrange(30_000)),
    pa.date64(): lambda r: dt.date(1960, 1, 1) + dt.timedelta(r.randrange(30_000)),
    pa.timestamp("s"): lambda r: r.randrange(-(10**9), 10**9),
    pa.timestamp("ms", "Europe/London"): lambda r: r.randrange(-(10**12), 10**12),
    pa.timestamp("us"): lambda r: r.randrange(-(10**15), 10**15),
    pa.timestamp("ns", "UTC"): lambda r: r.randrange(-(10**18), 10**18),
    pa.time32("ms"): lambda r: r.randrange(86_400_000),
    pa.time64("us"): lambda r: r.randrange(86_400_000_000),
    pa.decimal128(12, 3): lambda r: Decimal(r.randrange(-(10**12) + 1, 10**12)).scaleb(-3),
    pa.string(): lambda r: r.choice(WORDS),
    pa.large_string(): lambda r: r.choice(WORDS),
}


def random_type(dice: random.Random) -> tuple[pa.DataType, pa.DataType]:
    """A type, and that of its items."""
    leaf = dice.choice(list(LEAVES))
    kind = leaf
    for _ in range(dice.choice([0, 1, 1, 2, 3])):
        kind = dice.choice(
            [pa.list_(kind), pa.large_list(kind), pa.list_(kind, dice.choice([1, 3]))]
        )
    return kind, leaf


def random_value(dice: random.Random, kind: pa.DataType, nulls: float) -> Any:
    if dice.random() < nulls:
        return None
    if not pa.types.is_nested(kind):
        return LEAVES[kind](dice)
    size = kind.list_size if pa.types.is_fixed_size_list(kind) else dice.choice([0, 1, 2, 5])
    return [random_value(dice, kind.value_type, nulls) for _ in range(size)]


def random_column(dice: random.Random, kind: pa.DataType, nulls: float) -> pa.ChunkedArray:
    """Several chunks, some empty, each a slice of a larger array; texts now and then as codes."""
    chunks = []
    as_codes = pa.types.is_string(kind) and dice.random() < 0.5
    for _ in range(dice.choice([0, 1, 3])):
        size, before, after = dice.choice([0, 1, 7]), dice.randrange(3), dice.randrange(3)
        values = [random_value(dice, kind, nulls) for _ in range(before + size + after)]
        chunk = pa.array(values, kind)
        if as_codes:
            chunk = chunk.dictionary_encode()
        chunks.append(chunk.slice(before, size))
    return pa.chunked_array(chunks, pa.dictionary(pa.int32(), kind) if as_codes else kind)


def random_case(dice: random.Random) -> tuple[pa.ChunkedArray, TensorColumn, float | None]:
    kind, leaf = random_type(dice)
    column = random_column(dice, kind, nulls=dice.choice([0.0, 0.2]))
    fill = dice.choice([0, 1])
    is_text = pa.types.is_string(leaf) or pa.types.is_large_string(leaf)
    plan = TensorColumn.plan(
        pa.field("x", column.type),
        "t",
        fill=fill,
        vocabulary=Vocabulary.of(WORDS) if is_text else None,
        scaled=pa.types.is_decimal(leaf),
    )
    return column, plan, fill


def as_lists(rows: Rows) -> list[Any]:
    return rows.to_lists() if isinstance(rows, Ragged) else rows.tolist()


@every_seed(250)
def test_columns_of_random_types_equal_the_reference_implementation(seed: int) -> None:
    dice = random.Random(seed)
    column, plan, fill = random_case(dice)
    rows = plan.rows(column)
    assert as_lists(rows) == reference_values(column, plan.spec, fill, WORDS), (seed, column.type)
    values = rows.values if isinstance(rows, Ragged) else rows
    assert values.dtype == plan.spec.dtype
    assert values.flags.writeable
    assert values.flags.c_contiguous
    if isinstance(rows, Ragged):
        assert rows.ragged_rank == plan.spec.ragged_rank
        assert [level[0] for level in rows.splits] == [0] * rows.ragged_rank
        held = [*(len(level) - 1 for level in rows.splits[1:]), len(values)]
        assert [level[-1] for level in rows.splits] == held
        assert all(level.dtype == np.int64 for level in rows.splits)


@every_seed(120)
def test_masks_of_items_equal_the_reference_implementation(seed: int) -> None:
    dice = random.Random(seed)
    kind = dice.choice([pa.int64(), pa.string(), pa.bool_()])
    codes = {"x": Vocabulary.of(WORDS)} if pa.types.is_string(kind) else {}
    for _ in range(dice.choice([1, 2, 3])):
        kind = dice.choice([pa.list_(kind), pa.large_list(kind), pa.list_(kind, 2)])
    column = random_column(dice, kind, nulls=0.3)
    schema = pa.schema([("x", kind)])
    form = NumpyForm(schema, table="t", codes=codes, masks=["x"], item_masks=["x"])
    rows = form.decode(pa.table({"x": column}))
    values = [rows.others["x"], *(rows.others[name] for name in form.specs if name[-1:].isdigit())]
    assert len(values) == 1 + form.specs["x"].ragged_rank + len(form.specs["x"].shape)
    # with nothing else declared a null is 0, or empty, and the masks distinguish them
    assert as_lists(values[0]) == reference_values(column, form.specs["x"], 0, WORDS)
    for depth, mask in enumerate(values[1:], start=1):
        spec = form.specs[f"x_present_{depth}"]
        assert as_lists(mask) == reference_item_mask(column, spec), (seed, kind, depth)
    if isinstance(values[0], Ragged):  # the innermost has the lists of the column itself
        splits = zip(values[-1].splits, values[0].splits, strict=True)  # type: ignore[union-attr]
        assert all((own == its).all() for own, its in splits)


@pytest.mark.parametrize("columns", [1, 15, 16, 70])
@pytest.mark.parametrize("rows", [0, 1, 14_979, 14_980, 70_001])
def test_a_block_of_many_columns_in_parts_is_the_columns_side_by_side(
    columns: int, rows: int
) -> None:
    dice = np.random.default_rng(rows + columns)
    schema = pa.schema([(f"c{i}", pa.float32() if i % 3 else pa.float64()) for i in range(columns)])
    values = [dice.random(rows).astype(field.type.to_pandas_dtype()) for field in schema]

    def parts(column: np.ndarray[Any, Any]) -> pa.ChunkedArray:
        cuts = np.sort(dice.integers(0, rows + 1, dice.integers(0, 4)))
        return pa.chunked_array([pa.array(part) for part in np.split(column, cuts)])

    form = NumpyForm(schema, table="t", float_dtype="float32")
    block = form.decode(pa.table([parts(column) for column in values], schema=schema)).blocks
    np.testing.assert_array_equal(
        block["float32"], np.stack([v.astype(np.float32) for v in values], axis=1)
    )
    assert block["float32"].flags.c_contiguous


def test_blocks_are_filled_alike_without_the_native_core(monkeypatch: pytest.MonkeyPatch) -> None:
    dice = np.random.default_rng(3)
    values = dice.random((3_000, 20)).astype(np.float32)
    # a column in no part, in one, and in several, of which some are empty
    cuts: list[list[int]] = [[], [0, 7], [1_500, 1_500], [10, 700, 2_999]]
    table = pa.table(
        {
            f"c{i}": pa.chunked_array(np.split(values[:, i], cuts[i % 4]), pa.float32())
            for i in range(20)
        }
    )
    form = NumpyForm(table.schema, table="t")
    monkeypatch.setattr(numpy_form, "CORE", None)
    monkeypatch.setattr(numpy_form, "_TILE_BYTES", 1_000)  # many tiles of a few rows
    for rows in (table, table.slice(5, 100), table.slice(0, 0)):
        found = form.decode(rows).blocks["float32"]
        np.testing.assert_array_equal(found, np.stack([c.to_numpy() for c in rows.columns], axis=1))


def test_dictionaries_are_decoded_as_their_values() -> None:
    words = pa.array(["b", None, "a", "b"])
    lists = pa.array([[1, 2], None, []], pa.list_(pa.int64()))
    picked = pa.DictionaryArray.from_arrays(pa.array([2, 0, 1, 0]), lists)
    table = pa.table(
        {
            "word": words.dictionary_encode(),
            "words": pa.array([["a"], [], None, ["b", None]], pa.list_(pa.string())).cast(
                pa.list_(pa.dictionary(pa.int32(), pa.string()))
            ),
            "number": pa.array([7, 7, None, 9]).dictionary_encode(),
            "list": picked,
        }
    )
    codes = {name: Vocabulary.collected([table[name]]) for name in ("word", "words")}
    assert [one.words.to_pylist() for one in codes.values()] == [["a", "b"]] * 2
    form = NumpyForm(
        table.schema, table="t", codes=codes, fill={"word": -1, "words": -1, "number": 0},
        item_masks=["words"],
    )  # fmt: skip
    batch = form.batch(form.decode(table), 0, 4, position=0, epoch=0, row_numbers=np.arange(4))
    assert {name: as_lists(batch[name]) for name in form.specs} == {
        "word": [1, -1, 0, 1],
        "words": [[0], [], None, [1, -1]],
        "words_present_1": [[True], [], [], [True, False]],
        "number": [7, 7, 0, 9],
        "list": [[], [1, 2], None, [1, 2]],
    }
    with pytest.raises(UnknownNameError, match="'wrd' of this batch.*did you mean 'word'"):
        batch["wrd"]


@every_seed(150)
def test_gathering_viewing_and_joining_lists_is_what_python_lists_do(seed: int) -> None:
    dice = random.Random(seed)
    kind, _ = random_type(dice)
    options: dict[str, Any] = {"table": "t", "fill": {"x": 1}, "masks": ["x"]}
    field = pa.field("x", kind)
    leaf = kind
    while pa.types.is_nested(leaf):
        leaf = leaf.value_type
    if pa.types.is_string(leaf) or pa.types.is_large_string(leaf):
        options["codes"] = {"x": Vocabulary.of(WORDS)}
    if pa.types.is_decimal(leaf):
        options["scaled"] = ["x"]
    form = NumpyForm(pa.schema([field, ("n", pa.int64())]), **options)
    blocks, wanted, first = [], [], 0
    for _ in range(3):
        size = dice.choice([1, 4, 9])
        values = [random_value(dice, kind, 0.2) for _ in range(size)]
        column = pa.chunked_array([pa.array(values, kind)])
        table = pa.table({"x": column, "n": range(first, first + size)})
        blocks.append(form.decode(table))
        wanted.append(reference_values(column, form.specs["x"], 1, WORDS))
        first += size
    flat = [row for block in wanted for row in block]

    def shown(rows: Any, size: int, form: NumpyForm = form) -> tuple[list[Any], list[int]]:
        batch = form.batch(rows, 0, size, row_numbers=np.arange(size), epoch=0, position=0)
        present = batch["x_present"].tolist()
        found = as_lists(batch["x"])
        if "x" in batch.ragged:
            assert present == [row is not None for row in found]
        return found, batch["n"].tolist()

    found, numbers = shown(form.join(blocks), len(flat))
    assert (found, numbers) == (flat, list(range(len(flat))))
    draws = np.array([dice.randrange(len(flat)) for _ in range(12)])
    ends = np.cumsum([0, *map(len, wanted)])
    sources = [
        (block, draws[places] - low, places)
        for block, low, high in zip(blocks, ends, ends[1:], strict=False)
        if len(places := np.flatnonzero((draws >= low) & (draws < high)))
    ]
    gathered = form.gather(sources, len(draws))
    assert shown(gathered, 12) == ([flat[row] for row in draws], draws.tolist())
    view = form.view(gathered, 3, 8)
    assert shown(view, 5)[0] == [flat[row] for row in draws[3:8]]
    assert form.nbytes(gathered) > 0


def test_a_null_list_may_have_items_behind_it() -> None:
    inner = pa.ListArray.from_arrays(pa.array([0, 2, 3, 5]), pa.array([1, 2, 3, 4, 5]))
    array = pa.ListArray.from_buffers(
        inner.type, 3, [pa.py_buffer(b"\x05"), *inner.buffers()[1:2]], children=[inner.values]
    )
    assert array.to_pylist() == [[1, 2], None, [4, 5]]
    plan = TensorColumn.plan(pa.field("x", array.type), "t")
    rows = plan.rows(pa.chunked_array([array]))
    assert rows.values.tolist() == [1, 2, 4, 5]  # type: ignore[union-attr]
    assert rows.to_lists() == [[1, 2], None, [4, 5]]  # type: ignore[union-attr]


def test_lists_are_sliced_in_runs_and_padded_by_what_their_type_has() -> None:
    lists = Ragged(np.array([1, 2, 3], np.int32), (np.array([0, 2, 2, 3]),))
    assert lists[2:1].to_lists() == []
    with pytest.raises(RequestError, match="a slice of ragged rows with step 2: expected step 1"):
        lists[::2]
    assert lists.to_dense(-1).tolist() == [[1, 2], [-1, -1], [3, -1]]
    for pad in (0.5, 2**40, float("nan")):
        with pytest.raises(RequestError, match="items are int32, which cannot represent that"):
            lists.to_dense(pad)
    with pytest.raises(RequestError, match="a list of 2 items at level 0 does not fit a dense arr"):
        lists.to_dense(0, [1])


def test_nulls_of_half_precision_are_filled() -> None:
    array = pa.array([np.float16(1.5), None, np.float16(-2)], pa.float16())
    plan = TensorColumn.plan(pa.field("x", array.type), "t", fill=0.5)
    rows = plan.rows(pa.chunked_array([array, array.slice(1)]))
    assert rows.tolist() == [1.5, 0.5, -2, 0.5, -2]  # type: ignore[union-attr]
    assert rows.dtype == np.float16


def test_lists_of_a_declared_length_are_one_array() -> None:
    column = pa.chunked_array([[[1.0, 2.0], [3.0, 4.0]], [[5.0, 6.0]]])
    plan = TensorColumn.plan(pa.field("x", column.type), "t", shape=[2])
    assert plan.rows(column).tolist() == [[1, 2], [3, 4], [5, 6]]  # type: ignore[union-attr]
    other = pa.chunked_array([[[1.0, 2.0], [3.0]]])
    with pytest.raises(RequestError, match=r"table 't': column 'x' has a list of 1 items; .* 2"):
        plan.rows(other)
    gone = pa.chunked_array([[[1.0, 2.0], None]])
    with pytest.raises(RequestError, match=r"column 'x' has a null.*fill=\{'x': <number>\}"):
        plan.rows(gone)
    filled = TensorColumn.plan(pa.field("x", column.type), "t", shape=[2], fill=-1)
    assert filled.rows(gone).tolist() == [[1, 2], [-1, -1]]  # type: ignore[union-attr]
    with pytest.raises(ConfigurationError, match=r"no shape \[2, 2\] inside; it has 1 levels"):
        TensorColumn.plan(pa.field("x", column.type), "t", shape=[2, 2])
    with pytest.raises(ConfigurationError, match=r"no shape \[4\] inside"):
        TensorColumn.plan(pa.field("x", pa.list_(pa.int8(), 3)), "t", shape=[4])


@pytest.mark.parametrize(
    ("values", "kind", "message"),
    [
        (
            [[1, None]],
            pa.list_(pa.int64()),
            r"'x' has a null, .*fill=\{'x'.* or item_masks=\['x'\]",
        ),
        ([[[1], None]], pa.list_(pa.list_(pa.int64())), "has a null list inside a list; declare"),
        ([Decimal("1e30")], pa.decimal128(38, 2), "too large for scaled=.*store it as a float"),
        (["Paris"], pa.string(), "column 'x': 'Paris' is not among the 5 words"),
        ([Decimal("1.5")], pa.decimal256(50, 2), r"decimal256\(50, 2\); scaled= takes .* of 128 b"),
    ],
)
def test_values_that_have_no_number_are_refused(
    values: list[Any], kind: pa.DataType, message: str
) -> None:
    plan = TensorColumn.plan(
        pa.field("x", kind),
        "t",
        scaled=pa.types.is_decimal(kind),
        vocabulary=Vocabulary.of(WORDS) if pa.types.is_string(kind) else None,
    )
    with pytest.raises(RequestError, match=message):
        plan.rows(pa.chunked_array([pa.array(values, kind)]))


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        (pa.string(), "request codes by codes="),
        (pa.list_(pa.string()), "request codes by codes="),
        (pa.decimal128(10, 2), "scaled="),
        (pa.struct([("a", pa.int64())]), "store its fields as columns"),
        (pa.map_(pa.string(), pa.int64()), "store its values as columns"),
        (pa.binary(), "convert it"),
        (pa.null(), "convert it"),
    ],
)
def test_types_without_a_tensor_form_are_refused_with_a_remedy(
    kind: pa.DataType, remedy: str
) -> None:
    with pytest.raises(RequestError, match=rf"table 't': column 'x' is .*{remedy}.*columns="):
        TensorColumn.plan(pa.field("x", kind), "t")


def test_declarations_that_do_not_fit_a_type_are_refused() -> None:
    schema = pa.schema([("x", pa.int64()), ("t", pa.list_(pa.int32()))])
    for options, message in (
        ({"codes": {"x": Vocabulary.of(WORDS)}}, "codes= is for texts"),
        ({"scaled": ["x"]}, "scaled= is for decimals"),
        ({"fill": {"t": 0.5}}, "cannot represent that"),
        ({"fill": {"t": 2**40}}, "cannot represent that"),
        ({"fill": {"x": float("nan")}}, "cannot represent that"),
        ({"fill": {"x": "a"}}, "cannot represent that"),
        ({"fill": {"x": [1, 2]}}, "cannot represent that"),
        ({"shapes": {"t": [0]}}, "expected sizes of 1 or more"),
        ({"shapes": {"y": [2]}}, "unknown column 'y'"),
        ({"item_masks": ["y"]}, "unknown column 'y'"),
        ({"float_dtype": "float16"}, "float_dtype='float16': expected 'float32', 'float64' or N"),
        ({"item_masks": ["x"]}, "column 'x' is int64, which has no items; .* masks= for the rows"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            NumpyForm(schema, table="t", **options)  # type: ignore[arg-type]
    clash = pa.schema([("t", pa.list_(pa.int32())), ("t_present_1", pa.int32())])
    with pytest.raises(ConfigurationError, match="would add a column 't_present_1', which table"):
        NumpyForm(clash, table="t", item_masks=["t"])
    with pytest.raises(ConfigurationError, match="a duplicate word"):
        Vocabulary.of(["a", "a"])
    with pytest.raises(ConfigurationError, match="expected texts"):
        Vocabulary.of([1])  # type: ignore[list-item]
