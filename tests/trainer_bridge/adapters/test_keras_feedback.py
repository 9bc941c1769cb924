"""Feedback from Keras: every sample of every step once, whatever is killed, saved or raised."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paimon_features.core.errors import ConfigurationError, RequestError, UnknownNameError
from paimon_features.core.types.schema import DataType, Int64, String
from paimon_features.lake.catalog import Lake
from paimon_features.lake.reading.table_reader import read_arrow
from trainer_bridge.feedback.writer import FeedbackWriter

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

from trainer_bridge.adapters.tensorflow.feedback import FeedbackCallback  # noqa: E402

ROWS, BATCH = 20, 8
TABLE = "feedback_loop"
KEYS = {"sample_id": Int64}
X = np.random.default_rng(0).random((ROWS, 3)).astype(np.float32)
Y = (X[:, :1] > 0.5).astype(np.float32)


def make_model(**options: Any) -> Any:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activation="sigmoid")])
    model.compile(**{"optimizer": "sgd", "loss": "binary_crossentropy", **options})
    return model


def make_data(keys: dict[str, Any] | None = None) -> Any:
    keys = {"sample_id": np.arange(ROWS)} if keys is None else keys
    return tf.data.Dataset.from_tensor_slices(({**keys, "x": X}, Y)).batch(BATCH)


def make_writer(lake: Lake, keys: dict[str, DataType] | None = None) -> FeedbackWriter:
    return FeedbackWriter(lake, "loop", keys or KEYS, "run", clock_ms=lambda: 5)


def fit(writer: FeedbackWriter, model: Any, data: Any = None, **options: Any) -> Any:
    callbacks = [FeedbackCallback(writer, features="x", **options.pop("feedback", {}))]
    callbacks += options.pop("callbacks", [])
    return model.fit(
        make_data() if data is None else data,
        verbose=0,
        shuffle=False,
        callbacks=callbacks,
        **options,
    )


def events(lake: Lake) -> list[dict[str, Any]]:
    rows = read_arrow(lake, TABLE).to_pylist()
    return sorted(rows, key=lambda row: (row["seq"], row.get("sample_id", 0)))


@pytest.mark.parametrize("jit_compile", [True, False])
def test_the_losses_are_those_before_each_update(lake: Lake, jit_compile: bool) -> None:
    with make_writer(lake) as writer:
        right = {"correct": lambda y, p: (p > 0.5) == (y > 0.5)}
        fit(writer, make_model(jit_compile=jit_compile), epochs=2, feedback=right)
    # the same by hand
    model, expected = make_model(), []
    optimizer = keras.optimizers.SGD()
    for number in range(6):
        rows = np.arange(ROWS)[number % 3 * BATCH :][:BATCH]
        with tf.GradientTape() as tape:
            p = model(X[rows], training=True)
            losses = keras.losses.binary_crossentropy(Y[rows], p)
            loss = tf.reduce_mean(losses)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        correct = ((p.numpy() > 0.5) == (Y[rows] > 0.5))[:, 0]
        expected += zip(rows, losses.numpy(), correct, strict=True)
    found = events(lake)
    assert [row["seq"] for row in found] == [1] * 8 + [2] * 8 + [3] * 4 + [4] * 8 + [5] * 8 + [
        6
    ] * 4
    assert [row["step"] for row in found] == [row["seq"] for row in found]
    assert [(row["sample_id"], row["correct"]) for row in found] == [
        (sample, right) for sample, _, right in expected
    ]
    assert np.allclose([row["loss"] for row in found], [loss for _, loss, _ in expected], atol=1e-6)


def test_fit_trains_and_reports_as_without_feedback(lake: Lake) -> None:
    plain = make_model(metrics=["mae"])
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)
    without = plain.fit(data, epochs=2, verbose=0, shuffle=False, validation_data=data)
    model = make_model(metrics=["mae"])
    with make_writer(lake) as writer:
        history = fit(writer, model, epochs=2, validation_data=data)
    assert history.history.keys() == without.history.keys()
    for name, values in without.history.items():
        assert np.allclose(history.history[name], values, atol=1e-6)
    # and nothing is left on the model
    assert model.fit(data, verbose=0, shuffle=False).history.keys() == {"loss", "mae"}
    assert len(events(lake)) == 2 * ROWS


def test_several_keys_texts_among_them_and_a_loss_of_ones_own(lake: Lake) -> None:
    names = np.array([f"user-{number % 5}" for number in range(ROWS)])
    data = make_data({"user": names, "item": np.arange(ROWS)})
    keys = {"user": String, "item": Int64}
    with make_writer(lake, keys) as writer:
        error = {"loss": lambda y, p: tf.abs(y - p)}
        with pytest.raises(ConfigurationError, match="XLA does not take: model.compile"):
            fit(writer, make_model(jit_compile=True), data, feedback=error)
        fit(writer, make_model(jit_compile=False, loss=["mse"]), data, feedback=error)
    rows = read_arrow(lake, TABLE).to_pylist()
    assert {(row["user"], row["item"]) for row in rows} == set(zip(names, range(ROWS), strict=True))
    first = next(row for row in rows if row["item"] == 0)
    assert first["loss"] == pytest.approx(abs(float(make_model()(X[:1])[0, 0]) - Y[0, 0]), rel=1e-5)


def test_a_second_fit_continues_and_other_features_reach_the_model_in_a_dict(lake: Lake) -> None:
    inputs = {name: keras.Input((3,), name=name) for name in ("x", "z")}
    both = keras.layers.Concatenate()([inputs["x"], inputs["z"]])
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(both))
    model.compile(optimizer="sgd", loss="binary_crossentropy")
    data = make_data({"sample_id": np.arange(ROWS), "z": X[::-1]})
    with make_writer(lake) as writer:
        for _ in range(2):
            model.fit(data, verbose=0, shuffle=False, callbacks=[FeedbackCallback(writer)])
    found = events(lake)
    assert [row["seq"] for row in found] == [s for s, n in enumerate((8, 8, 4) * 2, 1)
                                             for _ in range(n)]  # fmt: skip
    assert [row["sample_id"] for row in found] == [*range(ROWS)] * 2


def test_a_train_step_that_computes_no_loss_is_refused(lake: Lake) -> None:
    class Own(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def train_step(self, data: Any) -> dict[str, Any]:
            return {"loss": tf.reduce_mean(self(data[0]))}

    model = Own()
    model.compile(optimizer="sgd", loss="mse")
    message = "the train_step of Own does not call compute_loss: write the feedback in that train_s"
    with make_writer(lake) as writer, pytest.raises(ConfigurationError, match=message):
        fit(writer, model)


def test_an_error_in_fit_leaves_what_was_written_and_a_model_as_it_was(lake: Lake) -> None:
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 1:
                raise KeyboardInterrupt

    model = make_model()
    with pytest.raises(KeyboardInterrupt), make_writer(lake) as writer:
        fit(writer, model, callbacks=[Stop()])
    assert [row["seq"] for row in events(lake)] == [1] * 8 + [2] * 8
    with make_writer(lake) as writer:  # the same run continues
        fit(writer, model)
    assert sorted({row["seq"] for row in events(lake)}) == [1, 2, 3, 4, 5]


def test_what_a_checkpoint_has_was_committed_before(lake: Lake, tmp_path: Path) -> None:
    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            steps.append((len(os.listdir(folder)), len({row["seq"] for row in events(lake)})))

    steps: list[tuple[int, int]] = []
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    saver = keras.callbacks.ModelCheckpoint(str(folder / "at-{epoch}-{batch}.keras"), save_freq=2)
    with FeedbackWriter(lake, "loop", KEYS, "run", flush_interval_s=60) as writer:
        fit(writer, make_model(), callbacks=[saver, Look()], epochs=2)
    # nothing else commits within an epoch: the writer itself would wait a minute
    assert [saved for saved, _ in steps] == [0, 1, 1, 2, 2, 3]
    assert all(committed >= 2 * saved for saved, committed in steps)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"steps_per_execution": 2}, "compile the model with steps_per_execution=1"),
        ({"loss": None}, "say what the loss of a sample is"),
    ],
)
def test_models_whose_losses_cannot_be_distinguished_are_refused(
    lake: Lake, model: dict[str, Any], message: str
) -> None:
    with make_writer(lake) as writer, pytest.raises(ConfigurationError, match=message):
        fit(writer, make_model(**model))


def test_features_without_the_keys_are_refused(lake: Lake) -> None:
    with make_writer(lake) as writer:
        with pytest.raises(UnknownNameError, match="unknown feature 'sample_id' of the dataset"):
            fit(writer, make_model(), make_data({}))
        with pytest.raises(RequestError, match="expected a dict with the sample keys sample_id"):
            fit(writer, make_model(), tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH))
    with pytest.raises(ConfigurationError, match=r"keys=\['id'\]"):
        FeedbackCallback(writer, keys=["id"])


_TRAINER = """
    import sys
    import keras, numpy as np, tensorflow as tf
    from paimon_features.core.types.schema import Int64
    from paimon_features.lake.catalog import Lake
    from trainer_bridge.feedback.writer import FeedbackWriter
    from trainer_bridge.adapters.tensorflow.feedback import FeedbackCallback

    warehouse, backup, epochs = sys.argv[1], sys.argv[2], int(sys.argv[3])
    x = np.random.default_rng(0).random((20, 3)).astype("float32")
    data = ({"sample_id": np.arange(20), "x": x}, x[:, :1])
    data = tf.data.Dataset.from_tensor_slices(data).batch(8)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    writer = FeedbackWriter(Lake.open(warehouse, "features"), "loop", {"sample_id": Int64}, "run",
                            flush_interval_s=0.02)
    print("open", flush=True)
    with writer:
        model.fit(data, epochs=epochs, verbose=0, callbacks=[
            keras.callbacks.BackupAndRestore(backup, double_checkpoint=True),
            FeedbackCallback(writer, features="x"),
        ])
    print("done", flush=True)
"""


def expected_events(epochs: int) -> list[tuple[int, int]]:
    """The (seq, sample) of a training of so many epochs that nothing happened to."""
    batches = [range(8), range(8, 16), range(16, 20)]
    return [(step + 1, n) for step in range(3 * epochs) for n in batches[step % 3]]


def test_a_fit_restored_after_a_failure_loses_and_doubles_nothing(
    lake: Lake, tmp_path: Path
) -> None:
    #  epochs   |1 2 3|4 5 6|7 8 x
    #  backup         ^     ^
    #  then                 |7 8 9|..  the steps have the same numbers again
    class Fail(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if int(self.model.optimizer.iterations.numpy()) == 8:
                raise OSError("the network is away")

    def backup() -> Any:
        return keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))

    with pytest.raises(OSError, match="the network"), make_writer(lake) as writer:
        fit(writer, make_model(optimizer="adam"), callbacks=[Fail(), backup()], epochs=4)
    assert len({row["seq"] for row in events(lake)}) == 8
    with make_writer(lake) as writer:
        fit(writer, make_model(optimizer="adam"), callbacks=[backup()], epochs=4)
        assert writer.stats.skipped == 16
    assert [(row["seq"], row["sample_id"]) for row in events(lake)] == expected_events(4)


def test_steps_without_feedback_in_between_are_reported(lake: Lake) -> None:
    model = make_model()
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)
    with make_writer(lake) as writer:
        fit(writer, model)
    model.fit(data, verbose=0, shuffle=False)
    with make_writer(lake) as writer, pytest.warns(UserWarning, match="ends at step 3.* step 6"):
        fit(writer, model)
    assert sorted({row["seq"] for row in events(lake)}) == [1, 2, 3, 7, 8, 9]


KILLS = int(os.environ.get("PAIMON_FEATURES_KILLS", "0")) // 10


@pytest.mark.skipif(KILLS == 0, reason="a minute for three kills: `make chaos` does it")
@pytest.mark.timeout(60 + 60 * KILLS)
def test_a_fit_killed_and_restored_loses_and_doubles_nothing(lake: Lake, tmp_path: Path) -> None:
    #  epochs   |1 2 3|1 2 3|1 2 x     kill -9
    #  backup         ^     ^
    #  then                 |1 2 3|..  the steps have the same numbers again
    epochs = 40 * KILLS
    command = [sys.executable, "-c", textwrap.dedent(_TRAINER), lake.warehouse]
    command += [str(tmp_path / "backup"), str(epochs)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path]),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    dice = random.Random()
    for kill in range(KILLS + 1):
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as run:
            assert run.stdout is not None
            assert run.stdout.readline() == "open\n"
            if kill < KILLS:
                seen = len(events(lake)) if lake.exists(TABLE) else 0
                until = time.monotonic() + 60
                while not lake.exists(TABLE) or len(events(lake)) == seen:
                    assert time.monotonic() < until
                    time.sleep(0.05)
                time.sleep(dice.uniform(0.1, 1))
                run.send_signal(signal.SIGKILL)
            else:
                assert run.stdout.readline() == "done\n"
    assert [(row["seq"], row["sample_id"]) for row in events(lake)] == expected_events(epochs)
