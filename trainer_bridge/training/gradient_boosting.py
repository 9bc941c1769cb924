"""The baseline: scikit-learn's histogram-based gradient boosting, and its trees as ONNX."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from paimon_features.core.errors import MissingExtraError, ModelError
from paimon_features.models import Metric
from trainer_bridge.training import export
from trainer_bridge.training.config import GradientBoosting
from trainer_bridge.training.encoded_table import EncodedTable
from trainer_bridge.training.encoding import Arrays, FeatureEncoder
from trainer_bridge.training.fitted_model import FittedModel, difference, lists_refused

_INNER, _LEAF = "BRANCH_LEQ", "LEAF"
_NEVER = -1e30
"""The logit of a class that no row had."""


class FittedTrees(FittedModel):
    """Trees of a configuration with ``model=gradient_boosting``."""

    def __init__(self, estimator: Any, task: str, width: int, classes: int) -> None:
        self.estimator, self.task, self.classes = estimator, task, classes
        self.history = []
        self.model = trees_to_onnx(estimator, task, width, classes)
        self.weights = self.model.SerializeToString(deterministic=True)

    @classmethod
    def train(cls, data: EncodedTable) -> FittedTrees:
        """Fit on the training rows.

        Raises
        ------
        ConfigurationError
            If the features include lists, which trees do not read.
        """
        config = data.config
        assert isinstance(config.model, GradientBoosting)
        part = data.part("train")
        if set(part.arrays) != {"numbers"}:
            raise lists_refused(config, data.encoder)
        task, weights = config.objective.task, part.loss_weights(config)
        numbers = part.arrays["numbers"]
        estimator = fit_trees(config.model, task, numbers, part.labels, weights, config.seed)
        return cls(estimator, task, data.encoder.width, len(data.labels.classes))

    def predict(self, arrays: Arrays) -> npt.NDArray[np.float64]:
        return probabilities_of(self.estimator, self.task, arrays["numbers"], self.classes)

    def export(
        self, encoder: FeatureEncoder, raw: dict[str, Any], arrays: Arrays
    ) -> tuple[dict[str, bytes], dict[str, Metric]]:
        from onnx import helper

        graph = self.model.graph
        name = export.output_name(self.task)
        if self.task == "regression":
            graph.node.append(helper.make_node("Identity", ["logits"], [name]))
        elif self.task == "binary":
            graph.node.append(helper.make_node("Sigmoid", ["logits"], [name]))
        else:
            graph.node.append(helper.make_node("Softmax", ["logits"], [name], axis=1))
        graph.output[0].name = name
        data = export.from_raw_features(encoder, self.model, name)
        eager = self.predict(arrays)
        predictions = export.run_onnx(data, encoder.inputs(), raw)
        apart = export.check_agreement("the ONNX graph", eager, predictions)
        return {"network.onnx": data}, {"onnx_difference": difference(apart, len(eager))}


def fit_trees(
    config: GradientBoosting,
    task: Literal["binary", "multiclass", "regression"],
    numbers: npt.NDArray[np.float32],
    labels: npt.NDArray[Any],
    weights: npt.NDArray[np.float64] | None,
    seed: int,
) -> Any:
    """Fit on encoded features; returns scikit-learn's estimator.

    Raises
    ------
    ModelError
        For rows of a single class.
    """
    if task != "regression" and labels.min() == labels.max():
        raise ModelError("the rows to train on are of a single class; trees need two")
    try:
        from sklearn.ensemble import (
            HistGradientBoostingClassifier,
            HistGradientBoostingRegressor,
        )
        from threadpoolctl import threadpool_limits
    except ImportError as error:
        package = "threadpoolctl" if error.name == "threadpoolctl" else "scikit-learn"
        raise MissingExtraError.of(package, "train", "model=gradient_boosting") from error
    kind = HistGradientBoostingRegressor if task == "regression" else HistGradientBoostingClassifier
    estimator = kind(
        max_iter=config.trees,
        learning_rate=config.learning_rate,
        max_leaf_nodes=config.leaves,
        l2_regularization=config.l2,
        early_stopping=False,
        random_state=seed,
    )
    # sums of several threads differ in their last bits from run to run
    with threadpool_limits(limits=1):
        estimator.fit(numbers.astype(np.float64), labels, sample_weight=weights)
    return estimator


def probabilities_of(
    estimator: Any, task: str, numbers: npt.NDArray[np.float32], classes: int
) -> npt.NDArray[np.float64]:
    """Predictions: of true, of each class, or the value; 0 for a class that no row had."""
    inputs = numbers.astype(np.float64)
    if task == "regression":
        return np.asarray(estimator.predict(inputs), np.float64)
    chances = np.asarray(estimator.predict_proba(inputs), np.float64)
    if task == "binary":
        return chances[:, 1]
    every = np.zeros((len(chances), classes))
    every[:, estimator.classes_] = chances
    return every


def trees_to_onnx(estimator: Any, task: str, width: int, classes: int) -> Any:
    """Return the estimator from ``numbers`` to ``logits``, as ONNX, opset 18 and ai.onnx.ml 3.

    ``classes`` are those of the model, which may be more than the estimator was fitted on.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes: dict[str, Any] = {
        name: []
        for name in (
            "nodes_treeids", "nodes_nodeids", "nodes_featureids", "nodes_modes",
            "nodes_truenodeids", "nodes_falsenodeids", "nodes_missing_value_tracks_true",
            "target_treeids", "target_nodeids", "target_ids",
        )
    }  # fmt: skip
    thresholds: list[float] = []
    leaves: list[float] = []
    tree = 0
    for stage in estimator._predictors:
        for output, predictor in enumerate(stage):
            for number, node in enumerate(predictor.nodes):
                is_leaf = bool(node["is_leaf"])
                nodes["nodes_treeids"].append(tree)
                nodes["nodes_nodeids"].append(number)
                nodes["nodes_featureids"].append(0 if is_leaf else int(node["feature_idx"]))
                nodes["nodes_modes"].append(_LEAF if is_leaf else _INNER)
                nodes["nodes_truenodeids"].append(0 if is_leaf else int(node["left"]))
                nodes["nodes_falsenodeids"].append(0 if is_leaf else int(node["right"]))
                missing = not is_leaf and bool(node["missing_go_to_left"])
                nodes["nodes_missing_value_tracks_true"].append(int(missing))
                thresholds.append(0.0 if is_leaf else float(node["num_threshold"]))
                if is_leaf:
                    nodes["target_treeids"].append(tree)
                    nodes["target_nodeids"].append(number)
                    nodes["target_ids"].append(output)
                    leaves.append(float(node["value"]))
            tree += 1
    base = np.asarray(estimator._baseline_prediction, np.float64).ravel()
    double = TensorProto.DOUBLE
    ensemble = helper.make_node(
        "TreeEnsembleRegressor", ["as_double"], ["raw"], domain="ai.onnx.ml",
        n_targets=len(base), aggregate_function="SUM", post_transform="NONE",
        nodes_values_as_tensor=helper.make_tensor("t", double, [len(thresholds)], thresholds),
        target_weights_as_tensor=helper.make_tensor("w", double, [len(leaves)], leaves),
        base_values_as_tensor=helper.make_tensor("b", double, [len(base)], base.tolist()),
        **nodes,
    )  # fmt: skip
    # with double thresholds the operator returns float32
    nodes_of_logits = [helper.make_node("Cast", ["raw"], ["trees"], to=TensorProto.FLOAT)]
    constants: list[Any] = []
    outputs = len(base)
    if task == "multiclass":
        # two classes have one tree a stage, whose logit is that of the second one; a class that no
        # row had has no probability
        place = np.zeros((len(base), classes), np.float32)
        columns = estimator.classes_[-len(base) :]
        place[np.arange(len(base)), columns] = 1.0
        absent = np.full((1, classes), _NEVER, np.float32)
        absent[0, estimator.classes_] = 0.0
        constants = [numpy_helper.from_array(place, "place"),
                     numpy_helper.from_array(absent, "absent")]  # fmt: skip
        nodes_of_logits += [
            helper.make_node("MatMul", ["trees", "place"], ["placed"]),
            helper.make_node("Add", ["placed", "absent"], ["logits"]),
        ]
        outputs = classes
    else:
        nodes_of_logits.append(helper.make_node("Identity", ["trees"], ["logits"]))
    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["numbers"], ["as_double"], to=double),
            ensemble,
            *nodes_of_logits,
        ],
        "trees",
        [helper.make_tensor_value_info("numbers", TensorProto.FLOAT, ["rows", width])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["rows", outputs])],
        constants,
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.checker.check_model(model)
    return model
