"""Readers as tf.data: whole blocks, epoch after epoch, states, lists, Keras."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.errors import ConfigurationError, RequestError, UnknownNameError
from paimon_features.core.types.schema import Float32, Float64, Int64
from paimon_features.lake.catalog import Lake
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.writing.table_writer import append_arrow
from tests.long_cases import quick_cases
from trainer_bridge.batches.ragged import Ragged
from trainer_bridge.batches.vocabulary import Vocabulary
from trainer_bridge.readers.snapshot_reader import SnapshotReader
from trainer_bridge.samplers import DifficultyWeightedSampler
from trainer_bridge.testing.sample_tables import make_samples

pytestmark = pytest.mark.tensorflow

SIZES = (9, 3, 17, 30, 1, 26)
COLUMNS = ["x", "y", "flag"]


@pytest.fixture(scope="module")
def tb() -> Any:
    import trainer_bridge.tensorflow

    return trainer_bridge.tensorflow


@pytest.fixture(scope="module")
def tf() -> Any:
    import tensorflow

    return tensorflow


def reader_threads() -> list[str]:
    """Threads of readers; what TensorFlow has of its own is not ours to end."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("snapshot-")]


def x_of(batches: Any) -> list[list[int]]:
    return [np.asarray(batch["x"]).tolist() for batch in batches]


@pytest.mark.parametrize(("threads", "prefetch"), [(0, 0), (2, 2)])
def test_passes_are_the_readers_epochs_in_their_order(
    lake: Lake, tb: Any, threads: int, prefetch: int
) -> None:
    table = make_samples(lake, SIZES)
    options: dict[str, Any] = {"columns": COLUMNS, "batch_size": 10, "seed": 1, "threads": threads}
    epochs = [x_of(SnapshotReader(lake, table, epoch=e, **options)) for e in range(3)]
    reader = SnapshotReader(lake, table, **options)
    data = tb.dataset(reader, prefetch=prefetch)
    assert int(data.cardinality()) == len(reader)
    assert [x_of(data) for _ in range(3)] == epochs
    reader.set_epoch(0)
    assert x_of(data.repeat(3)) == list(itertools.chain(*epochs))
    assert reader.epoch == 3
    assert not reader_threads()


def test_tensors_have_the_columns_values_and_types(lake: Lake, tb: Any, tf: Any) -> None:
    table = make_samples(lake, SIZES)
    options: dict[str, Any] = {"columns": [*COLUMNS], "batch_size": 10, "masks": ["y"]}
    plain = list(SnapshotReader(lake, table, **options))
    data = tb.dataset(SnapshotReader(lake, table, **options), row_numbers=True)
    assert data.element_spec == {
        "x": tf.TensorSpec((None,), tf.int64),
        "y": tf.TensorSpec((None,), tf.float64),
        "y_present": tf.TensorSpec((None,), tf.bool),
        "flag": tf.TensorSpec((None,), tf.bool),
        "row_number": tf.TensorSpec((None,), tf.int64),
    }
    assert list(data.element_spec) == [*plain[0].columns, "row_number"]
    for batch, arrays in zip(data, plain, strict=True):
        for name, values in arrays.columns.items():
            assert batch[name].numpy().tolist() == values.tolist()
        assert batch["row_number"].numpy().tolist() == arrays.row_numbers.tolist()


@pytest.mark.parametrize("last", ["drop_last", "pad_last"])
def test_batches_of_one_size_have_static_shapes(lake: Lake, tb: Any, last: str) -> None:
    table = make_samples(lake, SIZES)
    reader = SnapshotReader(
        lake, table, columns=COLUMNS, global_batch_size=11, rank=1, world_size=3, **{last: True}
    )
    data = tb.dataset(reader, stack={"m": ["y"]}, row_numbers=True)
    assert data.element_spec["x"].shape == (4,)
    assert data.element_spec["m"].shape == (4, 1)
    assert data.element_spec["row_number"].shape == (4,)
    assert [len(batch["x"]) for batch in data] == [4] * len(reader)


def test_a_pass_that_is_broken_off_counts_for_nothing(lake: Lake, tb: Any) -> None:
    table = make_samples(lake, SIZES)
    reader = SnapshotReader(lake, table, columns=["x"], batch_size=10)
    before = reader.state_dict()
    data = tb.dataset(reader)
    whole = x_of(data)
    reader.load_state_dict(before)
    for taken in (1, 5, len(whole) - 1):
        assert x_of(data.take(taken)) == whole[:taken]
        gc.collect()
        assert reader.state_dict() == before
        assert not reader_threads()
    # the last batch ends the epoch, whether or not the end was requested
    assert x_of(data.take(len(whole))) == whole
    assert reader.epoch == 1


def test_a_new_iteration_ends_the_one_before(lake: Lake, tb: Any, tf: Any) -> None:
    table = make_samples(lake, SIZES)
    reader = SnapshotReader(lake, table, columns=["x"], batch_size=10)
    data = tb.dataset(reader, prefetch=0)
    first = iter(data)
    one = next(first)["x"].numpy().tolist()
    second = iter(data)
    assert next(second)["x"].numpy().tolist() == one
    with pytest.raises(tf.errors.InvalidArgumentError, match="another iteration over the dataset"):
        next(first)
    assert len(list(second)) == len(reader) - 1


def test_progress_gives_the_state_of_what_was_trained_at_every_batch(lake: Lake, tb: Any) -> None:
    table = make_samples(lake, SIZES)
    options: dict[str, Any] = {"columns": ["x"], "batch_size": 10, "seed": 3}
    whole = x_of(SnapshotReader(lake, table, **options))
    reader = SnapshotReader(lake, table, **options)
    progress = tb.TrainingProgress(reader)
    states = [progress.state_dict()]
    for _ in tb.dataset(reader, prefetch=3):
        progress.advance()
        states.append(progress.state_dict())
    assert states[-1]["epoch"] == 1
    other = SnapshotReader(lake, table, **options)
    progress = tb.TrainingProgress(other)
    for had, state in enumerate(states[:-1]):
        progress.load_state_dict(state)
        assert x_of(tb.dataset(other)) == whole[had:]
    # without prefetching, the reader's own state is exact
    exact = SnapshotReader(lake, table, **options)
    for number, _ in enumerate(tb.dataset(exact, prefetch=0), 1):
        assert exact.state_dict() == states[number]


@pytest.mark.parametrize("prefetch", quick_cases([0, 2], 2))
@pytest.mark.parametrize("repeated", [False, True])
def test_passes_that_are_broken_off_continue_where_the_training_is(
    lake: Lake, tb: Any, prefetch: int, repeated: bool
) -> None:
    table = make_samples(lake, SIZES)
    options: dict[str, Any] = {"columns": ["x"], "batch_size": 10, "seed": 3}
    plain = SnapshotReader(lake, table, **options)
    whole = [batch for _ in range(4) for batch in x_of(plain)]
    reader = SnapshotReader(lake, table, **options)
    data, progress = tb.dataset(reader, prefetch=prefetch), tb.TrainingProgress(reader)
    if repeated:
        data = data.repeat()
    trained: list[list[int]] = []
    for steps in (3, 1, 4, 9, 2, 6):  # epochs have nine
        for batch in data.take(steps):
            trained.append(batch["x"].numpy().tolist())
            progress.advance()
        assert trained == whole[: len(trained)]
        next(iter(data))  # a look at one batch counts for nothing
        gc.collect()
    assert progress.state_dict() == reader.state_after(7, {**reader.state_dict(), "position": 0})
    resumed = SnapshotReader(lake, table, **options)
    resumed.load_state_dict(progress.state_dict())
    assert x_of(resumed) == whole[len(trained) : 27]


def test_fits_of_a_few_steps_train_all_rows_once(lake: Lake, tb: Any, tf: Any) -> None:
    import keras

    lake.create(TableSpec("t", {"id": Float32, "y": Float32}))
    rows = {"id": np.arange(100, dtype="f4"), "y": np.zeros(100, "f4")}
    append_arrow(lake, "t", pa.table(rows))
    reader = SnapshotReader(lake, "t", batch_size=10, seed=1)
    data = tb.dataset(reader, stack={"x": ["id"]}, features="x", label="y")
    progress, seen = tb.TrainingProgress(reader), []

    class Model(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def train_step(self, pair: Any) -> Any:
            seen.extend(pair[0].numpy()[:, 0].astype(int).tolist())
            return super().train_step(pair)

    model = Model()
    model.compile("sgd", "mse", run_eagerly=True)
    for steps, epochs in ((3, 1), (3, 1), (2, 2)):
        model.fit(
            data,
            steps_per_epoch=steps,
            epochs=epochs,
            shuffle=False,
            verbose=0,
            callbacks=[tb.ProgressCallback(progress)],
        )
        assert len(seen) == len(set(seen)) == (progress.state_dict()["position"] or 100)
    assert progress.state_dict()["epoch"] == 1


def test_a_dataset_is_for_the_epoch_length_it_was_made_for(lake: Lake, tb: Any, tf: Any) -> None:
    table = make_samples(lake, SIZES)
    reader = SnapshotReader(lake, table, columns=["x"], batch_size=10)
    data = tb.dataset(reader)
    reader.load_state_dict(reader.state_after(3))
    with pytest.raises(tf.errors.InvalidArgumentError, match="create the dataset again"):
        list(data)
    rest = tb.dataset(reader)
    assert int(rest.cardinality()) == len(list(rest)) == len(reader) - 3
    append_arrow(lake, table, pa.table({"x": [1], "y": [1.0], "flag": [True], "name": ["a"]}))
    newer = SnapshotReader(lake, table, columns=["x"], batch_size=10, epoch=1)
    data = tb.dataset(reader)
    reader.load_state_dict(newer.state_dict())
    with pytest.raises(tf.errors.InvalidArgumentError, match="moved to snapshot 7"):
        list(data)


def test_errors_of_the_reader_say_what_is_wrong(lake: Lake, tb: Any, tf: Any) -> None:
    lake.create(TableSpec("t", {"a": Float32, "b": Int64}))
    rows = pa.table({"a": pa.array([1.0, None], pa.float32()), "b": pa.array([1, 2])})
    append_arrow(lake, "t", rows)
    for prefetch in (0, 2):
        data = tb.dataset(SnapshotReader(lake, "t", batch_size=1), prefetch=prefetch)
        with pytest.raises(tf.errors.OpError, match="table 't': column 'a' has a null"):
            list(data)
    reader = SnapshotReader(lake, "t", batch_size=1, columns=["b"])
    data = tb.dataset(reader, prefetch=0)
    iterator = iter(data)
    next(iterator)
    reader.close()
    with pytest.raises(tf.errors.InvalidArgumentError, match="was moved or closed while"):
        next(iterator)
    assert not reader_threads()


def test_a_dataset_keeps_its_reader_and_lets_it_go(lake: Lake, tb: Any) -> None:
    table = make_samples(lake, SIZES)
    reader = SnapshotReader(lake, table, columns=["x"], batch_size=10)
    batches, gone = len(reader), weakref.ref(reader)
    data = tb.dataset(reader).map(lambda batch: batch["x"]).prefetch(1)
    del reader
    assert len(list(data)) == batches
    iterator = iter(data)
    del data
    assert len(list(iterator)) == batches
    del iterator
    gc.collect()
    assert gone() is None


def make_matrix(lake: Lake) -> None:
    names = ["a", "b", "c"]
    lake.create(TableSpec("t", dict.fromkeys(names, Float32) | {"label": Int64, "w": Float32}))
    floats = {n: pa.array(np.arange(6) * k, pa.float32()) for k, n in enumerate(names)}
    others = {"label": pa.array(range(6)), "w": pa.array(np.ones(6), pa.float32())}
    append_arrow(lake, "t", pa.table({**floats, **others}))


def test_stacks_features_labels_and_weights_make_what_keras_takes(
    lake: Lake, tb: Any, tf: Any
) -> None:
    make_matrix(lake)
    reader = SnapshotReader(lake, "t", batch_size=4, shuffle=False)
    stack = {"all": ["a", "b"], "swapped": ["c", "a"]}
    tensors = next(iter(tb.dataset(reader, stack=stack)))
    assert list(tensors) == ["label", "w", "all", "swapped"]
    assert tensors["all"].numpy().tolist() == [[0, 0], [0, 1], [0, 2], [0, 3]]
    assert tensors["swapped"].numpy().tolist() == [[0, 0], [2, 0], [4, 0], [6, 0]]
    pair = next(iter(tb.dataset(reader, stack=stack, features="all", label="label")))
    assert pair[0].numpy().tolist() == [[0, 0], [0, 1], [0, 2], [0, 3]]
    assert pair[1].numpy().tolist() == [0, 1, 2, 3]
    triple = tb.dataset(reader, features=["c"], label=["label", "b"], weight="w").element_spec
    assert [list(triple[0]), list(triple[1]), triple[2].dtype] == [["c"], ["label", "b"], "float32"]
    assert list(tb.dataset(reader, label="label").element_spec[0]) == ["a", "b", "c", "w"]

    mixed = tb.dataset(reader, stack={"x": ["label", "a", "c"]}, stack_dtype="float64")
    tensors = next(iter(mixed))
    assert list(tensors) == ["b", "w", "x"]
    assert (tensors["x"].dtype, mixed.element_spec["x"].shape[1]) == ("float64", 3)
    assert tensors["x"].numpy().tolist() == [[k, 0, 2 * k] for k in range(4)]

    for wrong, error, words in [
        ({"stack": {"f": ["a", "z"]}}, UnknownNameError, "'z'"),
        ({"stack": {"f": ["a", "label"]}}, ConfigurationError, "stack_dtype='float32'"),
        ({"stack": {"f": []}}, ConfigurationError, "stack 'f' has no columns"),
        ({"stack": {"label": ["a", "b"]}}, ConfigurationError, "called like another column"),
        ({"label": "z"}, UnknownNameError, "unknown tensor 'z'"),
        ({"weight": "w"}, ConfigurationError, "goes with a label"),
        ({"label": ["a", "b", "c", "w", "label"]}, ConfigurationError, "no column is left"),
        ({"prefetch": -1}, ConfigurationError, "prefetch=-1"),
        ({"sparse": ["z"]}, UnknownNameError, "'z'"),
        ({"to_dense": {"a": True}}, ConfigurationError, "has no lists of any length"),
        ({"texts": ["a"]}, ConfigurationError, "not read as codes of texts"),
    ]:
        with pytest.raises(error, match=words):
            tb.dataset(reader, **wrong)
    arrow = SnapshotReader(lake, "t", batch_size=4, output="arrow")
    with pytest.raises(ConfigurationError, match="read with output='numpy'"):
        tb.dataset(arrow, stack=stack)


@pytest.mark.parametrize("shuffle", [False, True])
def test_arrow_columns_are_the_same_tensors_and_not_copied(
    lake: Lake, tb: Any, shuffle: bool
) -> None:
    table = make_samples(lake, (64, 64))
    options: dict[str, Any] = {"columns": COLUMNS, "batch_size": 32, "shuffle": shuffle}
    arrow = SnapshotReader(lake, table, output="arrow", **options)
    blocks = tb.dataset(SnapshotReader(lake, table, **options), row_numbers=True)
    columns = tb.dataset(arrow, row_numbers=True)
    assert columns.element_spec == blocks.element_spec
    for one, other in zip(columns, blocks, strict=True):
        assert {k: v.numpy().tolist() for k, v in one.items()} == {
            k: v.numpy().tolist() for k, v in other.items()
        }
    iterate, seen = arrow.iterate, []

    def noted() -> Any:
        for batch in iterate():
            seen.append(batch.arrow.column("x").chunk(0).to_numpy())
            yield batch

    arrow.iterate = noted  # type: ignore[method-assign, assignment]
    found = [np.from_dlpack(batch["x"]) for batch in columns]
    if not shuffle:
        assert all(map(np.shares_memory, found, seen))
    drawn = SnapshotReader(lake, table, output="arrow", **options).with_sampler(
        DifficultyWeightedSampler(np.ones(128), score_snapshot_id=1)
    )
    assert next(iter(tb.dataset(drawn)))["sample_weight"].shape == (32,)
    texts = SnapshotReader(lake, table, batch_size=32, output="arrow")
    with pytest.raises(RequestError, match="'name' is string, which has no tensor form"):
        tb.dataset(texts)


def test_loss_weights_of_a_sampler_are_the_third_part(lake: Lake, tb: Any) -> None:
    table = make_samples(lake, SIZES)
    reader = SnapshotReader(lake, table, columns=["x", "flag"], batch_size=10)
    sampler = DifficultyWeightedSampler(np.arange(86) % 7, score_snapshot_id=1, seed=1)
    drawn = reader.with_sampler(sampler)
    plain = list(reader.with_sampler(sampler))
    data = tb.dataset(drawn, features="x", label="flag")
    for (x, _, weight), arrays in zip(data, plain, strict=True):
        assert x.numpy().tolist() == arrays["x"].tolist()
        assert weight.numpy().tolist() == arrays["sample_weight"].tolist()
    assert "sample_weight" in tb.dataset(drawn).element_spec
    by_arrow = SnapshotReader(lake, table, columns=["x", "flag"], batch_size=10, output="arrow")
    data = tb.dataset(by_arrow.with_sampler(sampler), features="x", label="flag")
    for (x, _, weight), arrays in zip(data, plain, strict=True):
        assert x.numpy().tolist() == arrays["x"].tolist()
        assert weight.numpy().tolist() == arrays["sample_weight"].tolist()


LISTS = pa.table(
    {
        "tags": pa.array([[3, 1], [], [7], None, [5, 5, 5]], pa.list_(pa.int64())),
        "deep": pa.array([[[1.0], []], [], [[2.0, 3.0]], [[4.0]], []]),
        "point": pa.array([[1.0, 2.0]] * 5, pa.list_(pa.float32())),
        "city": ["Oslo", "Rome", "Oslo", "Bern", "Rome"],
        "words": [["a", "b"], [], ["c"], ["a"], ["b", "b"]],
    }
)


def make_lists(lake: Lake) -> None:
    """The table above; written through pypaimon, as our own specs have no lists yet."""
    from pypaimon import Schema

    schema = Schema.from_pyarrow_schema(LISTS.schema)
    lake.catalog.create_table(f"{lake.database}.lists", schema, False)
    append_arrow(lake, "lists", LISTS)


@pytest.mark.parametrize("shuffle", [False, True])
def test_lists_are_ragged_sparse_or_dense_tensors_and_texts_are_texts(
    lake: Lake, tb: Any, tf: Any, shuffle: bool
) -> None:
    make_lists(lake)
    options: dict[str, Any] = {
        "batch_size": 2,
        "shuffle": shuffle,
        "pad_last": True,
        "masks": ["tags"],
        "shapes": {"point": [2]},
        "codes": ["city", "words"],
    }
    plain = list(SnapshotReader(lake, "lists", **options))
    reader = SnapshotReader(lake, "lists", **options)
    data = tb.dataset(reader, texts=["city", "words"])
    assert data.element_spec == {
        "tags": tf.RaggedTensorSpec((2, None), tf.int64),
        "tags_present": tf.TensorSpec((2,), tf.bool),
        "deep": tf.RaggedTensorSpec((2, None, None), tf.float64),
        "point": tf.TensorSpec((2, 2), tf.float32),
        "city": tf.TensorSpec((2,), tf.string),
        "words": tf.RaggedTensorSpec((2, None), tf.string),
    }
    named = {name: words.words.to_pylist() for name, words in reader.vocabularies.items()}
    for batch, arrays in zip(data, plain, strict=True):
        for name in ("tags", "deep"):
            lists: Ragged = arrays.ragged[name]
            expected = [row or [] for row in lists.to_lists()]
            assert batch[name].to_list() == expected
        assert batch["tags_present"].numpy().tolist() == arrays["tags_present"].tolist()
        assert batch["point"].numpy().tolist() == arrays["point"].tolist()
        cities = [text.decode() for text in batch["city"].numpy()]
        assert cities == [named["city"][code] for code in arrays["city"]]
        found = [[text.decode() for text in row] for row in batch["words"].to_list()]
        assert found == [[named["words"][c] for c in row] for row in arrays["words"].to_lists()]

    reader = SnapshotReader(lake, "lists", **options)
    dense = tb.dataset(reader, sparse=["deep"], to_dense={"tags": -1, "words": True})
    assert dense.element_spec["tags"] == tf.TensorSpec((2, None), tf.int64)
    assert isinstance(dense.element_spec["deep"], tf.SparseTensorSpec)
    for batch, arrays in zip(dense, plain, strict=True):
        assert batch["tags"].numpy().tolist() == arrays.ragged["tags"].to_dense(-1).tolist()
        assert batch["words"].numpy().tolist() == arrays.ragged["words"].to_dense().tolist()
        as_dense = tf.sparse.to_dense(batch["deep"]).numpy()
        assert as_dense.tolist() == arrays.ragged["deep"].to_dense().tolist()
    with pytest.raises(ConfigurationError, match="in sparse= and in to_dense="):
        tb.dataset(reader, sparse=["tags"], to_dense={"tags": True})
    with pytest.raises(ConfigurationError, match="'point', which has no lists of any length"):
        tb.dataset(reader, sparse=["point"])
    known = Vocabulary.of(["Oslo", "Rome"], unknown=-1)
    coded = SnapshotReader(lake, "lists", columns=["city"], batch_size=2, codes={"city": known})
    with pytest.raises(ConfigurationError, match="one code for all other texts, which cannot bec"):
        tb.dataset(coded, texts=["city"])
    by_arrow = SnapshotReader(lake, "lists", columns=["tags"], batch_size=2, output="arrow")
    for named in ({}, {"sparse": ["tags"]}):
        with pytest.raises(ConfigurationError, match="'tags' contains lists.*output='numpy'"):
            tb.dataset(by_arrow, **named)


def test_blocks_that_are_aligned_are_not_copied(lake: Lake, tb: Any) -> None:
    names = [f"f{number}" for number in range(16)]  # a row is 64 bytes
    lake.create(TableSpec("wide", dict.fromkeys(names, Float32)))
    append_arrow(lake, "wide", pa.table({n: pa.array(np.ones(64), pa.float32()) for n in names}))
    for shuffle in (False, True):
        reader = SnapshotReader(lake, "wide", batch_size=8, shuffle=shuffle)
        iterate, seen = reader.iterate, []

        def noted(iterate: Any = iterate, seen: Any = seen) -> Any:
            for batch in iterate():
                seen.append(batch.blocks["float32"])
                yield batch

        reader.iterate = noted  # type: ignore[method-assign, assignment]
        data = tb.dataset(reader, stack={"m": names}, features="m")
        found = [np.from_dlpack(matrix) for matrix in data]
        assert all(map(np.shares_memory, found, seen))


def test_arrow_columns_of_a_dtype_go_as_one_array_and_come_out_as_they_were(
    lake: Lake, tb: Any
) -> None:
    wide = {f"f{number}": Float32 for number in range(5)} | {f"i{n}": Int64 for n in range(4)}
    lake.create(TableSpec("wide", {**wide, "alone": Float64}))
    dice = np.random.default_rng(0)
    for rows in (19, 40):  # batches end inside files, and the last one is short
        numbers = dice.integers(0, 1_000, (len(wide) + 1, rows))
        kinds = [*(dtype.arrow for dtype in wide.values()), pa.float64()]
        columns = zip(kinds, numbers, strict=True)
        made = [pa.array(values).cast(kind) for kind, values in columns]
        append_arrow(lake, "wide", pa.table(made, [*wide, "alone"]))
    reader = SnapshotReader(lake, "wide", batch_size=16, output="arrow", shuffle=False)
    plain = list(SnapshotReader(lake, "wide", batch_size=16, output="arrow", shuffle=False))
    held = list(tb.dataset(reader))  # all at once: no batch is in the memory of another
    assert [len(batch["f0"]) for batch in held] == [16, 16, 16, 11]
    for batch, expected in zip(held, plain, strict=True):
        assert expected.arrow is not None
        assert {n: c.numpy().tolist() for n, c in batch.items()} == expected.arrow.to_pydict()


def test_keras_trains_for_epochs_in_their_own_order_and_validates(
    lake: Lake, tb: Any, tf: Any
) -> None:
    import keras

    lake.create(TableSpec("t", {"a": Float32, "b": Float32, "label": Float32}))
    dice = np.random.default_rng(0)
    a, b = dice.normal(size=(2, 600)).astype(np.float32)
    append_arrow(lake, "t", pa.table({"a": a, "b": b, "label": (a > b).astype(np.float32)}))
    options: dict[str, Any] = {"stack": {"x": ["a", "b"]}, "features": "x", "label": "label"}
    reader = SnapshotReader(lake, "t", batch_size=64)
    held_out = SnapshotReader(lake, "t", batch_size=200, shuffle=False)
    progress, begun = tb.TrainingProgress(reader), reader.state_dict()

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Dense(1, activation="sigmoid")])
    model.compile(keras.optimizers.Adam(0.1), "binary_crossentropy", metrics=["accuracy"])
    fitted = model.fit(
        tb.dataset(reader, **options),
        validation_data=tb.dataset(held_out, **options),
        callbacks=[tb.ProgressCallback(progress)],
        epochs=3,
        shuffle=False,  # the batches are; Keras would warn that it cannot
        verbose=0,
    )
    assert fitted.history["val_accuracy"][-1] > 0.9
    assert fitted.history["loss"][-1] < fitted.history["loss"][0]
    assert reader.state_dict() == progress.state_dict() == {**begun, "epoch": 3}
    # one pass for epochs of a few steps each, several in one go
    model.compile("sgd", "binary_crossentropy", steps_per_execution=2)
    model.fit(
        tb.dataset(reader, **options).repeat(),
        callbacks=[tb.ProgressCallback(progress)],
        epochs=3,
        steps_per_epoch=4,
        shuffle=False,
        verbose=0,
    )
    assert progress.state_dict() == reader.state_after(2, {**begun, "epoch": 4})
    assert not reader_threads()


def test_a_pipeline_is_built_step_by_step(tb: Any, tf: Any, tmp_path: Path) -> None:
    builder = tb.DatasetPipelineBuilder(tf.data.Dataset.range(10))
    steps = builder.map(lambda x: x + 1, num_parallel_calls=2).cache().shuffle(10)
    data = steps.repeat(2).batch(4, drop_remainder=True).prefetch(1).build()
    assert steps is builder
    rows = [row for batch in data for row in batch.numpy().tolist()]
    assert len(rows) == 20
    assert sorted(rows[:10]) == sorted(rows[10:]) == list(range(1, 11))
    assert rows[:10] != rows[10:]
    kept = tb.DatasetPipelineBuilder(tf.data.Dataset.range(3)).cache(str(tmp_path / "kept"))
    assert [int(x) for x in kept.build()] == [0, 1, 2]
    assert list(tmp_path.glob("kept*"))
    endless = tb.DatasetPipelineBuilder(tf.data.Dataset.range(3)).repeat().build()
    assert int(endless.cardinality()) == tf.data.INFINITE_CARDINALITY
    assert [int(x) for x in tb.DatasetPipelineBuilder(endless).prefetch().build().take(4)][3] == 0


def test_the_names_are_there_without_importing_tensorflow() -> None:
    code = (
        "import sys, trainer_bridge.tensorflow as t\n"
        "assert 'dataset' in dir(t) and 'tensorflow' not in sys.modules\n"
        "sys.modules['tensorflow'] = None\n"
        "try:\n"
        "    t.dataset\n"
        "except ImportError as error:\n"
        "    print(error)\n"
        "try:\n"
        "    t.nothing\n"
        "except AttributeError as error:\n"
        "    print(error)\n"
    )
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": root},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert "pip install 'paimon-features[tensorflow]'" in done.stdout
    assert "no attribute 'nothing'" in done.stdout
