"""The network of a model version in onnxruntime (extra ``predict``)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.core.errors import ModelError, OverloadedError
from paimon_features.core.extras import require
from paimon_features.core.types.array_types import Array
from paimon_features.models import ModelInput, ModelManifest, check_network
from paimon_features.online.store.published_models import ServedModel

Outputs = list[npt.NDArray[np.float32]]
"""One array of shape (rows, width) for each output of the signature."""

_TYPES = {"float64": "tensor(double)", "string": "tensor(string)"}
FIRST_RUN_S = 60.0
"""How long a network may take for its first row."""
_MOST_TEXT = 300
_SILENT = 4


class OnnxNetwork:
    """Runs the network of one version; ``run`` may be called from any thread.

    A network is checked before onnxruntime reads it (``check_network``), its inputs and outputs are
    compared with the signature, and one row of nulls is run: a version that cannot predict is
    never served, and the run ends after ``first_run_s``. ``threads`` compute one run.
    ``try_network`` does the same in a process that can be ended: loading, and a single operator,
    may take for ever.

    Raises
    ------
    MissingExtraError
        If onnxruntime is not installed.
    ModelError
        For a network that is refused, is not that of the signature, or does not run.
    """

    def __init__(
        self, model: ServedModel, *, threads: int = 1, first_run_s: float = FIRST_RUN_S
    ) -> None:
        require("onnxruntime", "predict", "serving models")
        import onnxruntime

        self.manifest: ModelManifest = model.manifest
        signature = self.manifest.signature
        self.inputs: tuple[ModelInput, ...] = signature.inputs
        check_network(model.network, signature)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # threads that spin between runs take the processor from the event loop
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.add_session_config_entry("session.inter_op.allow_spinning", "0")
        options.log_severity_level = _SILENT  # errors are raised; warnings are about optimizations
        self._run_options = onnxruntime.RunOptions
        self._running: Any = None
        try:
            self._session = onnxruntime.InferenceSession(
                model.network, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # its exceptions have no common class
            raise ModelError(
                f"model {self.manifest}: onnxruntime {onnxruntime.__version__} does not load its "
                f"network: {_said(error)}"
            ) from error
        self._names = [model_input.name for model_input in self.inputs]
        self._outputs = [output.name for output in signature.outputs]
        self._widths = [output.width for output in signature.outputs]
        self._check_session()
        deadline = threading.Timer(first_run_s, self.stop)
        deadline.daemon = True
        deadline.start()
        try:
            self.run([null_rows(model_input, 1) for model_input in self.inputs])
        finally:
            deadline.cancel()

    def __str__(self) -> str:
        return str(self.manifest)

    def run(self, arrays: Sequence[Array]) -> Outputs:
        """Return the outputs of some rows.

        ``arrays`` has one array of shape (rows, width) for each input, in order.

        Raises
        ------
        ModelError
            If the network fails, or returns something else than its signature says.
        OverloadedError
            If ``stop`` has ended the run.
        """
        options = self._running = self._run_options()
        options.log_severity_level = _SILENT
        try:
            outputs: list[Any] = self._session.run(
                self._outputs, dict(zip(self._names, arrays, strict=True)), options
            )
        except Exception as error:
            if options.terminate:
                raise OverloadedError(
                    f"model {self.manifest}: its network did not end in time on these inputs"
                ) from error
            raise ModelError(
                f"model {self.manifest}: its network failed: {_said(error)}"
            ) from error
        finally:
            self._running = None
        rows = len(arrays[0])
        for name, width, array in zip(self._outputs, self._widths, outputs, strict=True):
            if array.shape != (rows, width):
                raise ModelError(
                    f"model {self.manifest}: its output {name!r} has the shape {array.shape} for "
                    f"{rows} rows, expected {(rows, width)}"
                )
        return outputs

    def stop(self) -> None:
        """End the run that another thread is in, after its present operator; if there is one."""
        running = self._running
        if running is not None:
            running.terminate = True

    def _check_session(self) -> None:
        """Compare what onnxruntime has read with the signature."""
        inputs = {node.name: node.type for node in self._session.get_inputs()}
        expected = {model_input.name: _TYPES[model_input.dtype] for model_input in self.inputs}
        outputs = {node.name: node.type for node in self._session.get_outputs()}
        if inputs != expected or outputs != dict.fromkeys(self._outputs, "tensor(float)"):
            raise ModelError(
                f"model {self.manifest}: onnxruntime finds other inputs or outputs than its "
                "signature says; register it again"
            )


def null_rows(of: ModelInput, rows: int) -> Array:
    """Return an input of ``rows`` nulls, of shape (rows, width).

    >>> null_rows(ModelInput("a", "feature", "clicks:a", "int64", "float64"), 2).tolist()
    [[nan], [nan]]
    """
    shape = rows, of.width
    if of.dtype == "string":
        return np.full(shape, of.null_text, np.object_)
    return np.full(shape, np.nan)


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:_MOST_TEXT] or type(error).__name__
