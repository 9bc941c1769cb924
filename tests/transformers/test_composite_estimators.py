"""Our pipelines and branches are estimators, and take fitted transformers of scikit-learn."""

from __future__ import annotations

import json
import math
import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest

from paimon_features.core.errors import MissingMethodError, TransformError
from paimon_features.transformers import (
    Clip,
    ColumnTransformer,
    FeatureTransformer,
    FittedVersion,
    Frozen,
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    Pipeline,
    RobustScaler,
    StandardScaler,
    StoredTransformer,
    TargetEncoder,
)
from tests.transformers.test_estimators import EXPECTED

sklearn = pytest.importorskip("sklearn.preprocessing", reason="pip install scikit-learn")
from sklearn.base import clone  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.model_selection import GridSearchCV  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.utils.estimator_checks import check_estimator  # noqa: E402

COMPOSITES: dict[str, Callable[[], StoredTransformer]] = {
    "pipeline": lambda: Pipeline([("scale", StandardScaler()), ("clip", Clip(-3, 3))]),
    "two stateful": lambda: Pipeline([("scale", StandardScaler()), ("most", MaxAbsScaler())]),
    "branches": lambda: ColumnTransformer(
        [("scale", StandardScaler(), [0])], remainder="passthrough"
    ),
    "nested": lambda: ColumnTransformer(
        [("steps", Pipeline([("a", RobustScaler()), ("b", MinMaxScaler())]), [-1])],
        remainder=MaxAbsScaler(),
    ),
}
IN_PLACE = {
    "check_estimators_overwrite_params": "fit fits the steps themselves, as a Pipeline of "
    "scikit-learn does",
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="sklearn")
        yield


@pytest.mark.parametrize("name", COMPOSITES)
def test_checks_of_scikit_learn_pass(name: str) -> None:
    results = check_estimator(
        COMPOSITES[name](), expected_failed_checks={**EXPECTED, **IN_PLACE},
        on_fail=None, on_skip=None,
    )  # fmt: skip
    assert {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"} == {}
    assert len(results) > 35


@pytest.mark.parametrize("name", COMPOSITES)
def test_clones_are_not_fitted_and_parameters_of_steps_are_set(name: str) -> None:
    one, data = COMPOSITES[name](), np.random.default_rng(0).normal(size=(20, 3))
    fitted = one.fit(data)
    other = clone(fitted)
    assert (other.width, fitted.width) == (0, 3)
    assert repr(other) == repr(one)
    assert other.fit(data) == fitted
    np.testing.assert_array_equal(
        pickle.loads(pickle.dumps(fitted)).transform(data), fitted.transform(data)
    )
    assert fitted.set_output(transform="pandas").transform(data).columns.tolist() == (
        fitted.get_feature_names_out().tolist()
    )
    assert type(one).__name__ in one._repr_html_()
    assert hasattr(one, "partial_fit") == (name in ("pipeline", "branches"))
    with pytest.raises(TransformError, match="Invalid parameter 'power'"):
        one.set_params(power=1)


def test_steps_are_replaced_and_searched_by_name() -> None:
    made = Pipeline([("scale", StandardScaler()), ("clip", Clip(-3, 3))])
    made.set_params(scale=MinMaxScaler(), scale__feature_range=(0, 2), clip__high=1)
    assert made.fit([[0.0], [4.0]]).transform([[1.0], [4.0]]) == [[0.5], [1.0]]
    frame = pd.DataFrame({"n": np.arange(12.0), "word": ["x", "y", "z"] * 4})
    y = [0, 1] * 6
    inputs = ColumnTransformer(
        [("bins", KBinsDiscretizer(2), ["n"]), ("word", OneHotEncoder("ignore"), "word")]
    )
    search = GridSearchCV(
        make_pipeline(inputs, LogisticRegression()),
        {"columntransformer__bins__n_bins": [2, 3], "columntransformer__word": ["drop"]},
        cv=2, error_score="raise",
    ).fit(frame, y)  # fmt: skip
    best = search.best_estimator_[0]
    assert best["bins"].n_bins in (2, 3)
    assert [name for name, _, _ in best.branches_] == ["bins"]


def test_targets_pass_from_their_pipeline_into_ours() -> None:
    frame = pd.DataFrame({"word": ["x", "y"] * 10})
    y = np.arange(20) % 2 + 0.5
    ours = ColumnTransformer([("word", TargetEncoder(smooth=1.0), "word")])
    model = make_pipeline(clone(ours), StandardScaler())
    expected = StandardScaler().fit_transform(clone(ours).fit_transform(frame, y))
    pd.testing.assert_frame_equal(model.fit_transform(frame, y), expected)


def test_why_a_method_is_missing_is_said() -> None:
    for made, message in (
        (COMPOSITES["two stateful"](), "'scale', 'most' are all stateful"),
        (COMPOSITES["nested"](), "step 'steps': step 'a': a RobustScaler without a grid"),
        (Pipeline([("a", RobustScaler())]), "step 'a': a RobustScaler without a grid"),
    ):
        with pytest.raises(MissingMethodError, match=message):
            made.partial_fit([[1.0]])
    with pytest.raises(TransformError, match="steps=3; expected a list of tuples"):
        Pipeline(3).partial_fit([[1.0]])  # type: ignore[arg-type]
    with pytest.raises(TransformError, match=r"contains \('a',\); expected tuples of 3"):
        ColumnTransformer([("a",)]).fit([[1.0]])  # type: ignore[list-item]


def test_frozen_steps_and_versions_stay_fitted_in_a_clone() -> None:
    scaler = StandardScaler().fit([[1.0], [3.0]])
    version = FittedVersion("amount", 2, scaler, 5)
    for step in (Frozen(scaler), version):
        made = clone(Pipeline([("pinned", step), ("clip", Clip(0, 5))]))
        assert made.fit([[100.0]]).transform([[5.0]]) == [[3.0]]
        assert made.partial_fit([[9.0]]).transform([[5.0]]) == [[3.0]]


def cases(dice: np.random.Generator) -> Iterator[tuple[Any, Any]]:
    """Transformers of scikit-learn that are fitted, and data for them."""
    table = dice.normal(size=(int(dice.integers(2, 80)), 3)) * 10.0 ** dice.integers(-3, 6, 3)
    if dice.random() < 0.3:
        table[dice.random(table.shape) < 0.2] = math.nan
        table[0] = 1.0
    words = pd.DataFrame({"w": dice.choice(["b", "a", "c"], 9), "n": dice.integers(0, 4, 9)})
    words["w"] = words["w"].astype(object)
    yield sklearn.StandardScaler(), table
    yield sklearn.StandardScaler(with_mean=False), table
    yield sklearn.StandardScaler(with_std=False), table
    yield sklearn.MinMaxScaler((-1, 2), clip=True), table
    yield sklearn.MaxAbsScaler(), table
    yield sklearn.QuantileTransformer(n_quantiles=2), table
    yield (
        sklearn.PolynomialFeatures(interaction_only=True, include_bias=False),
        np.nan_to_num(table),
    )
    yield sklearn.OneHotEncoder(sparse_output=False), words
    yield sklearn.OneHotEncoder(sparse_output=False, drop="first"), words
    yield (
        sklearn.OneHotEncoder(
            sparse_output=False, categories=[["c", "a", "b"], [0, 1, 2, 3]], handle_unknown="ignore"
        ),
        words,
    )


def test_fitted_transformers_of_scikit_learn_are_steps_with_the_same_bits() -> None:
    dice, exact = np.random.default_rng(0), 0
    for _ in range(30):
        for theirs, data in cases(dice):
            theirs.fit(data)
            expected = theirs.transform(data)
            made = Pipeline([("theirs", theirs)])
            try:
                made.fit(data)
            except TransformError as error:
                # a variance that is no sum of squares divided by the number of rows
                assert "is not one that ours can have" in str(error)  # noqa: PT017
                continue
            exact += 1
            got = made.transform(data)
            np.testing.assert_array_equal(np.asarray(got, float), expected)
            again = FeatureTransformer.from_params(json.loads(json.dumps(made.to_params())))
            np.testing.assert_array_equal(np.asarray(again.transform(data), float), expected)
            assert made.partial_fit(data).transform(data[:1]) is not None
            if isinstance(data, pd.DataFrame):
                assert made["theirs"].names == ("w", "n")
    assert exact > 250


def test_a_step_of_scikit_learn_that_has_no_exact_state_is_refused_by_name() -> None:
    data = np.array([[1.0], [2.0], [4.0]])
    fitted = sklearn.OneHotEncoder(max_categories=2).fit(data)
    for theirs, message in (
        (sklearn.StandardScaler(), "this StandardScaler of scikit-learn is not fitted"),
        (sklearn.PowerTransformer().fit(data), "a PowerTransformer of scikit-learn cannot be a"),
        (fitted, "infrequent categories has no counts"),
        (sklearn.OneHotEncoder(drop=[1.0]).fit(data), "dropped by name is not supported"),
        (sklearn.PolynomialFeatures().fit(data), "expected degree=2, interaction_only=True"),
        (sklearn.OneHotEncoder(handle_unknown="warn").fit(data), "handle_unknown='warn'"),
    ):
        with pytest.raises(TransformError, match=message):
            Pipeline([("a", theirs)]).fit(data)
    # every deviation below n units in the last place is a constant to scikit-learn
    near_constant = np.array([[1.0], [1.0 + 40 * 2.0**-52]] * 500)
    with pytest.raises(TransformError, match="scale_ of this StandardScaler of scikit-learn"):
        Pipeline([("a", sklearn.StandardScaler().fit(near_constant))]).fit(near_constant)
