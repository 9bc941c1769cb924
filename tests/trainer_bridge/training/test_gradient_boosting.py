"""Trees as ONNX, where rows lack a class that the model knows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="pip install scikit-learn")
onnxruntime: Any = pytest.importorskip("onnxruntime", reason="pip install onnxruntime")

from paimon_features.core.errors import ModelError  # noqa: E402
from trainer_bridge.training.config import GradientBoosting  # noqa: E402
from trainer_bridge.training.gradient_boosting import fit_trees, probabilities_of, trees_to_onnx  # noqa: E402

TREES = GradientBoosting(trees=5, leaves=4)


@pytest.mark.parametrize(
    ("present", "classes"),
    [((0, 1), 2), ((0, 2), 3), ((1, 2), 3), ((0, 1, 2), 3), ((0, 2, 3), 4), ((3, 1), 5)],
)
def test_a_class_that_no_row_had_has_no_probability(present: tuple[int, ...], classes: int) -> None:
    dice = np.random.default_rng(0)
    numbers = dice.normal(size=(200, 2)).astype(np.float32)
    labels = np.array(present)[dice.integers(0, len(present), 200)]
    labels[numbers[:, 0] > 0.5] = present[0]
    trees = fit_trees(TREES, "multiclass", numbers, labels, None, 0)
    eager = probabilities_of(trees, "multiclass", numbers, classes)
    absent = [number for number in range(classes) if number not in present]
    assert eager.shape == (200, classes)
    assert (eager[:, absent] == 0).all()
    model = trees_to_onnx(trees, "multiclass", 2, classes)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    logits = session.run(None, {"numbers": numbers})[0]
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    assert powers / powers.sum(axis=1, keepdims=True) == pytest.approx(eager, abs=1e-5)


def test_rows_of_one_class_make_no_trees() -> None:
    with pytest.raises(ModelError, match="of a single class"):
        fit_trees(TREES, "binary", np.zeros((9, 1), np.float32), np.ones(9), None, 0)
