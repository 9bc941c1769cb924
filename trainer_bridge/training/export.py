"""A trained network as files: one ONNX graph from raw features to the prediction, torch.export.

No file contains a pickle: weights are safetensors, and of a program of ``torch.export`` only what
``program_archive`` has rebuilt is loaded.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from paimon_features.core.errors import ModelError, VerificationError
from paimon_features.models import (
    ModelInput,
    ModelOutput,
    ModelSignature,
    check_network,
)
from trainer_bridge.models import Network
from trainer_bridge.training.encoding import Arrays, FeatureEncoder, feeds_of
from trainer_bridge.training.notes import quiet
from trainer_bridge.training.program_archive import canonical_program

OPSET = 18
_PREFIX = "network_network."
"""Of a parameter in a graph of ``from_raw_features``: of that, and of ``Predictor``."""
_CHUNK = 4_096
BOUND = 1e-4
"""How far predictions of the exported forms may be from eager ones: absolutely, for values beyond 1
relative to them."""


def predictions_of(network: Network, task: str, logits: torch.Tensor) -> torch.Tensor:
    """Return the prediction, float32: of true (rows, 1), of each class (rows, classes), or the
    value."""
    logits = logits.float()
    if task == "binary":
        return torch.sigmoid(logits)
    if task == "multiclass":
        return torch.softmax(logits, dim=-1)
    return logits * network.label_scale + network.label_mean


class Predictor(torch.nn.Module):
    """A network with its prediction in place of logits."""

    def __init__(self, network: Network, task: str) -> None:
        super().__init__()
        self.network, self.task = network, task

    def forward(
        self,
        numbers: torch.Tensor,
        codes: torch.Tensor | None = None,
        values: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if not self.network.uses_lists:
            return predictions_of(self.network, self.task, self.network(numbers))
        return predictions_of(self.network, self.task, self.network(numbers, codes, values))


def export_program(network: Network, task: str) -> tuple[Any, bytes]:
    """Return a network's prediction by ``torch.export``, with any number of rows; and as a file."""
    predictor = Predictor(network, task).eval()
    examples = network.examples()
    rows = torch.export.Dim("rows", min=1)
    shapes = {name: {0: rows} for name in ("numbers", "codes", "values") if name in examples}
    with quiet("torch.onnx"):
        program = torch.export.export(predictor, (), examples, dynamic_shapes=shapes)
        # they would be a pickle in the file
        kept, program.example_inputs = program.example_inputs, None  # type: ignore[assignment]
        buffer = io.BytesIO()
        torch.export.save(program, buffer)
        program.example_inputs = kept
    return program, buffer.getvalue()


def graph_with_weights(
    data: bytes, old: Mapping[str, npt.NDArray[Any]], new: Mapping[str, npt.NDArray[Any]]
) -> bytes | None:
    """Return a graph of ``from_raw_features`` with other weights; exporting takes a hundred times
    as long.

    The exporter keeps most parameters under their names, and matrices that are only multiplied
    with transposed, under names of its own: these are found by their content. None unless every one
    of the ``old`` weights, by parameter, is found exactly once.
    """
    from onnx import load_from_string, numpy_helper

    check_network(data)
    model = load_from_string(data)
    replaced: list[str] = []
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        name = tensor.name.removeprefix(_PREFIX)
        if name in old and np.array_equal(old[name], array):
            value = new[name]
        elif array.ndim == 2:
            alike = [n for n, w in old.items() if np.array_equal(w.T, array)]
            if len(alike) != 1:
                continue
            name, value = alike[0], new[alike[0]].T
        else:
            continue
        replaced.append(name)
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(value), tensor.name))
    if sorted(replaced) != sorted(old):
        return None
    changed: bytes = model.SerializeToString(deterministic=True)
    return changed


def program_with_weights(data: bytes, new: Mapping[str, torch.Tensor]) -> bytes:
    """Return a file of ``export_program`` with other weights, by parameter.

    Raises as ``load_program``.
    """
    program = _program(data)
    with torch.no_grad():
        for name, tensor in program.state_dict.items():
            tensor.copy_(new[name.removeprefix("network.")])
    buffer = io.BytesIO()
    with quiet("torch.onnx"):
        torch.export.save(program, buffer)
    return buffer.getvalue()


def load_program(data: bytes) -> Any:
    """Return the module of a file of ``export_program``: call it with the arrays of the encoder.

    Raises
    ------
    ModelError
        For a file that is no such program, is too large, or says more than what to compute.
    """
    return _program(data).module()


def _program(data: bytes) -> Any:
    canonical = canonical_program(data)
    try:
        with quiet("torch.onnx"):
            return torch.export.load(io.BytesIO(canonical))
    except Exception as error:  # torch raises whatever its parsers do
        raise ModelError(
            f"the file is not a program of torch.export: {type(error).__name__}: {str(error)[:200]}"
        ) from error


def program_to_onnx(program: Any, names: tuple[str, ...]) -> Any:
    """Return an exported program as ONNX, in one file, whose output is ``probability``."""
    with quiet("torch.onnx"):
        exported = torch.onnx.export(
            program,
            dynamo=True,
            input_names=list(names),
            output_names=["probability"],
            opset_version=OPSET,
            external_data=False,
            verbose=False,
        )
    assert exported is not None
    return exported.model_proto


def from_raw_features(encoder: FeatureEncoder, network: Any, output: str) -> bytes:
    """Return one graph from raw features to the prediction: the encoder's, then the network's."""
    from onnx import checker, compose

    front = encoder.front()
    network.ir_version = front.ir_version
    network = compose.add_prefix(network, "network_", rename_functions=False)
    read = {graph_input.name for graph_input in network.graph.input}
    pairs = [(name, f"network_{name}") for name in encoder.array_names
             if f"network_{name}" in read]  # fmt: skip
    merged = compose.merge_models(
        front, network, io_map=pairs, outputs=[f"network_{output}"], producer_name="paimon-features"
    )
    graph = merged.graph
    for node in graph.node:
        for index, name in enumerate(node.output):
            if name == f"network_{output}":
                node.output[index] = output
    graph.output[0].name = output
    dims = graph.output[0].type.tensor_type.shape.dim
    dims[0].ClearField("dim_value")
    dims[0].dim_param = "rows"
    checker.check_model(merged)
    data: bytes = merged.SerializeToString(deterministic=True)
    return data


def signature_of(
    encoder: FeatureEncoder,
    service: str,
    keys: tuple[Any, ...],
    task: Any,
    classes: tuple[str, ...],
) -> ModelSignature:
    """Return the signature of a network of ``from_raw_features``."""
    output = ModelOutput(output_name(task), max(1, len(classes)), classes)
    return ModelSignature(service, keys, encoder.inputs(), (output,), task)


def output_name(task: str) -> str:
    """Return the name of the prediction in the graph."""
    return "value" if task == "regression" else "probability"


def run_onnx(
    data: bytes, inputs: tuple[ModelInput, ...], columns: dict[str, Any]
) -> npt.NDArray[np.float32]:
    """Predictions of an ONNX graph for raw features, on one thread.

    Raises
    ------
    ModelError
        For a graph that must not be loaded (see ``check_network``).
    """
    import onnxruntime

    check_network(data)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    rows = len(next(iter(columns.values())))
    parts = [
        session.run(None, feeds_of(inputs, {n: c.slice(start, _CHUNK) for n, c in columns.items()}))
        for start in range(0, max(rows, 1), _CHUNK)
    ]
    predictions: npt.NDArray[np.float32] = np.concatenate([part[0] for part in parts])
    return predictions


def check_agreement(
    form: str, eager: npt.NDArray[Any], other: npt.NDArray[Any], bound: float = BOUND
) -> float:
    """Return the largest difference of two predictions; VerificationError beyond the bound."""
    scale = np.maximum(1.0, np.abs(eager))
    difference = float(
        (np.abs(eager.reshape(other.shape) - other) / scale.reshape(other.shape)).max()
    )
    if not difference <= bound:
        raise VerificationError(
            f"{form}: its predictions differ from those of the network by {difference:.3g}; "
            f"expected at most {bound:g}"
        )
    return difference


def tensors_of(arrays: Arrays) -> dict[str, torch.Tensor]:
    """Return encoded arrays as tensors that share their memory."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
