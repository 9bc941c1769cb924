"""What the algorithms refuse and what they take; scikit-learn as a second opinion."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import sklearn.cluster
import sklearn.linear_model
import sklearn.preprocessing
from scipy.sparse import csr_array

from paimon_features.core.errors import DefinitionError, TransformError
from paimon_features.iteration import ReferenceExecutor
from paimon_features.iteration.algorithms import (
    ImputerStage,
    InteractionStage,
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
from paimon_features.iteration.algorithms.estimator import MODEL
from paimon_features.iteration.algorithms.online_scaler import (
    CountTumblingWindows,
    EventTimeSessionWindows,
    EventTimeTumblingWindows,
    ProcessingTimeSessionWindows,
)
from paimon_features.transformers.flink_ml import (
    KMeansModel,
    LogisticRegressionModel,
    SparseVector,
)
from tests.reference import algorithms as reference

ONE = LogisticRegressionModel({"coefficient": [0.0]})
START = KMeansModel({"centroids": [[0.0], [5.0]], "weights": [1.0, 1.0]})


@pytest.mark.parametrize(
    ("wrong", "error", "reported"),
    [
        (lambda: KMeans(k=1), DefinitionError, "KMeans: k=1; expected 2 or more"),
        (lambda: KMeans(distance_measure="far"), DefinitionError, "one of: euclidean, manhattan"),
        (lambda: LogisticRegression(max_iter=0), DefinitionError, "max_iter=0"),
        (lambda: LogisticRegression(elastic_net=1.5), DefinitionError, "a number from 0 to 1"),
        (lambda: LogisticRegression(multi_class="multinomial"), DefinitionError, "auto, binomial"),
        (lambda: OnlineLogisticRegression(alpha=0.0), DefinitionError, "a number above 0"),
        (lambda: LogisticRegression().fit([[1.0]], [2.0]), TransformError, "label 2; .* multinom"),
        (lambda: LinearSVC().fit([[1.0]]), TransformError, "vectors without labels"),
        (lambda: LinearSVC().fit([[1.0]], [1.0, 0.0]), TransformError, r"shape \(2,\) for 1 ro"),
        (lambda: LinearSVC().fit(np.zeros((0, 2)), []), TransformError, "training set is empty"),
        (lambda: KMeans().fit(pa.table({"a": [[1.0]]})), TransformError, "column 'features'"),
        (lambda: KMeans().program(lambda job: job), DefinitionError, "initial= is missing"),
        (lambda: LinearRegression().fit(pa.table({"features": [[1.0]], "label": [None]})),
         TransformError, "column 'label' has 1 nulls"),
        (lambda: LogisticRegression().fit([[1.0, 2.0]], [1.0], initial=ONE), TransformError,
         "2 features; the initial model has 1"),
        (lambda: OnlineLogisticRegression().fit([[1.0]], [1.0]), DefinitionError, "initial="),
        (lambda: OnlineLogisticRegression(global_batch_size=1).fit(
            [[1.0, 2.0]], [1.0], initial=ONE), TransformError, "vectors of 2 features; the model"),
        (lambda: OnlineLogisticRegression(global_batch_size=2).fit(
            [[1.0]], [1.0], initial=ONE, parallelism=4), DefinitionError,
         "batches of 2 rows for 4 subtasks"),
        (lambda: StandardScalerStage().fit([[1.0], [np.nan]]), TransformError,
         "StandardScalerStage: row 1 has nan as feature 0; expected finite"),
        (lambda: LinearRegression().fit([SparseVector(2, [1], [np.inf])], [1.0]), TransformError,
         "row 0 has inf as feature 1"),
        (lambda: LinearRegression().fit([[1.0]], [np.nan]), TransformError,
         "row 0 has the label nan"),
        (lambda: LinearSVC().fit([[1.0]], [1.0], [np.nan]), TransformError,
         "row 0 has the weight nan"),
        (lambda: LogisticRegression().fit([[1.0]], [1.0], [-1.0]), TransformError,
         "row 0 has the weight -1; expected 0 or more"),
        (lambda: KMeans().fit([[1.0], [np.nan]]), TransformError, "row 1 has nan"),
        (lambda: KBinsDiscretizerStage().fit([[1.0], [np.nan]]), TransformError, "row 1 has nan"),
        (lambda: OnlineKMeans(global_batch_size=1).fit([[np.nan]], initial=START), TransformError,
         "row 0 has nan"),
        (lambda: OnlineLogisticRegression(global_batch_size=1).fit([[1.0]], [2.0], initial=ONE),
         TransformError, "the label 2; expected 0 and 1"),
        (lambda: OnlineKMeans().fit([[1.0]], initial=ONE), DefinitionError,
         "initial= is a model with coefficient.*; expected one with centroids"),
        (lambda: LinearSVC().fit([[1.0]], [1.0], initial=START), DefinitionError,
         "expected one with coefficient"),
        (lambda: OnlineKMeans().fit([[1.0]], initial=START).transform([[1.0]]), TransformError,
         "no versions: the rows did not fill a batch"),
        (lambda: StandardScalerStage().fit([[1.0]], initial=ONE), DefinitionError, "earlier model"),
        (lambda: MinMaxScalerStage().fit([[1.0], [np.inf]]), TransformError, "row 1 has inf"),
        (lambda: RobustScalerStage(lower=-0.1), DefinitionError, "lower=-0.1"),
        (lambda: RobustScalerStage().fit([[np.nan]]), TransformError,
         "column 0: all values are null"),
        (lambda: ImputerStage(strategy="mode"), DefinitionError, "mean, median, most_frequent"),
        (lambda: ImputerStage().fit([[np.nan]]), TransformError, "all values in column 0"),
        (lambda: ImputerStage(input_cols=("a",), output_cols=()).fit(pa.table({"a": [1.0]})),
         DefinitionError, "1 input columns and 0 output columns"),
        (lambda: KBinsDiscretizerStage(num_bins=1), DefinitionError, "num_bins=1"),
        (lambda: OneHotEncoderStage().fit([[0.5]]), TransformError,
         "0.5 cannot be parsed as an index"),
        (lambda: OneHotEncoderStage().fit([[-1.0]]), TransformError, "integers from 0"),
        (lambda: OneHotEncoderStage(handle_invalid="skip"), DefinitionError, "one of: error"),
        (lambda: OnlineLogisticRegression(beta=0.0), DefinitionError, "beta=0.0; .* above 0"),
        (lambda: LinearSVC(learning_rate=0.0), DefinitionError, "learning_rate=0.0; .* above 0"),
        (lambda: OnlineKMeans(k=1), DefinitionError, "k=1; expected 2 or more"),
        (lambda: OnlineKMeans(k=3).fit([[1.0]], initial=START), DefinitionError,
         "k=3, but initial= has 2 centroids"),
        (lambda: InteractionStage().transform(pa.table({"a": [1.0]})), DefinitionError,
         "input_cols is empty"),
        (lambda: InteractionStage(input_cols=("b",)).transform(pa.table({"a": [1.0]})),
         TransformError, "unknown column 'b'"),
        (lambda: InteractionStage(input_cols=("a",), output_col="a").transform(
            pa.table({"a": [1.0]})),
         TransformError, "has a column 'a' already"),
        (lambda: InteractionStage(input_cols=("a",)).transform(pa.table({"a": [[1.0, None]]})),
         TransformError, "vectors with nulls"),
        (lambda: InteractionStage(input_cols=("a",)).fit([[1.0]]), TransformError,
         "expected a table"),
        (lambda: OnlineStandardScaler(windows=EventTimeTumblingWindows(0)).fit(
            pa.table({"input": [[1.0]], "timestamp": [0]})), DefinitionError, "1 ms or more"),
        (lambda: OnlineStandardScaler(windows=ProcessingTimeSessionWindows(0)), DefinitionError,
         "gap_ms=0.; expected 1 ms or more"),
        (lambda: OnlineStandardScaler(max_allowed_model_delay_ms=-1), DefinitionError,
         "max_allowed_model_delay_ms=-1; expected 0 or more"),
        (lambda: OnlineStandardScaler(windows=EventTimeTumblingWindows(5)).fit(
            pa.table({"input": [[1.0]] * 3, "timestamp": [7, 9, 8]})), TransformError,
         "row 2 has the time 8, before that of the row above it .9.; sort the rows"),
        (lambda: OnlineStandardScaler(windows=EventTimeTumblingWindows(5)).fit([[1.0]]),
         TransformError, "missing column 'timestamp' of times"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused(wrong: Callable[[], Any], error: type, reported: str) -> None:
    with pytest.raises(error, match=reported):
        wrong()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_fit_that_diverges_gives_an_error_and_no_model() -> None:
    with pytest.raises(TransformError, match="the learning rate was too large"):
        LinearRegression(learning_rate=1e200, tol=0.0).fit([[1e200], [3e200]], [1.0, 2.0])


def test_numbers_whose_sum_overflows_are_finite_all_the_same() -> None:
    largest = np.finfo(np.float64).max
    model = MaxAbsScalerStage().fit([[largest], [largest]])
    assert model.model_data["maxVector"].tolist() == [largest]


def test_a_batch_whose_rows_have_no_weight_is_passed_over() -> None:
    # in rounds 1 and 3 the batch is the first two rows
    rows, labels, weights = [[1.0], [2.0], [3.0], [4.0]], [0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0]
    found = LogisticRegression(global_batch_size=2, max_iter=4).fit(rows, labels, weights)
    alone = LogisticRegression(global_batch_size=2, max_iter=2).fit(rows[2:], labels[2:])
    assert found.model_data["coefficient"].tolist() == alone.model_data["coefficient"].tolist()
    nothing = LogisticRegression().fit(rows, labels, [0.0] * 4)
    assert nothing.model_data["coefficient"].tolist() == [0.0]


@pytest.mark.parametrize("estimator", [LogisticRegression(), LinearSVC(), LinearRegression()])
def test_one_class_many_equal_rows_and_more_subtasks_than_rows(estimator: Any) -> None:
    rows, labels = [[1.0, -1.0]] * 5, [1.0] * 5
    few = estimator.fit(rows, labels, parallelism=9).model_data["coefficient"]
    assert np.isfinite(few).all()
    assert np.allclose(few, estimator.fit(rows, labels).model_data["coefficient"], rtol=1e-12)


@pytest.mark.parametrize("measure", ["euclidean", "manhattan", "cosine"])
def test_of_equal_centroids_the_first_gets_the_points(measure: str) -> None:
    start = KMeansModel({"centroids": [[1.0], [1.0]], "weights": [1.0, 1.0]})
    model = KMeans(distance_measure=measure, max_iter=1).fit([[2.0], [4.0]], initial=start)
    assert model.model_data["centroids"].tolist() == [[3.0], [1.0]]
    assert model.model_data["weights"].tolist() == [2.0, 0.0]


@pytest.mark.parametrize(
    ("estimator", "columns"),
    [
        (LogisticRegression(), {"features": [[1.0], [2.0]], "label": [0.0, 1.0]}),
        (LinearRegression(), {"features": [[1.0], [2.0]], "label": [0.0, 1.0]}),
        (KMeans(), {"features": [[1.0], [2.0]]}),
        (StandardScalerStage(), {"input": [[1.0], [2.0]]}),
        (MaxAbsScalerStage(), {"input": [{"size": 2, "indices": [1], "values": [2.0]}] * 2}),
        (KBinsDiscretizerStage(), {"input": [[1.0], [2.0]]}),
        (ImputerStage(input_cols=("a",), output_cols=("b",)), {"a": [1.0, None]}),
        (OneHotEncoderStage(input_cols=("a",), output_cols=("b",)), {"a": [1.0, 2.0]}),
        (InteractionStage(input_cols=("a", "b")), {"a": [1.0, 2.0], "b": [[1.0], [2.0]]}),
        (OnlineStandardScaler(), {"input": [[1.0], [2.0]]}),
    ],
)
def test_no_rows_are_transformed_into_no_rows(estimator: Any, columns: dict[str, Any]) -> None:
    table = pa.table(columns)
    model = estimator.fit(table)
    made = model.transform(table)
    assert model.transform(table.slice(0, 0)).equals(made.slice(0, 0))


def test_rows_that_do_not_fill_a_batch_make_no_version() -> None:
    rows = [[1.0], [2.0], [3.0]]
    start = KMeansModel({"centroids": [[0.0], [5.0]], "weights": [1.0, 1.0]})
    assert len(OnlineKMeans(global_batch_size=4).fit(rows, initial=start)) == 0
    assert len(OnlineStandardScaler(windows=CountTumblingWindows(2)).fit(rows)) == 1


def test_a_centroid_without_points_stays_where_it_is() -> None:
    start = KMeansModel({"centroids": [[0.0], [100.0]], "weights": [1.0, 0.0]})
    for parallelism in (1, 3):
        batch = KMeans().fit([[1.0], [2.0], [3.0]], initial=start, parallelism=parallelism)
        assert batch.model_data["centroids"].tolist() == [[2.0], [100.0]]
        online = OnlineKMeans(global_batch_size=3)
        made = online.fit([[1.0], [2.0], [3.0]], initial=start, parallelism=parallelism)
        assert made.model_data["centroids"].tolist() == [[2.0], [100.0]]


def test_every_form_of_the_same_rows_gives_the_same_model() -> None:
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(50, 2)), (rng.random(50) < 0.5).astype(float)
    vectors = pa.table({"features": features.tolist(), "label": labels})
    columns = pa.table({"a": features[:, 0], "b": features[:, 1], "label": labels})
    by_columns = LogisticRegression(features_col=("a", "b"))
    models = [
        LogisticRegression().fit(features, labels),
        LogisticRegression().fit(features.tolist(), labels.tolist()),
        LogisticRegression().fit(vectors),
        LogisticRegression().fit(pl.from_arrow(vectors)),
        by_columns.fit(columns),
        by_columns.fit(columns.to_pandas()),
        by_columns.fit(pd.DataFrame({"a": features[:, 0], "b": features[:, 1], "label": labels})),
    ]
    expected = models[0].model_data["coefficient"].tolist()
    assert all(model.model_data["coefficient"].tolist() == expected for model in models)
    assert models[4].names == ("a", "b")
    assert models[0].names is None
    sparse = LogisticRegression().fit(csr_array(features), labels).model_data["coefficient"]
    assert np.allclose(sparse, expected, rtol=1e-12)


def test_a_program_reads_record_batches_of_any_stream() -> None:
    rng = np.random.default_rng(1)
    table = pa.table({"input": rng.normal(size=(100, 2)).tolist()})
    scaler = StandardScalerStage()
    program = scaler.program(
        lambda job: job.from_collection(table.to_batches(max_chunksize=9), parallelism=2),
        parallelism=2,
    )
    model = scaler.model_of(ReferenceExecutor().run(program)[MODEL], rows=100)
    expected = scaler.fit(table)
    assert np.allclose(model.model_data["mean"], expected.model_data["mean"], rtol=1e-12)
    assert model.rows_seen == expected.rows_seen == 100


@pytest.mark.parametrize(
    ("strategy", "values", "bins", "expected"),
    [
        # two of three centroids start and stay at 0
        ("kmeans", [0.0] * 8 + [10.0, 11.0, 12.0, 13.0], 3, [0.0, 5.75, 13.0]),
        # rounding leaves no number between neighbours
        ("quantile", [1.0] * 4 + [np.nextafter(1.0, 2.0)] * 4, 2, [1.0, np.nextafter(1.0, 2.0)]),
        ("uniform", [1e16, 1e16 + 2], 5, [1e16, 1e16 + 2]),
        ("kmeans", [-5.0] * 3, 2, [-np.inf, np.inf]),
        ("quantile", [-5.0] * 3, 2, [-np.inf, np.inf]),
    ],
)
def test_bins_that_cannot_have_a_width_are_omitted(
    strategy: str, values: list[float], bins: int, expected: list[float]
) -> None:
    model = KBinsDiscretizerStage(strategy=strategy, num_bins=bins).fit([[v] for v in values])
    (edges,) = model.model_data["binEdges"]
    assert edges.tolist() == expected
    assert reference.bin_edges(np.array(values), strategy, bins) == expected


@pytest.mark.parametrize("parallelism", [1, 3])
def test_the_end_of_a_stream_ends_its_last_window(parallelism: int) -> None:
    times = np.arange(100) * 7
    table = pa.table({"input": np.arange(100.0)[:, None].tolist(), "timestamp": times})
    for windows in (
        EventTimeTumblingWindows(100), EventTimeSessionWindows(6), ProcessingTimeSessionWindows(99),
    ):  # fmt: skip
        scaler = OnlineStandardScaler(windows=windows)
        program = scaler.program(
            lambda job: job.from_collection(table.to_batches(max_chunksize=9)),
            parallelism=parallelism,
        )
        found = scaler.model_of(ReferenceExecutor().run(program)[MODEL], rows=100)
        assert found.model_data["mean"].tolist() == [49.5]
        if not isinstance(windows, ProcessingTimeSessionWindows):
            expected = scaler.fit(table, parallelism=parallelism)
            assert [m.to_params() for m in found] == [m.to_params() for m in expected]


def test_bins_of_a_sample_are_bins_of_as_many_rows() -> None:
    rng = np.random.default_rng(2)
    rows = rng.normal(size=(3000, 1))
    sampled = KBinsDiscretizerStage(sub_samples=1000).fit(rows, parallelism=3)
    whole = KBinsDiscretizerStage().fit(rows)
    (edges,), (all_edges,) = sampled.model_data["binEdges"], whole.model_data["binEdges"]
    assert len(edges) == 6
    assert np.abs(edges - all_edges)[1:-1].max() < 0.2
    again = KBinsDiscretizerStage(sub_samples=1000).fit(rows, parallelism=3)
    assert again == sampled


# -- scikit-learn --------------------------------------------------------------------------


def test_least_squares_end_where_scikit_learns_do() -> None:
    rng = np.random.default_rng(3)
    features = rng.normal(size=(200, 3))
    labels = features @ [1.0, -2.0, 3.0] + 0.1 * rng.normal(size=200)
    ours = LinearRegression(max_iter=400, global_batch_size=200, tol=0.0).fit(features, labels)
    theirs = sklearn.linear_model.LinearRegression(fit_intercept=False).fit(features, labels)
    assert np.allclose(ours.model_data["coefficient"], theirs.coef_, atol=1e-8)


def test_logistic_regression_ends_where_scikit_learns_does() -> None:
    rng = np.random.default_rng(4)
    features = rng.normal(size=(300, 2))
    labels = (features @ [1.0, -1.0] + rng.normal(size=300) > 0).astype(float)
    ours = LogisticRegression(max_iter=800, global_batch_size=300, learning_rate=2.0, tol=0.0)
    theirs = sklearn.linear_model.LogisticRegression(C=np.inf, fit_intercept=False, tol=1e-12)
    theirs.fit(features, labels)
    model = ours.fit(features, labels)
    assert np.allclose(model.model_data["coefficient"], theirs.coef_[0], atol=1e-6)
    assert np.allclose(model.transform(features)[:, 1:], theirs.predict_proba(features), atol=1e-6)


def test_kmeans_ends_where_scikit_learns_does() -> None:
    rng = np.random.default_rng(5)
    points = rng.normal(size=(300, 2)) + rng.choice([-4.0, 4.0], (300, 2))
    start = points[:4]
    ours = KMeans(k=4).fit(points, initial=KMeansModel({"centroids": start, "weights": [1.0] * 4}))
    theirs = sklearn.cluster.KMeans(4, init=start, n_init=1, max_iter=20, tol=0.0).fit(points)
    assert np.allclose(ours.model_data["centroids"], theirs.cluster_centers_, atol=1e-9)
    assert ours.transform(points).tolist() == theirs.labels_.tolist()


def test_scalers_differ_from_scikit_learns_only_where_the_documents_say_so() -> None:
    rows = np.random.default_rng(6).normal(size=(80, 3)) * 5 + 2
    ours = StandardScalerStage(with_mean=True).fit(rows).transform(rows)
    theirs = sklearn.preprocessing.StandardScaler().fit_transform(rows)
    assert np.allclose(ours * np.sqrt(80 / 79), theirs)  # n - 1, not n
    ours = MinMaxScalerStage().fit(rows).transform(rows)
    assert np.allclose(ours, sklearn.preprocessing.MinMaxScaler().fit_transform(rows))
