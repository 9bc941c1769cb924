"""Training on a GPU; the exported network answers on a processor."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="pip install torch")
pytest.importorskip("lightning", reason="pip install lightning")
pytest.importorskip("onnxscript", reason="pip install onnxscript")

from tests.trainer_bridge.training.shop import SMALL, make_shop  # noqa: E402
from trainer_bridge.training import run  # noqa: E402
from trainer_bridge.training.config import compose  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
@pytest.mark.parametrize("model", ["tabular_transformer", "sequence_transformer"])
def test_a_network_is_trained_on_a_gpu_from_pinned_batches(
    tmp_path: Path, model: str, precision: str
) -> None:
    project = make_shop(tmp_path)
    overrides = [*SMALL, "trainer.accelerator=gpu", f"trainer.precision={precision}"]
    overrides.append(f"model={model}")
    if model == "sequence_transformer":
        overrides.append("data.service=basket_v1")
    manifest, is_new = run.train(project, compose(tmp_path / "churn.yaml", overrides))
    assert is_new
    assert manifest.training is not None
    assert manifest.training.machine["device"] == torch.cuda.get_device_name()
    # `train` raises where the exported network has other predictions
    assert manifest.metrics["onnx_difference"].value < 1e-4
    assert 0.4 < manifest.metrics["auc"].value <= 1
