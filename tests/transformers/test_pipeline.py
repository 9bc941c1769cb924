"""Steps one after another are each step by itself; branches stand side by side."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import TransformError
from paimon_features.core.types.schema import Bool, Float64, Int64, List, String
from paimon_features.testing.reference.fitted import row_of
from paimon_features.transformers import (
    Clip,
    ColumnTransformer,
    FeatureTransformer,
    FittedVersion,
    FrequencyEncoder,
    Frozen,
    HashingEncoder,
    Imputer,
    KBinsDiscretizer,
    LogTransform,
    MinMaxScaler,
    OneHotEncoder,
    Passthrough,
    Pipeline,
    RobustScaler,
    StandardScaler,
    StoredTransformer,
    TargetEncoder,
)
from tests.transformers.forms import FORMS, put, rows_of

ROWS = [[1.0, 5.0], [None, 2.0], [3.0, None], [-4.0, 1.0], [2.5, 9.0], [1.0, 4.0]]
MIXED = [["a", 1.0, "x"], ["b", None, "y"], [None, 3.0, "x"], ["a", 2.0, None], ["c", 8.0, "x"]]
KINDS = {
    "scale": StandardScaler,
    "stretch": lambda: MinMaxScaler((-1, 1)),
    "robust": RobustScaler,
    "log": lambda: LogTransform(signed=True),
    "clip": lambda: Clip(-1.5, 2.0),
    "fill": Imputer,
    "bins": lambda: KBinsDiscretizer(3, encode="ordinal", strategy="uniform"),
    "share": FrequencyEncoder,
    "hot": lambda: OneHotEncoder("ignore"),
}


def mixed() -> ColumnTransformer:
    numbers = Pipeline([("fill", Imputer("median")), ("scale", StandardScaler())])
    return ColumnTransformer([
        ("numbers", numbers, [1]),
        ("hot", OneHotEncoder("ignore"), [0, 2]),
        ("hash", HashingEncoder(3), -1),
        ("share", FrequencyEncoder(handle_unknown="null"), 0),
    ])  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_a_pipeline_is_its_steps_one_after_another_in_every_form(form: str) -> None:
    rng = random.Random(form)
    for _ in range(12):
        names = [rng.choice(list(KINDS)) for _ in range(rng.randrange(1, 5))]
        steps = [(f"{i}_{name}".replace("__", "_"), KINDS[name]()) for i, name in enumerate(names)]
        pipeline = Pipeline(steps).fit(put(form, ROWS))
        data: Any = put(form, ROWS)
        requested: Any = put(form, [[None, 3.0], [7.0, -2.0], [1.0, None], [0.0, 5.0]])
        expected = requested
        for _, step in steps:
            again = FeatureTransformer.from_params(step.to_params())
            assert again.to_params() == type(step).from_params(step.to_params()).to_params()
            expected = step.transform(expected)
            data = step.transform(data)
        got = pipeline.transform(requested)
        assert type(got) is type(expected)
        assert rows_of(got) == rows_of(expected), names
        assert rows_of(Pipeline(steps).fit_transform(put(form, ROWS))) == rows_of(data)


@pytest.mark.parametrize("form", FORMS)
def test_branches_are_the_same_in_every_form(form: str) -> None:
    expected = mixed().fit(MIXED)
    got = mixed().fit(put(form, MIXED))
    assert rows_of(got.transform(put(form, MIXED))) == expected.transform(MIXED)
    assert got.to_params()["branches"][1]["transformer"]["categories"] == [
        ["a", "b", "c", None],
        ["x", "y", None],
    ]


def test_online_offline_and_the_parameters_say_the_same_to_the_bit() -> None:
    made = Pipeline([("columns", mixed()), ("clip", Clip(-1, 1)), ("last", MinMaxScaler())])
    made.fit(MIXED)
    params = json.loads(json.dumps(made.to_params(), allow_nan=False))
    again = FeatureTransformer.from_params(params)
    assert again == made
    assert isinstance(again, StoredTransformer)
    expected = made.transform(MIXED)
    assert again.transform(MIXED) == expected
    assert [row_of(params, row)[0] for row in MIXED] == expected
    for row, whole in zip(MIXED, expected, strict=True):  # one request, as a service has it
        columns = [
            Column(np.array([v], object if j != 1 else float), None if v is not None else
                   np.array([False]))
            for j, v in enumerate(row)
        ]  # fmt: skip
        out = again.apply(columns).columns
        assert [None if c.valid is not None and not c.valid[0] else c.values[0]
                for c in out] == whole  # fmt: skip


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=settings().max_examples // 2, deadline=None)
def test_nested_ones_are_what_their_parameters_say(seed: int) -> None:
    rng = random.Random(seed)

    def numbers(depth: int) -> StoredTransformer:
        if depth and rng.random() < 0.4:
            return Pipeline([(f"s{i}", numbers(depth - 1)) for i in range(rng.randrange(1, 4))])
        # the last digit of a logarithm is NumPy's own
        return KINDS[rng.choice([name for name in KINDS if name != "log"])]()

    def texts() -> StoredTransformer:
        return rng.choice([
            lambda: OneHotEncoder("ignore"), lambda: FrequencyEncoder(handle_unknown="null"),
            lambda: HashingEncoder(3), lambda: HashingEncoder(99, output="index"),
            lambda: OneHotEncoder("infrequent_if_exist", min_frequency=2),
        ])()  # fmt: skip

    def row() -> list[Any]:
        return [
            rng.choice([None, "a", "b", "c"]), rng.choice([None, rng.gauss(0, 3)]),
            rng.choice([None, "x", "y"]), rng.choice([None, float(rng.randrange(5))]),
        ]  # fmt: skip

    made = Pipeline([("columns", ColumnTransformer(
        [("t", texts(), 0), ("n", numbers(2), [1, 3]), ("u", texts(), [2, 0])],
        remainder=rng.choice(["drop", "passthrough"]),
    )), ("last", rng.choice([Clip(-9, 9), StandardScaler(), Imputer()]))])  # fmt: skip
    try:
        made.fit([row() for _ in range(rng.randrange(3, 20))])
    except TransformError as error:  # no output column of nulls only, say
        assert "step '" in str(error)  # noqa: PT017 - most rounds have none
        return
    params = json.loads(json.dumps(made.to_params(), allow_nan=False))
    assert FeatureTransformer.from_params(params) == made
    requested = [row() for _ in range(9)]
    expected = [row_of(params, each)[0] for each in requested]
    got = made.transform(requested)
    for mine, its in zip(got, expected, strict=True):
        pairs = [[None if v is None or v != v else v for v in each] for each in (mine, its)]
        assert pairs[0] == pairs[1]


def test_numbers_in_blocks_are_what_columns_make() -> None:
    rng = np.random.default_rng(1)
    data = rng.normal(size=(40_000, 3)) * [1.0, 10.0, 1e6]
    data[rng.random(data.shape) < 0.01] = np.nan
    made = Pipeline([
        ("inner", Pipeline([("fill", Imputer()), ("scale", StandardScaler())])),
        ("columns", ColumnTransformer([
            ("bins", KBinsDiscretizer(4), [2, 0]), ("log", LogTransform(signed=True), [0, 1]),
        ], remainder="passthrough")),
        ("stretch", MinMaxScaler()),
    ]).fit(data)  # fmt: skip
    whole = made.transform(data)
    by_columns = made.transform(pa.table({f"c{j}": data[:, j] for j in range(3)}))
    np.testing.assert_array_equal(whole, np.column_stack(by_columns.columns))
    np.testing.assert_array_equal(whole[7:8], made.transform(data[7:8]))
    applied = made.apply([Column(data[:, j].copy()) for j in range(3)]).columns
    np.testing.assert_array_equal(whole, np.column_stack([c.values for c in applied]))
    assert made.supports_matrix


def test_values_that_a_step_refuses_are_reported_with_its_name_and_marked_in_services() -> None:
    strict = Pipeline([("fill", Passthrough()), ("hot", OneHotEncoder())]).fit([1.0, 2.0])
    for data in ([[3.0]], np.array([[3.0]]), pa.table({"x0": [3.0]})):
        with pytest.raises(TransformError, match="step 'hot': column 0 has the unknown category"):
            strict.transform(data)
    applied = strict.apply([Column(np.array([1.0, 3.0]))])
    assert applied.failed is not None
    assert applied.failed.tolist() == [False, True]
    log = Pipeline([("scale", StandardScaler()), ("log", LogTransform(2.0))]).fit([0.0, 2.0])
    with pytest.raises(TransformError, match="step 'log': .* column 0 contains -3.0; expected"):
        log.transform(np.array([-2.0]))
    with pytest.raises(TransformError, match="column 0 contains an infinite value"):
        log.transform(np.array([np.inf]))
    branch = ColumnTransformer([("a", OneHotEncoder(), 0)]).fit([["u"], ["v"]])
    with pytest.raises(TransformError, match="step 'a': column 0 has the unknown category 'w'"):
        branch.transform([["w"]])


def test_parts_and_merges_are_exact_where_one_step_learns() -> None:
    def new() -> Pipeline:
        return Pipeline([
            ("log", LogTransform(signed=True)),
            ("columns", ColumnTransformer(
                [("a", MinMaxScaler(), 0), ("b", FrequencyEncoder(), 1)]
            )),
            ("clip", Clip(0, 1)),
        ])  # fmt: skip

    whole = new().fit(ROWS)
    parts = new().partial_fit(ROWS[:2]).partial_fit(ROWS[2:])
    merged = new().fit(ROWS[:4]).merge(new().fit(ROWS[4:]))
    assert whole == parts == merged
    assert whole.transform(ROWS) == merged.transform(ROWS)


def test_steps_that_learn_from_each_other_cannot_be_fitted_in_parts() -> None:
    both = Pipeline([("scale", StandardScaler()), ("stretch", MinMaxScaler())])
    for call in (lambda: both.partial_fit(ROWS), lambda: both.fit(ROWS).merge(both)):
        with pytest.raises(
            TransformError, match="the steps 'scale', 'stretch' are all stateful, and 's"
        ):
            call()
    scaler = StandardScaler().fit(ROWS)
    version = FittedVersion("amounts", 2, scaler, 0)
    for earlier in (Frozen(scaler), version):
        parts = Pipeline([("scale", earlier), ("stretch", MinMaxScaler())])
        parts.partial_fit(ROWS[:3]).partial_fit(ROWS[3:])
        again = Pipeline([("scale", earlier), ("stretch", MinMaxScaler())]).fit(ROWS)
        assert parts.to_params() == again.to_params()
        # the frozen one has not learnt
        assert parts["scale"].transform(ROWS) == scaler.transform(ROWS)
    pinned = parts.to_params()["steps"][0]["transformer"]["version"]
    assert pinned == {"name": "amounts", "version": 2, "digest": version.digest}


def test_targets_reach_the_steps_that_need_them() -> None:
    rng = np.random.default_rng(5)
    cities = rng.choice(list("abc"), 60)
    table = pa.table({"city": cities, "amount": rng.normal(size=60), "t": np.arange(60)})
    y = rng.normal(size=60)

    def new(**settings: Any) -> Pipeline:
        encoder = TargetEncoder(smooth=1.0, **settings)
        branches = ColumnTransformer([("city", encoder, "city")], remainder="passthrough")
        return Pipeline([("columns", branches), ("scale", StandardScaler())])

    by_time = new(event_time="t")
    got = by_time.fit_transform(table, y)
    assert got.column_names == ["city__city", "remainder__amount"]
    assert by_time.names == ("city", "amount")
    alone = TargetEncoder(smooth=1.0).fit_transform(
        table.select(["city"]), y, event_time_ms=np.arange(60)
    )
    # what follows is fitted on what the model sees: encodings of the past
    expected = StandardScaler().fit_transform(alone)
    np.testing.assert_array_equal(got["city__city"], expected["city"])
    later = by_time.transform(table)  # the time may be there, and may not
    assert later == by_time.transform(table.drop_columns("t"))
    with pytest.raises(TransformError, match="event time 't' is not a column"):
        by_time.fit(table.drop_columns("t"), y)
    folds = new().fit(table.drop_columns("t"), y)
    again = new().fit_transform(table.drop_columns("t"), y)
    assert folds.transform(table.drop_columns("t")) != again
    with pytest.raises(TransformError, match="step 'columns': step 'city': .* requires y"):
        new().fit(table.drop_columns("t"))
    with pytest.raises(TransformError, match="steps declare the event times t and u; expected one"):
        Pipeline([("a", TargetEncoder(event_time="t")), ("b", TargetEncoder(event_time="u"))]).fit(
            [1.0], [1.0]
        )


def test_inverses_go_backwards_where_every_step_has_one() -> None:
    made = Pipeline([("scale", StandardScaler()), ("stretch", MinMaxScaler())]).fit(ROWS)
    for row, own in zip(made.inverse_transform(made.transform(ROWS)), ROWS, strict=True):
        assert row == [None if v is None else pytest.approx(v) for v in own]
    both = ColumnTransformer([("hot", OneHotEncoder(), 0), ("scale", StandardScaler(), 1)])
    rows = [["a", 1.0], ["b", 3.0]]
    for form in ("lists", "table", "pandas"):
        data = put(form, rows)
        back = both.fit(data).inverse_transform(both.transform(data))
        assert rows_of(back) == rows
    clipped = Pipeline([("clip", Clip(0, 1)), ("scale", StandardScaler())]).fit(ROWS)
    with pytest.raises(TransformError, match="step 'clip': Clip has no inverse"):
        clipped.inverse_transform(ROWS)
    twice = ColumnTransformer([("a", StandardScaler(), 0), ("b", MinMaxScaler(), 0)]).fit([1.0])
    with pytest.raises(TransformError, match="column 0 is in several branches"):
        twice.inverse_transform([[1.0, 0.0]])
    lost = ColumnTransformer([("a", StandardScaler(), 0)]).fit(ROWS)
    with pytest.raises(TransformError, match="column 1 is in no branch"):
        lost.inverse_transform([1.0])


def test_branches_are_those_of_scikit_learn() -> None:
    compose = pytest.importorskip("sklearn.compose", reason="pip install scikit-learn")
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    frame = put("pandas", [["a", 1.0, 4.0], ["b", 2.0, 5.0], ["a", 4.0, 9.0]])
    theirs = compose.ColumnTransformer([
        ("s", preprocessing.StandardScaler(), ["c", "b"]),
        ("h", preprocessing.OneHotEncoder(sparse_output=False), ["a"]),
        ("d", "drop", ["b"]),
        ("p", "passthrough", ["b"]),
    ])  # fmt: skip
    ours = ColumnTransformer([
        ("s", StandardScaler(), ["c", "b"]), ("h", OneHotEncoder(), "a"), ("d", "drop", "b"),
        ("p", "passthrough", ["b"]),
    ])  # fmt: skip
    expected, got = theirs.fit_transform(frame), ours.fit_transform(frame)
    np.testing.assert_allclose(got.to_numpy(), expected, rtol=1e-15)
    assert list(got.columns) == theirs.get_feature_names_out().tolist()
    short = ColumnTransformer([("h", OneHotEncoder(), "a")], verbose_feature_names_out=False)
    assert list(short.fit_transform(frame).columns) == ["a_a", "a_b"]
    rest = ColumnTransformer([("h", "drop", "a")], remainder=MinMaxScaler()).fit(frame)
    assert list(rest.transform(frame).columns) == ["remainder__b", "remainder__c"]
    assert rest["remainder"].names == ("b", "c")


def test_services_know_what_goes_in_and_out() -> None:
    made = mixed().fit(MIXED)
    assert [made.accepts(0, String), made.accepts(0, Int64)] == [True, False]
    assert [made.accepts(1, Float64), made.accepts(1, String)] == [True, False]
    assert not made.accepts(2, List(String))  # the one-hot encoder does not
    assert not made.is_scalar
    assert Pipeline([("a", StandardScaler()), ("b", Clip(0))]).fit([1.0]).is_scalar
    assert not Pipeline([("a", OneHotEncoder()), ("b", StandardScaler())]).fit([1.0]).is_scalar
    tags = Pipeline([("hash", HashingEncoder(3)), ("clip", Clip(-1, 1))]).fit(["a"])
    assert [tags.accepts(0, List(String)), tags.accepts(0, Bool)] == [True, True]


def test_wrong_use_is_rejected() -> None:
    def reported(call: Any) -> str:
        with pytest.raises(TransformError) as error:
            call()
        return str(error.value)

    step = ("a", StandardScaler())
    assert "needs at least one step" in reported(lambda: Pipeline([]).fit(ROWS))
    assert "two steps are called 'a'" in reported(lambda: Pipeline([step, step]).fit(ROWS))
    assert "a step is called 'a__b'" in reported(
        lambda: Pipeline([("a__b", StandardScaler())]).fit(ROWS)
    )
    assert "'a' is 3; expected a transformer that can be stored, a fit" in reported(
        lambda: Pipeline([("a", 3)]).fit(ROWS)  # type: ignore[list-item]
    )
    assert "this Pipeline is not fitted" in reported(lambda: Pipeline([step]).transform([1.0]))
    assert "unknown step 'b' of this Pipeline; available: a" in reported(
        lambda: Pipeline([step])["b"]
    )
    assert "step 'a': column 0 contains strings; expected numbers" in reported(
        lambda: Pipeline([step]).fit(["x"])
    )
    for columns, message in (
        ([], r"branch 'a': columns=[]; expected names or positions"),
        ([1.5], "branch 'a': columns=[1.5]"),
        (["x"], "names the column 'x', but the data have no names"),
        ([7], "branch 'a': column 7 is out of range; the data have 2 columns"),
    ):
        assert message in reported(
            lambda c=columns: ColumnTransformer([("a", StandardScaler(), c)]).fit(ROWS)
        )
    table = put("table", ROWS)
    assert "branch 'a': unknown column 'x'; available: a, b" in reported(
        lambda: ColumnTransformer([("a", StandardScaler(), "x")]).fit(table)
    )
    assert "every column is dropped" in reported(
        lambda: ColumnTransformer([("a", "drop", [0, 1])]).fit(ROWS)
    )
    assert "'x'; expected a transformer, 'passthrough' or 'drop'" in reported(
        lambda: ColumnTransformer([("a", "x", 0)]).fit(ROWS)
    )
    double = ColumnTransformer(
        [("a", StandardScaler(), 0), ("b", MinMaxScaler(), 0)], verbose_feature_names_out=False
    ).fit(table)
    assert "two output columns are called 'a'" in reported(lambda: double.transform(table))
    frozen = Frozen(StandardScaler().fit([1.0, 2.0]))
    assert "different frozen transformers" in reported(
        lambda: frozen.merge(Frozen(StandardScaler().fit([3.0])))
    )
    made = ColumnTransformer([("a", StandardScaler(), 0)]).fit(ROWS)
    other = ColumnTransformer([("a", StandardScaler(), 1)]).fit(ROWS)
    assert "different branches or columns" in reported(lambda: made.merge(other))
    wrong = made.to_params()
    wrong["branches"][0]["columns"] = [5]
    assert "does not have the columns" in reported(lambda: FeatureTransformer.from_params(wrong))
