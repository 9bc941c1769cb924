"""k-means on the iteration runtime: Lloyd's algorithm, one round per epoch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from paimon_features.core.errors import DefinitionError, TransformError
from paimon_features.core.types.array_types import Floats
from paimon_features.iteration import IterationConfig, terminate_on_max_iter
from paimon_features.iteration.algorithms.bounded_training import (
    BlockKeeper,
    SubtaskCombiner,
    train_bounded,
)
from paimon_features.iteration.algorithms.estimator import (
    MODEL,
    PredictionEstimator,
    TrainingSource,
)
from paimon_features.iteration.algorithms.parameter_checks import at_least, initial_data, one_of
from paimon_features.iteration.algorithms.training_blocks import TrainingBlock
from paimon_features.transformers.flink_ml import KMeansModel, Model
from paimon_features.transformers.flink_ml.kmeans_model import MEASURES
from paimon_features.transformers.flink_ml.vectors import Matrix, dense, take

_CHUNK_ROWS = 4096


@dataclass(frozen=True, kw_only=True)
class KMeans(PredictionEstimator):
    """Flink ML's k-means: the centroids of ``k`` clusters after ``max_iter`` rounds.

    It starts from ``k`` of the rows, drawn by ``seed``, or from the model ``initial``. A centroid
    that loses all its points keeps its position. ``distance_measure`` is ``euclidean``,
    ``manhattan`` or ``cosine``.

    >>> points = [[0.0, 0.0], [0.0, 0.3], [0.3, 0.0], [9.0, 0.0], [9.0, 0.6], [9.6, 0.0]]
    >>> model = KMeans(k=2, max_iter=2).fit(points)
    >>> sorted(model.model_data["centroids"].round(6).tolist())
    [[0.1, 0.1], [9.2, 0.2]]
    """

    k: int = 2
    max_iter: int = 20
    distance_measure: str = "euclidean"
    init_mode: str = "random"
    seed: int = 0

    model = KMeansModel

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 2, "k")
        at_least(self, 1, "max_iter")
        one_of(self, "distance_measure", MEASURES)
        one_of(self, "init_mode", ("random",))

    def _start(self, rows: TrainingBlock | None, initial: Model | None) -> Any:
        if initial is not None:
            centroids = initial_data(self, initial, "centroids")["centroids"]
        elif rows is None:
            raise DefinitionError(
                "KMeans.program: initial= is missing; centroids can be drawn only from local data: "
                "fit some rows with max_iter=1 and start from that model"
            )
        else:
            drawn = np.random.default_rng(self.seed).choice(
                len(rows), min(self.k, len(rows)), replace=False
            )
            centroids = dense(take(rows.features, np.sort(drawn)))
        return centroids, np.zeros(len(centroids))

    def _program(
        self, source: TrainingSource, start: Any, parallelism: int, config: IterationConfig
    ) -> Callable[[Any], Any]:
        until = terminate_on_max_iter(self.max_iter)
        return train_bounded(
            source,
            start,
            _AssignPoints(self.distance_measure),
            _MoveCentroids(),
            parallelism,
            config,
            criteria=lambda _, centroids: centroids.flat_map(until),
        )

    def _model_data(self, output: Any) -> Any:
        centroids, weights = output
        return {"centroids": centroids, "weights": weights}


class _AssignPoints(BlockKeeper):
    """Keeps points; in each epoch sums and counts the points closest to each centroid."""

    name = "assign"

    def __init__(self, measure: str) -> None:
        self._measure = measure

    def process_element2(self, model: tuple[Floats, Floats], ctx: Any, out: Any) -> None:
        ctx.state.value("centroids").update(model[0])

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        centroids = ctx.state.value("centroids").value()
        sums, counts = np.zeros_like(centroids), np.zeros(len(centroids))
        for block in ctx.state.list("blocks").get():
            add_closest(block.features, centroids, self._measure, sums, counts)
        out.collect((ctx.subtask, (centroids, sums, counts)))


class _MoveCentroids(SubtaskCombiner):
    """Moves centroids to the means of their points."""

    name = "move"

    def combine(self, epoch: int, results: Sequence[Any], ctx: Any, out: Any) -> None:
        centroids = results[0][0]
        sums, counts = np.zeros_like(centroids), np.zeros(len(centroids))
        for _, subtask_sums, subtask_counts in results:
            sums += subtask_sums
            counts += subtask_counts
        if not counts.any():
            raise TransformError("the training set is empty")
        occupied = counts > 0
        moved = centroids.copy()
        moved[occupied] = sums[occupied] / counts[occupied, None]
        ctx.state.value("model").update((moved, counts))
        out.collect((moved, counts))

    def on_iteration_terminated(self, ctx: Any, out: Any) -> None:
        out.side(MODEL, ctx.state.value("model").value())


def add_closest(
    features: Matrix, centroids: Floats, measure: str, sums: Floats, counts: Floats
) -> None:
    """Add each point to the sum and the count of its closest centroid, in place."""
    if features.shape[1] != centroids.shape[1]:
        raise TransformError(
            f"points of {features.shape[1]} features; the centroids have {centroids.shape[1]}"
        )
    for start in range(0, len(features), _CHUNK_ROWS):
        rows = np.arange(start, min(start + _CHUNK_ROWS, len(features)))
        points = dense(take(features, rows))
        chosen = closest(points, centroids, measure)
        for c in np.unique(chosen):
            assigned = points[chosen == c]
            sums[c] += assigned.sum(axis=0)
            counts[c] += len(assigned)


def closest(points: Floats, centroids: Floats, measure: str) -> Any:
    """Return the index of the closest centroid of each point; of equally close ones the first."""
    if measure == "cosine":
        lengths = np.sqrt(np.einsum("ij,ij->i", points, points))
        centroid_lengths = np.sqrt(np.einsum("ij,ij->i", centroids, centroids))
        if not lengths.all() or not centroid_lengths.all():
            raise TransformError("the cosine distance of a zero vector is not defined")
        return np.argmin(1 - points @ centroids.T / lengths[:, None] / centroid_lengths, axis=1)
    distances = np.empty((len(points), len(centroids)))
    for c, centroid in enumerate(centroids):
        difference = points - centroid
        if measure == "manhattan":
            distances[:, c] = np.abs(difference).sum(axis=1)
        else:
            distances[:, c] = np.einsum("ij,ij->i", difference, difference)
    return np.argmin(distances, axis=1)
