"""Every transformer is an estimator of scikit-learn, by scikit-learn's own checks and in use."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

import paimon_features.transformers as package
from paimon_features.core.errors import MissingMethodError, NotFittedError, TransformError
from paimon_features.transformers import (
    Clip,
    FeatureTransformer,
    FrequencyEncoder,
    HashingEncoder,
    Imputer,
    InteractionFeatures,
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    Passthrough,
    RobustScaler,
    StandardScaler,
    StoredTransformer,
    TargetEncoder,
)
from tests.transformers.numeric import MAKERS

sklearn = pytest.importorskip("sklearn", reason="pip install scikit-learn")
from sklearn.base import clone  # noqa: E402
from sklearn.compose import ColumnTransformer as TheirColumns  # noqa: E402
from sklearn.compose import make_column_transformer  # noqa: E402
from sklearn.exceptions import NotFittedError as TheirNotFittedError  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.model_selection import GridSearchCV, cross_val_score  # noqa: E402
from sklearn.pipeline import FeatureUnion, make_pipeline  # noqa: E402
from sklearn.pipeline import Pipeline as TheirPipeline  # noqa: E402
from sklearn.utils.estimator_checks import check_estimator  # noqa: E402
from sklearn.utils.validation import check_is_fitted  # noqa: E402

ENCODERS: dict[str, Callable[[], StoredTransformer]] = {
    "one_hot": lambda: OneHotEncoder("ignore"),
    "one_hot_infrequent": lambda: OneHotEncoder("infrequent_if_exist", max_categories=3),
    "one_hot_drop": lambda: OneHotEncoder("ignore", drop="if_binary"),
    "one_hot_typed": lambda: OneHotEncoder("ignore", dtype=np.float32),
    "frequency": FrequencyEncoder,
    "frequency_count": lambda: FrequencyEncoder(output="count", handle_unknown="null"),
    "hashing": lambda: HashingEncoder(8),
    "hashing_index": lambda: HashingEncoder(100, output="index"),
    "target": TargetEncoder,
    "target_smooth": lambda: TargetEncoder(smooth=2.0, cv=2),
}
ALL = {
    **MAKERS,
    **ENCODERS,
    "passthrough": Passthrough,
    "impute_marker": lambda: Imputer(missing_values=-1.0),
    "bins_typed": lambda: KBinsDiscretizer(3, dtype=np.float32),
}

EXPECTED = {
    "check_fit1d": "one dimension is one column, as of lists, Arrow arrays and series",
    "check_transformer_data_not_an_array": "lists come out as lists, not as arrays",
}
"""Checks of scikit-learn that no transformer passes, and why; the docs list them."""

EXPECTED_OF = {
    HashingEncoder: {
        "check_positive_only_tag_during_fit": "fractional numbers are refused, negative or not",
    },
}
EXPECTED_WITH = {
    "target_smooth": {
        "check_transformer_general": "fit_transform encodes rows by the targets of other rows",
    },
}
NO_WEIGHTS = dict.fromkeys(
    (
        "check_sample_weights_pandas_series",
        "check_sample_weights_not_an_array",
        "check_sample_weights_list",
        "check_sample_weights_not_overwritten",
        "check_sample_weights_shape",
        "check_sample_weight_equivalence_on_dense_data",
    ),
    "k-means, a grid and a linear percentile take no weights",
)
EXPECTED_WITH |= dict.fromkeys(
    ("bins_linear", "bins_k_means", "bins_grid", "bins_grid_lower"), NO_WEIGHTS
)
NEAR = {"rtol": 1e-12, "atol": 1e-14}
"""Sums over columns and over a matrix round in another order."""

NOT_FITTED_BY_ARGUMENTS = {"ColumnTransformer", "Frozen", "Pipeline"}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        # that our classes do not inherit from BaseEstimator; that a solver did not converge
        warnings.filterwarnings("ignore", category=UserWarning, module="sklearn")
        yield


def data(name: str) -> tuple[pd.DataFrame, Any]:
    """Rows that a transformer takes and a target of two classes."""
    dice = np.random.default_rng(3)
    values = dice.integers(0, 4, (60, 2)) if name in ENCODERS else dice.uniform(0, 5, (60, 2))
    frame = pd.DataFrame(values, columns=["a", "b"], index=range(100, 160))
    return frame, (values[:, 0] > 2).astype(int)


def test_every_transformer_of_the_package_is_checked() -> None:
    classes = {
        name
        for name in package.__all__
        if isinstance(getattr(package, name), type)
        and issubclass(getattr(package, name), StoredTransformer)
        and name != "StoredTransformer"
    }
    assert classes - NOT_FITTED_BY_ARGUMENTS == {type(make()).__name__ for make in ALL.values()}


@pytest.mark.parametrize("name", [n for n in ALL if n not in ("bins_ordinal", "interaction_ratio",
                                                              "interaction_all")])  # fmt: skip
def test_checks_of_scikit_learn_pass(name: str) -> None:
    # settings for two columns are no estimators of any number of columns: left out above
    transformer = ALL[name]()
    expected = {**EXPECTED, **EXPECTED_OF.get(type(transformer), {}), **EXPECTED_WITH.get(name, {})}
    results = check_estimator(
        transformer, expected_failed_checks=expected, on_fail=None, on_skip=None
    )
    failed = {
        each["check_name"]: each["exception"] for each in results if each["status"] == "failed"
    }
    assert failed == {}
    skipped = {each["check_name"] for each in results if each["status"] == "skipped"}
    assert skipped <= {"check_array_api_input"}
    assert len(results) > 35


@pytest.mark.parametrize("name", ALL)
def test_expected_failures_still_fail(name: str) -> None:
    # one dimension, and lists: documented, so that a change is noticed
    transformer = clone(ALL[name]())
    frame, y = data(name)
    one_column = frame[["a"]].to_numpy()
    if name not in ("bins_ordinal", "interaction_ratio", "interaction_all"):
        flat = clone(transformer).fit(one_column[:, 0], y)
        assert flat.n_features_in_ == 1
        assert flat == clone(transformer).fit(one_column, y)
    assert isinstance(transformer.fit(frame.to_numpy().tolist(), y).transform([[1, 2]]), list)


@pytest.mark.parametrize("name", ALL)
def test_ordinary_uses_work(name: str) -> None:
    one, (frame, y) = ALL[name](), data(name)
    array = frame.to_numpy()
    assert clone(one).get_params() == one.get_params()
    assert repr(clone(one)) == repr(one)
    assert repr(one).startswith(type(one).__name__ + "(")

    model = LogisticRegression(max_iter=1000)
    made = make_pipeline(clone(one), StandardScaler(), model)
    assert len(made.fit(frame, y).predict(frame)) == 60
    assert len(cross_val_score(made, array, y, error_score="raise", cv=3)) == 3
    own = next(iter(one.get_params()), None)
    if own is not None:
        search = GridSearchCV(
            TheirPipeline([("own", clone(one)), ("model", model)]),
            {f"own__{own}": [one.get_params()[own]]}, cv=3, error_score="raise",
        )  # fmt: skip
        assert search.fit(array, y).best_params_
    names = make_pipeline(clone(one), StandardScaler()).fit(frame, y).get_feature_names_out()
    fitted = clone(one).fit(frame, y)
    assert names.tolist() == fitted.get_feature_names_out().tolist()
    assert names.tolist() == fitted.names_out(["a", "b"])
    assert fitted.feature_names_in_.tolist() == ["a", "b"]

    union = FeatureUnion([("l", clone(one)), ("r", clone(one))]).fit(frame, y)
    assert union.transform(frame).shape == (60, 2 * len(names))
    branches = TheirColumns([("own", clone(one), ["a", "b"])], remainder="passthrough")
    wide = frame.assign(c=1.0)
    assert branches.fit(wide, y).transform(wide).shape == (60, len(names) + 1)
    table = branches.set_output(transform="pandas").fit(wide, y).transform(wide)
    assert table.columns.tolist() == [*(f"own__{each}" for each in names), "remainder__c"]
    assert table.index.tolist() == frame.index.tolist()

    again = pickle.loads(pickle.dumps(fitted))
    stored = FeatureTransformer.from_params(json.loads(json.dumps(fitted.to_params())))
    expected = fitted.transform(array)
    for other in (again, stored, clone(one).fit(array, y)):
        np.testing.assert_allclose(other.transform(array), expected, **NEAR)
    for shown in (one, fitted, made):
        assert type(one).__name__ in shown._repr_html_()
    assert set(one._repr_mimebundle_()) == {"text/plain", "text/html"}
    with sklearn.config_context(enable_metadata_routing=True):
        made.fit(frame, y)


@pytest.mark.parametrize("name", ALL)
def test_set_output_has_names_and_index_in_every_form(name: str) -> None:
    frame, y = data(name)
    array = frame.to_numpy()
    plain = ALL[name]().fit(array, y)
    expected, names = plain.transform(array), plain.get_feature_names_out().tolist()
    trained = ALL[name]().fit_transform(array, y)
    for form, kind in (("pandas", pd.DataFrame), ("polars", pl.DataFrame)):
        own = ALL[name]().set_output(transform=form)
        for given in (array, array.tolist(), frame, pl.DataFrame(frame)):
            out = own.fit(given, y).transform(given)
            assert isinstance(out, kind)
            np.testing.assert_allclose(out.to_numpy().astype(float), expected, **NEAR)
        assert list(own.fit(array, y).transform(array).columns) == names
        np.testing.assert_array_equal(own.fit_transform(array, y).to_numpy().astype(float), trained)
        assert isinstance(clone(own).fit(array, y).transform(array), kind)
    pandas = ALL[name]().set_output(transform="pandas").fit(frame, y)
    assert pandas.transform(frame).index.equals(frame.index)
    assert pandas.transform(array).index.equals(pd.RangeIndex(60))
    with sklearn.config_context(transform_output="polars"):
        assert isinstance(plain.transform(array), pl.DataFrame)
    assert isinstance(plain.transform(array), np.ndarray)
    with pytest.raises(TransformError, match="expected one of: default, pandas, polars"):
        plain.set_output(transform="arrow")


@pytest.mark.parametrize("name", ALL)
def test_an_error_of_an_unfitted_one_is_that_of_scikit_learn_too(name: str) -> None:
    one, (frame, y) = ALL[name](), data(name)
    with pytest.raises(TheirNotFittedError):
        check_is_fitted(one)
    for use in (
        lambda: one.transform(frame), lambda: one.n_features_in_, one.get_feature_names_out,
    ):  # fmt: skip
        with pytest.raises(TheirNotFittedError, match="is not fitted; call fit") as error:
            use()
        assert isinstance(error.value, NotFittedError)
        assert type(pickle.loads(pickle.dumps(error.value))) is type(error.value)
    assert not hasattr(one, "feature_names_in_")
    assert not [each for each in vars(one) if each not in one.get_params(deep=False)]
    check_is_fitted(one.fit(frame, y))
    with pytest.raises(TransformError, match="input_features is not equal to feature_names_in_"):
        one.get_feature_names_out(["b", "a"])
    with pytest.raises(TransformError, match=r"number of features \(2\), got 1"):
        one.fit(frame.to_numpy(), y).get_feature_names_out(["b"])
    assert not hasattr(one, "feature_names_in_")


@pytest.mark.parametrize("name", ALL)
def test_parameters_set_after_a_fit_count_from_the_next_one(name: str) -> None:
    one, (frame, y) = ALL[name](), data(name)
    before = one.fit(frame, y).to_params()
    out = one.transform(frame)
    others = {
        key: not value if isinstance(value, bool) else "other"
        for key, value in one.get_params().items()
        if key != "event_time"
    }
    one.set_params(**others)
    assert one.get_params() | others == one.get_params()
    pd.testing.assert_frame_equal(one.transform(frame), out)
    assert one.to_params() == before
    with pytest.raises(TransformError, match="Invalid parameter 'power' for estimator"):
        one.set_params(power=3)
    if any(value == "other" for value in others.values()):
        with pytest.raises(TransformError, match="other"):
            one.fit(frame, y)


def test_a_setting_is_refused_by_fit_with_what_it_has_to_be() -> None:
    for wrong, message in (
        (StandardScaler(with_mean="x"), "StandardScaler: with_mean='x'; expected True or False"),
        (MinMaxScaler((0, "x")), "MinMaxScaler: feature_range=(0, 'x'); expected two numbers"),
        (OneHotEncoder(max_categories=1.5), "max_categories=1.5; expected 1 or more"),
        (HashingEncoder(2.5), "HashingEncoder: n_features=2.5; expected 1 to 2147483647"),
        (RobustScaler(grid=3), "RobustScaler: grid=3; expected the edges of bins"),
        (TargetEncoder(event_time=3), "event_time=3; expected the name of a column"),
        (InteractionFeatures(3), "interactions=3; expected a list of triples"),
    ):
        with pytest.raises(TransformError) as error:
            wrong.fit([[1.0], [2.0]], [1.0, 2.0])
        assert message in str(error.value)


def test_a_method_that_parameters_exclude_is_missing() -> None:
    for one in (RobustScaler(), KBinsDiscretizer(strategy="kmeans"), Imputer("median")):
        assert not hasattr(one, "partial_fit")
        with pytest.raises(MissingMethodError, match="all data at once|at once; fit"):
            one.partial_fit([[1.0]])
    for one in (Imputer(), OneHotEncoder(), FrequencyEncoder(), Clip(0, 1), HashingEncoder(4)):
        assert hasattr(one, "inverse_transform") == isinstance(one, OneHotEncoder)
    assert hasattr(Imputer(add_indicator=True), "inverse_transform")
    with pytest.raises(MissingMethodError, match="Clip has no inverse: values outside"):
        Clip(0, 1).inverse_transform([[1.0]])
    for two in (RobustScaler(grid=[1.0]), KBinsDiscretizer(strategy="uniform"), MaxAbsScaler()):
        assert two.partial_fit([[1.0]]).n_features_in_ == 1


def test_data_that_cannot_be_taken_are_refused_in_the_words_of_scikit_learn() -> None:
    from scipy import sparse

    fitted = StandardScaler().fit(np.eye(3))
    for use, message in (
        (lambda: fitted.transform(np.ones((1, 2))), "X has 2 features, but StandardScaler is expe"),
        (lambda: fitted.transform(np.ones(3)), "Reshape your data"),
        (lambda: fitted.fit(np.ones((0, 3))), "Found array with 0 sample(s) (shape=(0, 3)) while"),
        (lambda: fitted.fit(np.ones((3, 0))), "Found array with 0 feature(s) (shape=(3, 0)) while"),
        (lambda: fitted.fit(sparse.csr_array(np.eye(3))), "Sparse data was passed, a csr_array"),
        (lambda: fitted.fit(np.ones((2, 2)) * 1j), "Complex data not supported"),
    ):
        with pytest.raises(TransformError) as error:
            use()
        assert message in str(error.value)


def test_metadata_requests_pass_event_times() -> None:
    frame = pd.DataFrame({"a": ["x", "x", "y", "y"] * 3})
    y, times = np.arange(12.0) + 0.5, np.arange(12) * 10
    encoder = TargetEncoder(smooth=1.0, label_delay_ms=15, target_type="continuous")
    expected = encoder.fit_transform(frame, y, event_time_ms=times)
    with sklearn.config_context(enable_metadata_routing=True):
        requested = clone(encoder.set_fit_request(event_time_ms=True))
        made = make_pipeline(requested, Passthrough()).fit_transform(frame, y, event_time_ms=times)
    pd.testing.assert_frame_equal(made, expected)
    with pytest.raises(
        TransformError,
        match="of StandardScaler.fit 'groups'; available: sample_w",
    ):
        StandardScaler().set_fit_request(groups=True)


def test_make_column_transformer_of_ours() -> None:
    frame = pd.DataFrame({"n": [1.0, 3.0], "word": ["u", "v"]})
    made = make_column_transformer(
        (StandardScaler(), ["n"]), (OneHotEncoder(), ["word"]), verbose_feature_names_out=False
    ).set_output(transform="polars")
    out = made.fit_transform(frame)
    assert out.to_dict(as_series=False) == {
        "n": [-1.0, 1.0], "word_u": [1.0, 0.0], "word_v": [0.0, 1.0],
    }  # fmt: skip


WITHOUT = """
import sys
for name in ("sklearn", "scipy", "pandas", "polars"):
    sys.modules[name] = None
import json, pickle
from paimon_features.transformers import *
one = StandardScaler(with_mean=False)
print(one, one.get_params(), one.set_params(with_std=True) is one)
try:
    one.transform([[1.0]])
except AttributeError as error:
    print(type(error).__name__, error)
one.fit([[1.0], [3.0]], y=None)
print(one.transform([[2.0]]), one.n_features_in_, one.get_feature_names_out().tolist())
print(one._repr_html_(), pickle.loads(pickle.dumps(one)) == one)
try:
    one.set_output(transform="pandas").transform([[2.0]])
except ImportError as error:
    print(error)
"""


def test_everything_of_the_protocol_works_without_scikit_learn() -> None:
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WITHOUT)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert run.stdout.splitlines() == [
        "StandardScaler(with_mean=False) {'copy': True, 'with_mean': False, 'with_std': True} True",
        "NotFittedError this StandardScaler is not fitted; call fit() first",
        "[[2.0]] 1 ['x0']",
        "<pre>StandardScaler(with_mean=False)</pre> True",
        "set_output(transform='pandas') needs the package pandas",
    ]
