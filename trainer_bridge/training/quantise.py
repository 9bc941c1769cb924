"""Smaller arithmetic for a registered network: int8 or fp16, measured before it becomes a version.

Of the graph, matrices of weights are quantised; what turns raw features into numbers stays as it
is, and so do products of activations.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime

from paimon_features.core.errors import ConfigurationError
from paimon_features.core.process.callbacks import OnMessage, ignore_message
from paimon_features.core.times.clock import now_ms
from paimon_features.models import (
    NETWORK,
    Metric,
    ModelFile,
    ModelManifest,
    check_network,
    sha256_of,
)
from trainer_bridge.training import evaluation
from trainer_bridge.training.config import TrainConfig
from trainer_bridge.training.encoding import Arrays, feeds_of
from trainer_bridge.training.fitted_model import difference
from trainer_bridge.training.labels import LabelCodec, sample_weights
from trainer_bridge.training.notes import quiet
from trainer_bridge.training.run import QUANTISATION, config_of, pinned
from trainer_bridge.training.training_table import SplitPart, entities_of

if TYPE_CHECKING:
    from paimon_features.project import Project

Method = Literal["int8-static", "int8-dynamic", "fp16"]
METHODS: tuple[Method, ...] = ("int8-static", "int8-dynamic", "fp16")
BATCHES = (1, 64)
"""Rows at a time, for the speed."""
LEAST_GAIN = 1.05
"""So many times faster it must be for one of these, and not slower by as much for the other."""
MOST_LOSS = 0.01
"""The share by which the loss on the validation rows may rise."""
CALIBRATION_ROWS = 512
_CHUNK = 64
_ROUNDS, _ROUND_S = 9, 0.05


@dataclass(frozen=True)
class Quantised:
    """What quantising gained and cost; ``manifest`` is the new version, None if it was refused.

    ``metrics`` are those of the validation rows, as (name, before, after). ``microseconds`` are
    those of the processor for one row, by the rows at a time, as (before, after).
    """

    parent: str
    method: Method
    rows: int
    metrics: tuple[tuple[str, float, float], ...]
    difference: float
    microseconds: Mapping[int, tuple[float, float]]
    size: tuple[int, int]
    reasons: tuple[str, ...]
    """Why there is no gain; empty if there is."""
    manifest: ModelManifest | None


def quantise(
    project: Project,
    name: str,
    version: int | None,
    method: Method,
    *,
    force: bool = False,
    on_message: OnMessage = ignore_message,
) -> Quantised:
    """Quantise a version, and register the result as the next one if it is faster.

    ``int8-static`` calibrates activations by 512 training rows, ``int8-dynamic`` measures them at
    each call. Accuracy is measured on the validation rows of the version's training set, speed on
    this machine.

    Raises
    ------
    UnknownNameError
        If there is no such model or version.
    ConfigurationError
        For a version that ``train`` did not make, is quantised already, or has no weight matrices.
    SnapshotExpiredError
        If its training set is gone.
    """
    parent = project.models.manifest(name, version)
    if QUANTISATION in parent.files:
        raise ConfigurationError(f"model {parent} is quantised already; take its parent")
    config, table = pinned(project, config_of(project, parent))
    before = project.models.file(parent, NETWORK)
    inputs = parent.signature.inputs
    labels = LabelCodec(config.objective.task, parent.signature.outputs[0].classes)

    def feeds(part: SplitPart) -> tuple[Arrays, _LabelledRows]:
        names, keys = [model_input.name for model_input in inputs], [key.name for key in table.keys]
        weights = config.data.weights
        extra = [] if weights is None else [weights]
        rows = table.part(part, [*names, table.label, *keys, *extra])
        about = evaluation.EvaluatedRows(entities_of(rows, keys), sample_weights(rows, weights))
        truth = _LabelledRows(labels.apply(rows[table.label]), about)
        return feeds_of(inputs, {name: rows[name] for name in names}), truth

    training, _ = feeds("train")
    on_message(f"quantising {parent}: {method}")
    after = quantised(before, method, training, config.seed)
    check_network(after, parent.signature)
    rows, truth = feeds("validation")
    predicted = [_predictions(data, rows) for data in (before, after)]
    measured = [_metrics(config, truth, predictions) for predictions in predicted]
    metrics = tuple((key, m.value, measured[1][key].value) for key, m in measured[0].items())
    microseconds = speeds(before, after, training)
    loss = "mse" if config.objective.task == "regression" else "log_loss"
    result = Quantised(
        str(parent), method, len(truth.labels), metrics,
        float(np.abs(predicted[0] - predicted[1]).max()),
        microseconds, (len(before), len(after)),
        reasons(microseconds, measured[0][loss].value, measured[1][loss].value), None,
    )  # fmt: skip
    if result.reasons and not force:
        return result
    test, test_truth = feeds("test")
    tested = _predictions(after, test)
    apart = float(np.abs(tested - _predictions(before, test)).max())
    document = {
        "method": method,
        "parent": str(parent),
        "calibration_rows": _calibration_rows(training) if method == "int8-static" else 0,
        "microseconds": {str(count): list(pair) for count, pair in microseconds.items()},
        "onnxruntime": metadata.version("onnxruntime"),
    }
    files = {file: project.models.file(parent, file) for file in ("config.json", "encoder.json")}
    files[NETWORK] = after
    files[QUANTISATION] = (json.dumps(document, sort_keys=True, indent=1) + "\n").encode()
    manifest = replace(
        parent,
        created_at_ms=now_ms(),
        files={file: ModelFile(sha256_of(data), len(data)) for file, data in files.items()},
        metrics={
            **_metrics(config, test_truth, tested),
            "quantised_difference": difference(apart, len(test_truth.labels)),
        },
        card=f"{parent.card.rstrip()}\n\n{parent} in {method}.\n",
        parents=(str(parent),),
    )
    return replace(result, manifest=project.models.register(manifest, files))


@dataclass(frozen=True)
class _LabelledRows:
    """The labels of rows, and whose they are."""

    labels: npt.NDArray[Any]
    about: evaluation.EvaluatedRows


def quantised(data: bytes, method: Method, training: Arrays, seed: int = 0) -> bytes:
    """Return the graph in other arithmetic; ``training`` are raw rows, by which int8-static
    calibrates.

    Raises
    ------
    ConfigurationError
        For a graph without matrices of weights, such as trees.
    ModelError
        For a graph that must not be loaded (see ``check_network``).
    """
    check_network(data)
    model = onnx.load_from_string(data)
    # a merged graph names a set of operators twice, which the quantisers refuse
    imports = {opset.domain: opset for opset in model.opset_import}
    del model.opset_import[:]
    model.opset_import.extend(imports.values())
    weights = {tensor.name for tensor in model.graph.initializer}
    # shapes of weights, which the dynamic quantiser transposes
    shapes = [info for info in model.graph.value_info if info.name not in weights]
    del model.graph.value_info[:]
    model.graph.value_info.extend(shapes)
    matrices = [
        node.name
        for node in model.graph.node
        if node.op_type in ("MatMul", "Gemm") and node.input[1] in weights
        and node.name.startswith("network_")
    ]  # fmt: skip
    if not matrices:
        raise ConfigurationError(
            "the network has no matrices of weights, which is what quantising makes smaller"
        )
    with quiet("root"), tempfile.TemporaryDirectory() as folder:
        if method == "fp16":
            return _half(model)
        from onnxruntime.quantization import QuantType, quantize_dynamic, quantize_static
        from onnxruntime.quantization.shape_inference import quant_pre_process

        # both need the shapes that this infers
        prepared, written = Path(folder) / "prepared.onnx", Path(folder) / "written.onnx"
        quant_pre_process(model, str(prepared), skip_optimization=True, skip_symbolic_shape=True)
        if method == "int8-dynamic":
            # a Gemm becomes a MatMul of this name and an addition
            named = [*matrices, *(f"{name}_MatMul" for name in matrices)]
            quantize_dynamic(
                str(prepared), str(written), weight_type=QuantType.QInt8,
                nodes_to_quantize=named, per_channel=True,
            )  # fmt: skip
        else:
            quantize_static(
                str(prepared), str(written), _Calibration(training, seed),
                activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
                nodes_to_quantize=matrices, per_channel=True,
            )  # fmt: skip
        return written.read_bytes()


def _half(model: Any) -> bytes:
    """Weights and activations of the network in fp16; raw features and the prediction stay."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    front = [node.name for node in model.graph.node if not node.name.startswith("network_")]
    for number, node in enumerate(model.graph.node):
        if not node.name:  # of the encoder; the converter goes by names
            node.name = f"encoder_{number}"
            front.append(node.name)
    converted = convert_float_to_float16(model, keep_io_types=True, node_block_list=front)
    data: bytes = converted.SerializeToString(deterministic=True)
    return data


def _calibration_rows(training: Arrays) -> int:
    return min(CALIBRATION_ROWS, len(next(iter(training.values()))))


class _Calibration:
    """Training rows, drawn with a seed, in the form that the quantiser reads."""

    def __init__(self, training: Arrays, seed: int) -> None:
        count = len(next(iter(training.values())))
        chosen = np.random.default_rng(seed).permutation(count)[: _calibration_rows(training)]
        parts = np.array_split(np.sort(chosen), -(-len(chosen) // _CHUNK))
        self._batches: Iterator[Arrays] = iter(
            [{name: array[part] for name, array in training.items()} for part in parts]
        )

    def get_next(self) -> Arrays | None:
        """Return the next batch; None after the last one."""
        return next(self._batches, None)


def reasons(
    microseconds: Mapping[int, tuple[float, float]], loss_before: float, loss_after: float
) -> tuple[str, ...]:
    """Why a version is no gain; empty if it is one.

    >>> reasons({1: (100.0, 60.0), 64: (20.0, 20.0)}, 0.30, 0.30)
    ()
    >>> reasons({1: (100.0, 60.0), 64: (20.0, 40.0)}, 0.30, 0.30)
    ('2.00 times the time for 64 rows at a time',)
    >>> reasons({1: (100.0, 99.0), 64: (20.0, 20.0)}, 0.30, 0.33)
    ('it is not faster', 'the loss rises by 10.0 %')
    """
    problems = []
    if all(old < LEAST_GAIN * new for old, new in microseconds.values()):
        problems.append("it is not faster")
    problems += [
        f"{new / old:.2f} times the time for {count} row{'s' * (count > 1)} at a time"
        for count, (old, new) in microseconds.items()
        if new > LEAST_GAIN * old
    ]
    if not loss_after <= loss_before * (1 + MOST_LOSS):
        problems.append(f"the loss rises by {loss_after / loss_before - 1:.1%}".replace("%", " %"))
    return tuple(problems)


def speeds(before: bytes, after: bytes, rows: Arrays) -> dict[int, tuple[float, float]]:
    """Processor microseconds a row of two graphs, by the rows at a time; they take turns."""
    sessions = [_session(before), _session(after)]
    count = len(next(iter(rows.values())))
    by_size: dict[int, tuple[float, float]] = {}
    for size in BATCHES:
        places = np.arange(size) % count
        feeds = {name: array[places] for name, array in rows.items()}
        calls = [_calls(session, feeds) for session in sessions]
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(_ROUNDS):
            for session, number, spent in zip(sessions, calls, times, strict=True):
                # of the processor: other processes do not count, and there is one thread
                began = time.thread_time()
                for _ in range(number):
                    session.run(None, feeds)
                spent.append((time.thread_time() - began) / number / size * 1e6)
        by_size[size] = (float(np.median(times[0])), float(np.median(times[1])))
    return by_size


def _calls(session: Any, feeds: Arrays) -> int:
    """Return how many calls a round takes; the first ones are warm-up."""
    for _ in range(3):
        began = time.perf_counter()
        session.run(None, feeds)
        spent = time.perf_counter() - began
    return max(1, int(_ROUND_S / spent))


def _session(data: bytes) -> Any:
    check_network(data)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def _predictions(data: bytes, feeds: Arrays) -> npt.NDArray[np.float64]:
    session = _session(data)
    rows = len(next(iter(feeds.values())))
    parts = [
        session.run(None, {name: array[start : start + 4_096] for name, array in feeds.items()})[0]
        for start in range(0, rows, 4_096)
    ]
    return np.concatenate(parts).astype(np.float64)


def _metrics(
    config: TrainConfig, truth: _LabelledRows, predicted: npt.NDArray[np.float64]
) -> dict[str, Metric]:
    task = config.objective.task
    flat = predicted if task == "multiclass" else predicted[:, 0]
    return evaluation.evaluate(
        task, truth.labels.astype(np.float64), flat, config.seed, truth.about
    )
