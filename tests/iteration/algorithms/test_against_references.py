"""Every algorithm on the runtime gives what its plain NumPy reference gives.

In the one fixed order, in random orders, and with failures of which it recovers. Sums over
subtasks are added in another order than the reference adds them: 1e-12 of the result is allowed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.iteration import ReferenceExecutor
from paimon_features.iteration.algorithms import (
    CountTumblingWindows,
    EventTimeTumblingWindows,
    ImputerStage,
    KBinsDiscretizerStage,
    KMeans,
    LinearRegression,
    LinearSVC,
    LogisticRegression,
    MaxAbsScalerStage,
    MinMaxScalerStage,
    OneHotEncoderStage,
    OnlineKMeans,
    OnlineLogisticRegression,
    OnlineStandardScaler,
    RobustScalerStage,
    StandardScalerStage,
)
from paimon_features.iteration.algorithms.training_blocks import BLOCK_ROWS
from paimon_features.testing.sizes import seeds
from paimon_features.transformers.flink_ml import (
    KMeansModel,
    LogisticRegressionModel,
    SparseRows,
    SparseVector,
)
from tests.reference import algorithms as reference

random_cases = pytest.mark.parametrize("seed", seeds(4))


def executor(rng: Any) -> ReferenceExecutor:
    """One of many ways to run: an order, checkpoints, failures, the wire lost."""
    if rng.random() < 0.25:
        return ReferenceExecutor()
    return ReferenceExecutor(
        seed=int(rng.integers(1 << 30)),
        checkpoint_every=int(rng.integers(3, 40)),
        random_failures=int(rng.integers(0, 3)),
        lose_wire=bool(rng.random() < 0.5),
    )


def run_of(rng: Any) -> dict[str, Any]:
    """Arguments of ``fit``: an executor and a parallelism."""
    return {"executor": executor(rng), "parallelism": int(rng.choice([1, 2, 3, 4]))}


def close(left: Any, right: Any, tolerance: float = 1e-12) -> None:
    assert np.shape(left) == np.shape(right)
    assert np.allclose(
        left, right, rtol=tolerance, atol=tolerance * np.max(np.abs(right), initial=0)
    )


@random_cases
@pytest.mark.parametrize(
    ("estimator", "loss"),
    [
        (LogisticRegression(), "logistic"),
        (LinearSVC(), "hinge"),
        (LinearRegression(learning_rate=0.05), "least_square"),
    ],
    ids=["logistic", "hinge", "least_square"],
)
def test_linear_models(estimator: Any, loss: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, width = int(rng.integers(1, 200)), int(rng.integers(1, 6))
    features = rng.normal(size=(n, width))
    labels = (rng.random(n) < 0.5).astype(float) if loss != "least_square" else rng.normal(size=n)
    weights = rng.choice([1.0, 2.0, 0.5], n)
    options: dict[str, Any] = {
        "max_iter": int(rng.integers(1, 12)),
        "global_batch_size": int(rng.choice([4, 7, 32, 400])),
        "reg": float(rng.choice([0.0, 0.1])),
        "elastic_net": float(rng.choice([0.0, 0.3, 1.0])),
        "tol": float(rng.choice([0.0, 1e-6, 0.6])),
    }
    run = run_of(rng)
    start = rng.normal(size=width) if rng.random() < 0.5 else None
    made = estimator
    for name, value in options.items():
        made = getattr(made, f"set_{name}")(value)
    initial = None if start is None else LogisticRegressionModel({"coefficient": start})
    sparse = rng.random() < 0.3
    vectors = [SparseVector(width, range(width), row.tolist()) for row in features]
    model = made.fit(vectors if sparse else features, labels, weights, initial=initial, **run)
    expected = reference.sgd(
        features,
        labels,
        weights,
        loss,
        initial=start,
        learning_rate=estimator.learning_rate,
        parallelism=run["parallelism"],
        **options,
    )
    close(model.model_data["coefficient"], expected)
    assert model.rows_seen == n


def test_a_fit_gives_the_same_bits_in_any_order_of_deliveries() -> None:
    rng = np.random.default_rng(3)
    features, labels = rng.normal(size=(300, 4)), (rng.random(300) < 0.5).astype(float)
    made = {
        tuple(
            LogisticRegression(global_batch_size=64)
            .fit(features, labels, executor=ReferenceExecutor(seed), parallelism=3)
            .model_data["coefficient"]
            .tolist()
        )
        for seed in (None, 1, 2, 3)
    }
    assert len(made) == 1


def test_a_global_batch_has_the_same_rows_at_any_parallelism() -> None:
    rng = np.random.default_rng(4)
    features, labels = rng.normal(size=(96, 3)), (rng.random(96) < 0.5).astype(float)
    fits = [LogisticRegression().fit(features, labels, parallelism=p) for p in (1, 2, 4)]
    for model in fits[1:]:
        close(model.model_data["coefficient"], fits[0].model_data["coefficient"])


def test_rows_of_many_blocks_are_the_rows_that_they_are() -> None:
    rng = np.random.default_rng(5)
    n = BLOCK_ROWS * 2 + 100
    features, labels = rng.normal(size=(n, 2)), (rng.random(n) < 0.5).astype(float)
    for parallelism in (1, 2):
        model = LogisticRegression(global_batch_size=n, max_iter=3, tol=0.0).fit(
            features, labels, parallelism=parallelism
        )
        coefficient = np.zeros(2)
        for _ in range(3):
            margin = (2 * labels - 1) * (features @ coefficient)
            slopes = -(2 * labels - 1) / (np.exp(margin) + 1)
            coefficient = coefficient - 0.1 * (slopes @ features) / n
        close(model.model_data["coefficient"], coefficient)


@random_cases
@pytest.mark.parametrize("measure", ["euclidean", "manhattan", "cosine"])
def test_kmeans(measure: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    # in one dimension all cosines are the same up to rounding
    n, width, k = int(rng.integers(1, 150)), int(rng.integers(2, 5)), int(rng.integers(2, 6))
    points = rng.normal(size=(n, width)) + rng.choice([0.5, 10.0], (n, 1))
    start = rng.normal(size=(k, width)) + 3.0
    rounds = int(rng.integers(1, 8))
    model = KMeans(k=k, max_iter=rounds, distance_measure=measure).fit(
        points,
        initial=KMeansModel({"centroids": start, "weights": np.ones(k)}),
        **run_of(rng),
    )
    centroids, counts = reference.kmeans(points, start, max_iter=rounds, measure=measure)
    close(model.model_data["centroids"], centroids)
    assert model.model_data["weights"].tolist() == counts.tolist()


@random_cases
def test_online_kmeans(seed: int) -> None:
    rng = np.random.default_rng(seed)
    batch, k = int(rng.integers(4, 30)), int(rng.integers(2, 5))
    points = rng.normal(size=(int(rng.integers(0, 5)) * batch + int(rng.integers(1, batch)), 2))
    start, weights = rng.normal(size=(k, 2)), rng.choice([0.0, 1.0, 5.0], k)
    decay = float(rng.choice([0.0, 0.5, 1.0]))
    made = OnlineKMeans(global_batch_size=batch, decay_factor=decay).fit(
        points, initial=KMeansModel({"centroids": start, "weights": weights}), **run_of(rng)
    )
    batches = [points[i : i + batch] for i in range(0, len(points) - batch + 1, batch)]
    expected = reference.online_kmeans(batches, start, weights, decay_factor=decay)
    assert len(made) == len(expected)
    for model, (centroids, of_centroids) in zip(made, expected, strict=True):
        close(model.model_data["centroids"], centroids)
        close(model.model_data["weights"], of_centroids)


@random_cases
def test_online_logistic_regression(seed: int) -> None:
    rng = np.random.default_rng(seed)
    batch, width = int(rng.integers(4, 30)), int(rng.integers(1, 5))
    n = batch * int(rng.integers(0, 5)) + int(rng.integers(1, batch))
    features = rng.normal(size=(n, width)) * (rng.random((n, width)) < 0.7)
    labels, weights = (rng.random(n) < 0.5).astype(float), rng.choice([1.0, 3.0], n)
    start = rng.normal(size=width)
    options = {"reg": float(rng.choice([0.0, 0.2])), "elastic_net": 0.5, "beta": 0.3}
    sparse = bool(rng.random() < 0.5)
    points: list[dict[int, float]] = [
        {j: row[j] for j in np.flatnonzero(row).tolist()} for row in features
    ]
    vectors = SparseRows.of(SparseVector(width, list(p), list(p.values())) for p in points)
    made = OnlineLogisticRegression(global_batch_size=batch, **options).fit(
        vectors if sparse else features,
        labels,
        weights,
        initial=LogisticRegressionModel({"coefficient": start}),
        **run_of(rng),
    )
    whole: Any = points if sparse else features
    batches = [
        (whole[i : i + batch], labels[i : i + batch], weights[i : i + batch])
        for i in range(0, n - batch + 1, batch)
    ]
    expected = reference.ftrl(batches, start, **options)
    assert [model.model_data["modelVersion"] for model in made] == [*range(1, len(batches) + 1)]
    for model, coefficient in zip(made, expected, strict=True):
        close(model.model_data["coefficient"], coefficient, 1e-11)


@random_cases
def test_scalers_of_one_pass(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 100))
    rows = rng.normal(size=(n, 3)) * [1.0, 1e-3, 1e6] + [0.0, 1e9, -5.0]
    mean, std = reference.mean_and_deviation(rows)
    found = StandardScalerStage().fit(rows, **run_of(rng)).model_data
    close(found["mean"], mean)
    assert np.allclose(found["std"], std, rtol=1e-9, atol=0)
    extremes = MinMaxScalerStage().fit(rows, **run_of(rng)).model_data
    assert np.array_equal(extremes["minVector"], rows.min(axis=0))
    assert np.array_equal(extremes["maxVector"], rows.max(axis=0))
    largest = MaxAbsScalerStage().fit(rows, **run_of(rng)).model_data["maxVector"]
    assert np.array_equal(largest, np.abs(rows).max(axis=0))


def test_a_deviation_that_is_small_beside_the_mean_is_not_lost() -> None:
    rows = 1e9 + 1e-3 * np.random.default_rng(0).normal(size=(4000, 1))
    std = StandardScalerStage().fit(rows, parallelism=4).model_data["std"]
    assert np.allclose(std, rows.std(axis=0, ddof=1), rtol=1e-6)


@random_cases
def test_online_standard_scaler(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, size = int(rng.integers(1, 60)), int(rng.integers(4, 12))
    rows = rng.normal(size=(n, 2)) + 100
    counted = OnlineStandardScaler(windows=CountTumblingWindows(size)).fit(rows, **run_of(rng))
    ends = [*range(size, n + 1, size)]
    times = np.sort(rng.integers(-5000, 5000, n))
    table = pa.table({"timestamp": times, "input": rows.tolist()})
    timed = OnlineStandardScaler(windows=EventTimeTumblingWindows(1000)).fit(table, **run_of(rng))
    last_ms = sorted({int(t) // 1000 * 1000 + 999 for t in times})
    time_ends = [int(np.sum(times <= last)) for last in last_ms]
    for versions, places in ((counted, ends), (timed, time_ends)):
        assert [model.model_data["version"] for model in versions] == [*range(len(places))]
        for model, end in zip(versions, places, strict=True):
            mean, std = reference.mean_and_deviation(rows[:end])
            close(model.model_data["mean"], mean)
            assert np.allclose(model.model_data["std"], std, rtol=1e-9, atol=1e-12)
    assert [model.model_data["timestamp"] for model in timed] == last_ms


@random_cases
def test_quantiles_are_the_elements_at_their_ranks_to_the_bit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 300))
    scale = rng.choice([1.0, 1e-300, 1e300, 0.0], 3)
    rows = rng.normal(size=(n, 3)) * scale
    rows[rng.random((n, 3)) < 0.1] = np.nan
    rows[rng.integers(n)] = rng.choice([0.0, -0.0, 5e-324, -1e308], 3)
    lower, upper = sorted(rng.random(2).tolist())
    found = RobustScalerStage(lower=lower, upper=upper).fit(rows, **run_of(rng)).model_data
    for j, column in enumerate(rows.T):
        assert found["medians"][j] == reference.quantile(column, 0.5)
        expected = reference.quantile(column, upper) - reference.quantile(column, lower)
        assert found["ranges"][j] == expected
    median = ImputerStage(strategy="median").fit(rows, **run_of(rng)).model_data["surrogates"]
    assert median.tolist() == found["medians"].tolist()


@random_cases
def test_imputers_and_bins_and_indices(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 120))
    rows = rng.choice([0.5, 1.0, -2.0, 3.0, np.nan], (n, 2))
    rows[0] = 1.0
    means = ImputerStage().fit(rows, **run_of(rng)).model_data["surrogates"]
    close(means, np.nanmean(rows, axis=0))
    modes = ImputerStage(strategy="most_frequent").fit(rows, **run_of(rng)).model_data["surrogates"]
    assert modes.tolist() == [reference.most_frequent(column) for column in rows.T]
    other = ImputerStage(missing_value=1.0, strategy="most_frequent").fit(
        np.vstack([rows, [3.0, 3.0]]), **run_of(rng)
    )
    kept = np.where(np.vstack([rows, [3.0, 3.0]]) == 1.0, np.nan, np.vstack([rows, [3.0, 3.0]]))
    expected = [reference.most_frequent(column) for column in kept.T]
    assert other.model_data["surrogates"].tolist() == expected
    values = np.column_stack([rng.normal(size=n), rng.choice([1.0, 2.0, 7.0], n), np.ones(n)])
    for strategy in ("uniform", "quantile", "kmeans"):
        bins = int(rng.integers(2, 6))
        model = KBinsDiscretizerStage(strategy=strategy, num_bins=bins).fit(values, **run_of(rng))
        for edges, column in zip(model.model_data["binEdges"], values.T, strict=True):
            close(edges, reference.bin_edges(column, strategy, bins))
    indices = rng.integers(0, 5, (n, 2)).astype(float)
    greatest = OneHotEncoderStage().fit(indices, **run_of(rng)).model_data["maxIndex"]
    assert greatest.tolist() == indices.max(axis=0).tolist()
