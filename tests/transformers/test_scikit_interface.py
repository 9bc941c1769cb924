"""Methods, arguments and fitted attributes are those of scikit-learn's classes of the same name."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from paimon_features import transformers as ours
from paimon_features.core.errors import TransformError

sklearn = pytest.importorskip("sklearn", reason="pip install scikit-learn")
from sklearn import compose, impute, pipeline, preprocessing  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.model_selection import GridSearchCV  # noqa: E402

PAIRS: dict[str, tuple[Any, Any]] = {
    "StandardScaler": (ours.StandardScaler, preprocessing.StandardScaler),
    "MinMaxScaler": (ours.MinMaxScaler, preprocessing.MinMaxScaler),
    "MaxAbsScaler": (ours.MaxAbsScaler, preprocessing.MaxAbsScaler),
    "RobustScaler": (ours.RobustScaler, preprocessing.RobustScaler),
    "QuantileTransformer": (ours.QuantileTransformer, preprocessing.QuantileTransformer),
    "KBinsDiscretizer": (ours.KBinsDiscretizer, preprocessing.KBinsDiscretizer),
    "OneHotEncoder": (ours.OneHotEncoder, preprocessing.OneHotEncoder),
    "TargetEncoder": (ours.TargetEncoder, preprocessing.TargetEncoder),
    "Imputer": (ours.Imputer, impute.SimpleImputer),
    "Pipeline": (ours.Pipeline, pipeline.Pipeline),
    "ColumnTransformer": (ours.ColumnTransformer, compose.ColumnTransformer),
}
METHODS = ("fit", "fit_transform", "partial_fit", "transform", "inverse_transform", "set_output",
           "get_feature_names_out", "get_params", "set_params", "set_fit_request",
           "get_metadata_routing")  # fmt: skip
LACKING: dict[str, set[str]] = {
    "QuantileTransformer": {"ignore_implicit_zeros"},  # there is no sparse input
    "OneHotEncoder": {"feature_name_combiner"},
    "TargetEncoder": {"categories", "random_state"},
    "Imputer": {"add_indicator"},
    "Pipeline": {"memory", "verbose", "transform_input"},
    "ColumnTransformer": {
        *("sparse_threshold", "n_jobs", "transformer_weights", "verbose"),
        "force_int_remainder_cols",
    },
}
"""Arguments of scikit-learn's constructors that ours do not have."""
LACKING_ATTRIBUTES: dict[str, set[str]] = {
    "Imputer": {"indicator_"},
    "ColumnTransformer": {
        "transformers_",
        "named_transformers_",
        "sparse_output_",
        "output_indices_",
    },
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def arguments(method: Any) -> tuple[set[str], bool]:
    """The names of a method's arguments, and whether it takes others by name."""
    parameters = inspect.signature(method).parameters.values()
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    names = {each.name for each in parameters if each.kind in named} - {"self"}
    return names, any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)


@pytest.mark.parametrize("name", PAIRS)
def test_constructors_take_the_same_arguments(name: str) -> None:
    mine, theirs = PAIRS[name]
    lacking = arguments(theirs)[0] - arguments(mine)[0]
    assert lacking <= LACKING.get(name, set()), sorted(lacking)


@pytest.mark.parametrize("name", PAIRS)
def test_methods_take_the_same_arguments(name: str) -> None:
    mine, theirs = PAIRS[name]
    for method in METHODS:
        if not hasattr(theirs, method):
            continue
        assert hasattr(mine, method), method
        (own, open_), (their, takes_more) = map(
            arguments, (getattr(mine, method), getattr(theirs, method))
        )
        lacking = their - own - {"copy"}
        assert open_ or not lacking, (method, lacking)
        if method in ("fit", "fit_transform") and takes_more:
            assert open_, f"{method} takes no further arguments"


def data() -> tuple[Any, Any, Any]:
    dice = np.random.default_rng(1)
    X = dice.integers(0, 4, (60, 2)).astype(float)  # noqa: N806
    return X, (X[:, 0] > 1).astype(int), dice.uniform(0.5, 2, 60)


def fitted(name: str) -> tuple[Any, Any]:
    mine, theirs = PAIRS[name]
    X, y, _ = data()  # noqa: N806
    if name == "Pipeline":
        pair = mine([("s", ours.StandardScaler())]), theirs([("s", preprocessing.StandardScaler())])
    elif name == "ColumnTransformer":
        pair = (
            mine([("s", ours.StandardScaler(), [0])]),
            theirs([("s", preprocessing.StandardScaler(), [0])]),
        )
    else:
        pair = mine(), theirs()
    return pair[0].fit(X, y), pair[1].fit(X, y)


def public(of: Any) -> set[str]:
    return {n for n in dir(of) if n.endswith("_") and not n.startswith("_") and hasattr(of, n)}


@pytest.mark.parametrize("name", PAIRS)
def test_a_fit_has_the_same_attributes(name: str) -> None:
    mine, theirs = fitted(name)
    lacking = public(theirs) - public(mine)
    assert lacking <= LACKING_ATTRIBUTES.get(name, set()), sorted(lacking)


@pytest.mark.parametrize("name", ["MinMaxScaler", "MaxAbsScaler"])
def test_rows_are_counted_with_missing_values(name: str) -> None:
    table = np.array([[1.0, math.nan], [2.0, 3.0], [math.nan, 4.0]])
    mine, theirs = (kind().fit(table) for kind in PAIRS[name])
    assert mine.n_samples_seen_ == theirs.n_samples_seen_ == 3
    mine, theirs = mine.partial_fit(table), theirs.partial_fit(table)
    assert mine.n_samples_seen_ == theirs.n_samples_seen_ == 6


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"drop": "first"},
        {"drop": "if_binary"},
        {"drop": "first", "min_frequency": 3},
        {"drop": "first", "max_categories": 2},
        {"drop": "if_binary", "max_categories": 2},
        {"drop": "first", "min_frequency": 50},
    ],
)
def test_dropped_categories_have_the_same_index(settings: dict[str, Any]) -> None:
    dice = np.random.default_rng(4)
    for _ in range(20):
        rows = int(dice.integers(3, 20))
        table = np.column_stack(
            [dice.integers(0, int(dice.integers(1, 6)), rows) for _ in range(3)]
        ).astype(float)
        theirs = preprocessing.OneHotEncoder(**settings).fit(table)
        mine = ours.OneHotEncoder(**settings).fit(table)
        if theirs.drop_idx_ is None or all(each is None for each in theirs.drop_idx_):
            assert mine.drop_idx_ is None or all(each is None for each in mine.drop_idx_)
            continue
        rare = mine.infrequent_categories_
        for j, (own, their) in enumerate(zip(mine.drop_idx_, theirs.drop_idx_, strict=True)):
            infrequent = rare[j] or []
            own, their = (
                each if each is None or mine.categories_[j][each] not in infrequent else "rare"
                for each in (own, their)
            )
            assert own == their, (settings, j, theirs.categories_[j], infrequent)


def test_weights_reach_a_step_of_scikit_learns_pipeline() -> None:
    X, y, weights = data()  # noqa: N806
    means = []
    for scaler in (ours.StandardScaler(), preprocessing.StandardScaler()):
        made = pipeline.make_pipeline(scaler, LogisticRegression())
        made.fit(X, y, standardscaler__sample_weight=weights)
        means.append(made[0].mean_)
        search = GridSearchCV(made, {"logisticregression__C": [0.1, 1.0]}, cv=2)
        search.fit(X, y, standardscaler__sample_weight=weights)
        means.append(search.best_estimator_[0].mean_)
    for mean in means[1:]:
        np.testing.assert_allclose(mean, means[0])
    assert not np.allclose(means[0], X.mean(axis=0))


def test_weights_are_routed() -> None:
    X, y, weights = data()  # noqa: N806
    with sklearn.config_context(enable_metadata_routing=True):
        scaler = ours.StandardScaler().set_fit_request(sample_weight=True)
        made = pipeline.make_pipeline(
            scaler, LogisticRegression().set_fit_request(sample_weight=False)
        )
        made.fit(X, y, sample_weight=weights)
        columns = compose.ColumnTransformer([("s", scaler, [0, 1])])
        columns.fit_transform(X, y, sample_weight=weights)
    expected = preprocessing.StandardScaler().fit(X, sample_weight=weights).mean_
    for found in (made[0], columns.named_transformers_["s"]):
        np.testing.assert_allclose(found.mean_, expected)


@pytest.mark.parametrize("kind", ["pipeline", "columns"])
def test_weights_reach_the_steps_of_our_own(kind: str) -> None:
    X, y, weights = data()  # noqa: N806
    steps = [("a", ours.StandardScaler()), ("b", ours.MaxAbsScaler())]
    made: Any = (
        ours.Pipeline(steps)
        if kind == "pipeline"
        else ours.ColumnTransformer([(name, step, [0, 1]) for name, step in steps])
    )
    expected = preprocessing.StandardScaler().fit(X, sample_weight=weights).mean_
    out = made.fit_transform(X, y, a__sample_weight=weights)
    np.testing.assert_allclose(made["a"].mean_, expected)
    np.testing.assert_allclose(out, made.fit(X, y, a__sample_weight=weights).transform(X))
    for wrong in ("sample_weight", "c__sample_weight"):
        with pytest.raises(TransformError, match="expected <step>__<argument>.*a, b"):
            made.fit(X, y, **{wrong: weights})
    with pytest.raises(TypeError, match="sample_weight"):
        made.fit(X, y, b__sample_weight=weights)
    with pytest.raises(TypeError, match="sample_weight"):
        ours.TargetEncoder().fit_transform(X, y, sample_weight=weights)
