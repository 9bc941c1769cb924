"""k-means on the runtime: points kept, Lloyd's algorithm, one round an epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from paimon_features.array_types import Floats
from paimon_features.errors import DefinitionError, TransformError
from paimon_features.iteration import (
    DataStreamList,
    IterationBodyResult,
    IterationConfig,
    IterationListener,
    IterationStream,
    terminate_on_max_iter,
)
from paimon_features.iteration.algorithms.bounded_training import BlockKeeper, over_rows
from paimon_features.iteration.algorithms.estimator import (
    MODEL,
    Estimator,
    TrainingSource,
    labelled,
    names_of,
)
from paimon_features.iteration.algorithms.parameter_checks import (
    at_least,
    finite,
    one_of,
    started_from,
)
from paimon_features.iteration.algorithms.training_blocks import TrainingBlock
from paimon_features.transformers.flink_ml import KMeansModel, Model
from paimon_features.transformers.flink_ml.vectors import Matrix, dense, take

MEASURES = ("euclidean", "manhattan", "cosine")
_PIECE = 4096


@dataclass(frozen=True, kw_only=True)
class KMeans(Estimator):
    """Centroids of ``k`` clusters after ``max_iter`` rounds.

    It starts from ``k`` of the rows, drawn by ``seed``, or from the model ``initial``. A centroid
    that loses all its points stays where it is. ``distance_measure`` is ``euclidean``,
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
    features_col: str | tuple[str, ...] = "features"
    prediction_col: str = "prediction"

    def __post_init__(self) -> None:
        at_least(self, 2, "k")
        at_least(self, 1, "max_iter")
        one_of(self, "distance_measure", MEASURES)
        one_of(self, "init_mode", ("random",))

    def _rows(self, X: Any, y: Any, sample_weight: Any) -> TrainingBlock:
        return finite(self, labelled(X, None, None, (self.features_col, None, None)))

    def _names(self, X: Any) -> tuple[str, ...] | None:
        return names_of(self.features_col, X)

    def _start(self, rows: TrainingBlock | None, initial: Model | None) -> Any:
        if initial is not None:
            return started_from(self, initial, "centroids")["centroids"]
        if rows is None:
            raise DefinitionError(
                "KMeans.program: initial= is missing; rows can be drawn only from data at hand: "
                "fit some rows with max_iter=1 and start from that model"
            )
        drawn = np.random.default_rng(self.seed).choice(
            len(rows), min(self.k, len(rows)), replace=False
        )
        return dense(take(rows.features, np.sort(drawn)))

    def _program(
        self, source: TrainingSource, start: Any, parallelism: int, config: IterationConfig
    ) -> Callable[[Any], Any]:
        def follow(partial: IterationStream, centroids: IterationStream) -> IterationBodyResult:
            model = partial.process(_Move()).set_parallelism(1).name("move")
            return IterationBodyResult(
                DataStreamList.of(model.map(_centroids)),
                DataStreamList.of(model.get_side_output(MODEL)),
                centroids.flat_map(terminate_on_max_iter(self.max_iter)),
            )

        assign = _Assign(self.distance_measure)
        return over_rows(source, start, assign, follow, parallelism, config)

    def _model(self, found: list[Any], rows: int, names: tuple[str, ...] | None) -> Any:
        centroids, weights = self._only(found)
        return KMeansModel(
            {"centroids": centroids, "weights": weights},
            rows=rows,
            names=names,
            features_col=self.features_col,
            prediction_col=self.prediction_col,
            distance_measure=self.distance_measure,
        )


class _Assign(BlockKeeper):
    """Keeps points; each epoch the sums and numbers of those closest to each centroid."""

    def __init__(self, measure: str) -> None:
        self._measure = measure

    def process_element2(self, centroids: Floats, ctx: Any, out: Any) -> None:
        ctx.state.value("centroids").update(centroids)

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        centroids = ctx.state.value("centroids").value()
        sums, counts = np.zeros_like(centroids), np.zeros(len(centroids))
        for block in ctx.state.list("blocks").get():
            add_closest(block.features, centroids, self._measure, sums, counts)
        out.collect((ctx.subtask, centroids, sums, counts))


class _Move(IterationListener):
    """New centroids of the sums of all subtasks."""

    def process_element(self, part: tuple[Any, ...], ctx: Any, out: Any) -> None:
        ctx.state.list("parts").add(part)

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        parts = ctx.state.list("parts")
        ordered = sorted(parts.get(), key=lambda part: part[0])
        parts.clear()
        centroids = ordered[0][1]
        sums, counts = np.zeros_like(centroids), np.zeros(len(centroids))
        for _, _, of_subtask, number in ordered:
            sums += of_subtask
            counts += number
        if not counts.any():
            raise TransformError("the training set is empty")
        there = counts > 0
        moved = centroids.copy()
        moved[there] = sums[there] / counts[there, None]
        ctx.state.value("model").update((moved, counts))
        out.collect((moved, counts))

    def on_iteration_terminated(self, ctx: Any, out: Any) -> None:
        out.side(MODEL, ctx.state.value("model").value())


def _centroids(model: tuple[Floats, Floats]) -> Floats:
    return model[0]


def add_closest(
    features: Matrix, centroids: Floats, measure: str, sums: Floats, counts: Floats
) -> None:
    """Add each point to the sum and the number of its closest centroid."""
    if features.shape[1] != centroids.shape[1]:
        raise TransformError(
            f"points of {features.shape[1]} features; the centroids have {centroids.shape[1]}"
        )
    for start in range(0, len(features), _PIECE):
        rows = np.arange(start, min(start + _PIECE, len(features)))
        points = dense(take(features, rows))
        chosen = closest(points, centroids, measure)
        for c in np.unique(chosen):
            of_centroid = points[chosen == c]
            sums[c] += of_centroid.sum(axis=0)
            counts[c] += len(of_centroid)


def closest(points: Floats, centroids: Floats, measure: str) -> Any:
    """The number of the closest centroid of each point, the first of equally close ones."""
    if measure == "cosine":
        lengths = np.sqrt(np.einsum("ij,ij->i", points, points))
        of_centroids = np.sqrt(np.einsum("ij,ij->i", centroids, centroids))
        if not lengths.all() or not of_centroids.all():
            raise TransformError("the cosine distance of a vector of zeros is not defined")
        return np.argmin(1 - points @ centroids.T / lengths[:, None] / of_centroids, axis=1)
    distances = np.empty((len(points), len(centroids)))
    for c, centroid in enumerate(centroids):
        away = points - centroid
        if measure == "manhattan":
            distances[:, c] = np.abs(away).sum(axis=1)
        else:
            distances[:, c] = np.einsum("ij,ij->i", away, away)
    return np.argmin(distances, axis=1)
