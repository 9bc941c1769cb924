"""Replicas in one process and in two: the same global batches, disjoint rows, equal counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.errors import (
    ConfigurationError,
    RequestError,
    SetupError,
    UnknownNameError,
)
from paimon_features.core.process.ports import free_ports
from paimon_features.core.types.schema import Float32, Int64
from paimon_features.lake.catalog import Lake
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.writing.table_writer import append_arrow
from trainer_bridge.readers.snapshot_reader import SnapshotReader

pytestmark = pytest.mark.tensorflow

ROWS, BATCH = 100, 8

SCRIPT = """
import json, sys
import tensorflow as tf
from paimon_features.lake import Lake
from trainer_bridge.tensorflow import DistributedPaimonDatasetBuilder, DistributedStrategy

folder, devices = sys.argv[1:]
if devices:
    cpu = tf.config.list_physical_devices("CPU")[0]
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(cpu, two)
    strategy = DistributedStrategy.create_mirrored_strategy(devices.split(","))
else:
    strategy = DistributedStrategy.create_multi_worker_mirrored_strategy()
table = Lake.open(folder, "shop").table("samples")
read_builder = table.new_read_builder()
builder = DistributedPaimonDatasetBuilder(strategy)
result = {"replicas": strategy.num_replicas_in_sync}
for last in ("short", "drop_last"):
    options = {} if last == "short" else {last: True}
    data = builder.build(table, read_builder, ["x"], "label", batch_size=8, seed=5, **options)
    result[last] = [
        [part.numpy().tolist() for part in strategy.experimental_local_results(features["x"])]
        for features, _ in strategy.experimental_distribute_dataset(data)
    ]
    assert builder.reader.epoch == 1

def make(epoch):
    built = builder.build(table, read_builder, ["a", "b"], "label", batch_size=8, seed=5,
                          drop_last=True, stack={"in": ["a", "b"]}, epoch=epoch)
    return built.map(lambda features, label: (features["in"], label))

with strategy.scope():
    first = tf.VariableAggregation.ONLY_FIRST_REPLICA
    weights = tf.Variable(tf.zeros((2,)), aggregation=first)

def step(x, label):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((tf.linalg.matvec(x, weights) - label) ** 2) / 8
    gradient = tape.gradient(loss, weights)
    replica = tf.distribute.get_replica_context()
    weights.assign_sub(0.05 * replica.all_reduce(tf.distribute.ReduceOp.SUM, gradient))

@tf.function
def train(x, label):
    strategy.run(step, (x, label))

data = strategy.experimental_distribute_dataset(make(0))
for _ in range(3):
    for x, label in data:
        train(x, label)
result["weights"] = strategy.experimental_local_results(weights)[0].numpy().tolist()

if devices:  # Keras 3 cannot fit under MultiWorkerMirroredStrategy (its issue 20585)
    import keras

    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05), "mse")
    fitted = model.fit(make(0), epochs=3, shuffle=False, verbose=0)
    result["loss"] = fitted.history["loss"]
    assert builder.reader.epoch == 3
print(json.dumps(result))
"""


@pytest.fixture
def samples(tmp_path: Path) -> Lake:
    lake = Lake.open(tmp_path / "warehouse", "shop")
    lake.create(TableSpec("samples", {"x": Int64, "a": Float32, "b": Float32, "label": Float32}))
    dice = np.random.default_rng(0)
    a, b = dice.normal(size=(2, ROWS)).astype(np.float32)
    label = (2 * a - b).astype(np.float32)
    append_arrow(lake, "samples", pa.table({"x": np.arange(ROWS), "a": a, "b": b, "label": label}))
    return lake


def start(lake: Lake, devices: str, tf_config: Any = None) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    environment |= {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1"}
    environment.pop("TF_CONFIG", None)
    if tf_config is not None:
        environment["TF_CONFIG"] = json.dumps(tf_config)
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, lake.warehouse, devices],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.long
def test_replicas_get_the_global_batches_of_one_process(samples: Lake) -> None:
    hosts = [f"127.0.0.1:{port}" for port in free_ports(2)]
    running = [start(samples, "CPU:0,/device:CPU:1")]
    for index in range(2):
        task = {"type": "worker", "index": index}
        running.append(start(samples, "", {"cluster": {"worker": hosts}, "task": task}))
    try:
        outputs = [one.communicate(timeout=240) for one in running]
    finally:
        for one in running:
            one.kill()
    for one, (_, errors) in zip(running, outputs, strict=True):
        assert one.returncode == 0, errors[-4000:]
    mirrored, *workers = [json.loads(text.splitlines()[-1]) for text, _ in outputs]
    assert [found["replicas"] for found in (mirrored, *workers)] == [2, 2, 2]

    reader = SnapshotReader(samples, "samples", columns=["x"], batch_size=BATCH, seed=5)
    batches = [sorted(batch["x"].tolist()) for batch in reader]
    full = ROWS // BATCH
    # one process, two replicas: half of each global batch for either
    for found, expected in zip(mirrored["short"], batches, strict=True):
        assert sorted([*found[0], *found[1]]) == expected
        assert len(found[0]) == len(found[1])
    assert len(mirrored["drop_last"]) == full
    # two processes: what both have at a step is the same global batch
    for last in ("short", "drop_last"):
        one, other = ([step[0] for step in worker[last]] for worker in workers)
        assert [len(step) for step in one] == [len(step) for step in other]
        both = [sorted([*left, *right]) for left, right in zip(one, other, strict=True)]
        assert both[:full] == batches[:full]
        # the rest of an epoch comes in as many smaller steps as there are processes
        assert len(both) - full == (0 if last == "drop_last" else 2)
        seen = [x for step in both for x in step]
        assert len(set(seen)) == len(seen) == (ROWS if last == "short" else full * BATCH)

    assert mirrored["loss"][-1] < mirrored["loss"][0] / 10
    assert workers[0]["weights"] == workers[1]["weights"]
    np.testing.assert_allclose(workers[0]["weights"], mirrored["weights"], rtol=1e-4)
    np.testing.assert_allclose(mirrored["weights"], [2, -1], atol=0.1)


def test_a_dataset_honours_the_read_builder_and_the_tables_pins(samples: Lake) -> None:
    from trainer_bridge.tensorflow import DistributedPaimonDatasetBuilder

    append_arrow(
        samples,
        "samples",
        pa.table({"x": [-1], "a": [0.0], "b": [0.0], "label": [0.0]}).cast(
            samples.schema("samples")
        ),
    )
    table = samples.table("samples")
    build, named = DistributedPaimonDatasetBuilder().build, ["a", "x"]

    def rows(table: Any, builder: Any, **options: Any) -> list[int]:
        data = build(table, builder, ["x"], "label", shuffle=False, **options)
        return [int(x) for features, _ in data for x in features["x"]]

    whole = table.new_read_builder()
    assert len(rows(table, whole)) == len(rows(table, None, batch_size=64)) == ROWS + 1
    predicates = whole.new_predicate_builder()
    small = predicates.or_predicates([predicates.less_than("x", 3), predicates.equal("x", 50)])
    narrow = table.new_read_builder().with_projection([*named, "label"]).with_filter(small)
    assert sorted(rows(table, narrow)) == [-1, 0, 1, 2, 50]
    assert sorted(rows(table, narrow, where="x <> 50")) == [-1, 0, 1, 2]
    pinned = table.copy({"scan.snapshot-id": "1"})
    assert len(rows(pinned, pinned.new_read_builder())) == ROWS

    with pytest.raises(
        UnknownNameError, match="unknown column 'b' of the projection of table 'samples'"
    ):
        build(table, narrow, ["b"], "label")
    with pytest.raises(RequestError, match="has a limit"):
        build(table, table.new_read_builder().with_limit(3), named, "label")
    for columns, wrong in [("x", {}), (named, {"batch_size": 0}), (named, {"colour": "red"})]:
        with pytest.raises(ConfigurationError):
            build(table, whole, columns, "label", **wrong)


def test_factories_refuse_what_tensorflow_would_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    from trainer_bridge.adapters.tensorflow import strategies
    from trainer_bridge.tensorflow import DistributedPaimonDatasetBuilder, DistributedStrategy

    monkeypatch.setattr(strategies, "CONNECT_TIMEOUT_S", 0.2)
    nobody, other = (f"127.0.0.1:{port}" for port in free_ports(2))
    of_servers = DistributedStrategy.create_parameter_server_strategy
    of_tpu = DistributedStrategy.create_tpu_strategy
    with pytest.raises(SetupError, match=f"at {nobody} .nobody listened there for 0.2 s"):
        of_servers([nobody], [other], 0)
    for workers, servers, index, words in [
        ([], [other], 0, r"worker_hosts=\[\]"),
        ([nobody], "a:1", 0, "ps_hosts='a:1'"),
        ([nobody], ["other"], 0, "'other': expected host:port"),
        ([nobody], [nobody], 0, "named twice"),
        ([nobody], [other], 1, "worker_index=1: expected 0 to 0"),
    ]:
        with pytest.raises(ConfigurationError, match=words):
            of_servers(workers, servers, index)

    with pytest.raises(ConfigurationError, match="tpu_address is empty"):
        of_tpu("")
    with pytest.raises(SetupError, match="no TPU that TensorFlow sees"):
        of_tpu("local")
    with pytest.raises(SetupError, match="the TPU at 127.0.0.1:"):
        of_tpu(f"grpc://{nobody}")

    with pytest.raises(UnknownNameError, match="unknown logical device 'GPU:7'; available: CPU:0"):
        DistributedStrategy.create_mirrored_strategy(["GPU:7"])
    with pytest.raises(ConfigurationError, match="each once"):
        DistributedStrategy.create_mirrored_strategy(["CPU:0", "/cpu:0"])
    assert DistributedStrategy.create_mirrored_strategy(["cpu:0"]).num_replicas_in_sync == 1
    assert DistributedStrategy.create_mirrored_strategy().num_replicas_in_sync >= 1

    for text, words in [
        ("{", "expected JSON like"),
        ('{"cluster": {}}', "expected JSON like"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}', "worker 1"),
        ('{"cluster": {"worker": ["a"]}, "task": {"type": "worker", "index": 0}}', "host:port"),
    ]:
        monkeypatch.setenv("TF_CONFIG", text)
        with pytest.raises(ConfigurationError, match=words):
            DistributedStrategy.create_multi_worker_mirrored_strategy()
    assert DistributedPaimonDatasetBuilder().reader is None
