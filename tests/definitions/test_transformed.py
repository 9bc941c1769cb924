"""Transformed features are worked out with their pinned version, or refused with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import DefinitionError, RequestError, UnknownNameError
from paimon_features.core.types.schema import Bool, Float64, Int64, List, String
from paimon_features.definitions import (
    Definitions,
    Entity,
    EventSource,
    FeatureService,
    FeatureView,
    Fitted,
    Interaction,
    RequestSource,
    Transformed,
    load_definitions,
)
from paimon_features.definitions.aggregates import Count, Last, LastN, Sum
from paimon_features.definitions.transformed import CompiledTransformed
from paimon_features.testing.reference.fitted import row_of
from paimon_features.testing.reference.transformed import agrees_transformed, transformed_value
from paimon_features.transformers import (
    FittedVersion,
    HashingEncoder,
    Imputer,
    MinMaxScaler,
    OneHotEncoder,
    Pipeline,
    StandardScaler,
    StoredTransformer,
)
from paimon_features.transformers.fitted_version import write_version
from tests.transformers.numeric import MAKERS

SHOP = EventSource(
    "shop",
    schema={"user": Int64, "t": Int64, "amount": Float64, "word": String, "flag": Bool},
    event_time="t",
)
VIEW = FeatureView(
    "spend",
    source=SHOP,
    entity=Entity("user", keys={"user": Int64}),
    features=[
        Sum("amount", windows=["1d"], scale=2),
        Count(windows=["1d"]),
        Last("word", windows=["1d"]),
        Last("flag", windows=["1d"]),
        LastN("amount", n=2, windows=["1d"]),
        LastN("word", n=2, windows=["1d"]),
    ],
)
NOW = RequestSource("now", schema={"price": Float64})
SHARE = Interaction("share", "ratio(price, spend:sum_amount_1d, zero=0)", request=NOW)
AMOUNT = Transformed("amount_scaled", "spend:sum_amount_1d", Fitted("amount", version=2))


def export(folder: Path, name: str, transformer: StoredTransformer, version: int = 1) -> None:
    write_version(folder, FittedVersion(name, version, transformer, 0))


@pytest.fixture
def fitted(tmp_path: Path) -> Path:
    export(tmp_path, "amount", StandardScaler().fit([[1.0], [3.0]]), 2)
    export(tmp_path, "both", MinMaxScaler().fit([[0.0, 10.0], [1.0, 20.0]]))
    export(tmp_path, "word", OneHotEncoder().fit([["a"], ["b"]]))
    return tmp_path


def of(fitted: Path | None, *items: Any) -> Definitions:
    return Definitions.of([VIEW, *items], fitted=fitted)


def compiled(fitted: Path, *items: Any) -> CompiledTransformed:
    return of(fitted, *items).transformation(items[-1])


def test_the_document_names_version_and_digest(fitted: Path) -> None:
    found = of(fitted, FeatureService("m", [AMOUNT, "spend:count_1d"]))
    assert found.transformed == {"amount_scaled": AMOUNT}
    document = found.by_kind()["transformed"]["amount_scaled"].to_document()
    digest = document["fitted"]["digest"]  # type: ignore[index]
    assert document == {
        "kind": "transformed",
        "name": "amount_scaled",
        "of": ["spend:sum_amount_1d"],
        "fitted": {
            "name": "amount", "version": 2, "kind": "standard_scaler", "digest": digest,
        },
        "type": "float64",
        "description": "",
        "owner": "",
        "tags": {},
    }  # fmt: skip
    assert f'"{digest}"' in (fitted / "amount" / "v2.json").read_text()
    assert found.transformation("amount_scaled") is found.transformation(AMOUNT)
    assert found.services["m"].to_document()["features"] == ["amount_scaled", "spend:count_1d"]
    with pytest.raises(
        UnknownNameError, match="unknown transformed feature 'x'; available: amount_sca"
    ):
        found.transformation("x")


def test_its_inputs_are_included_and_types_are_inferred(fitted: Path) -> None:
    over = Transformed("over", [SHARE, "spend:count_1d"], Fitted("both", 1))
    found = of(fitted, over)
    assert found.interactions == {"share": SHARE}
    assert found.requests == {"now": NOW}
    made = found.transformation(over)
    assert [str(ref) for ref in made.refs] == ["spend:sum_amount_1d", "spend:count_1d"]
    assert made.inputs == {"price": Float64}
    assert made.type == List(Float64, 2)
    by_name = Transformed("over", ["share", "spend:count_1d"], Fitted("both", 1))
    assert str(compiled(fitted, SHARE, by_name).parts[0]) == "share"
    word = Transformed("word", "spend:last_word_1d", Fitted("word", 1))
    assert compiled(fitted, word).type == List(Float64, 2)
    flag = Transformed("flag", "spend:last_flag_1d", Fitted("amount", 2))
    assert compiled(fitted, flag).type == Float64


def test_the_error_of_a_missing_version_names_the_command_that_writes_it(
    fitted: Path, tmp_path: Path
) -> None:
    missing = Transformed("amount_scaled", "spend:sum_amount_1d", Fitted("amount", 3))
    path = fitted / "amount" / "v3.json"
    with pytest.raises(DefinitionError) as error:
        of(fitted, missing)
    assert str(error.value) == (
        "transformed feature 'amount_scaled': fitted transformer 'amount' version 3: no such "
        f"file: {path} (available: v2); 'paimon-features fitted amount 3 --export' writes it from "
        "the lake"
    )
    with pytest.raises(DefinitionError, match=r"pass the folder of exported versions"):
        of(None, AMOUNT)
    damaged = fitted / "amount" / "v2.json"
    damaged.write_text(damaged.read_text().replace("2.0", "2.5"))
    with pytest.raises(DefinitionError, match="'amount_scaled': .*v2.json: its content has the d"):
        of(fitted, AMOUNT)
    # next to the definitions file, wherever that is
    file = tmp_path / "defs" / "features.py"
    file.parent.mkdir()
    file.write_text(
        "import paimon_features as pf\n"
        "s = pf.EventSource('s', schema={'u': pf.Int64, 't': pf.Int64}, event_time='t')\n"
        "v = pf.FeatureView('v', source=s, entity=pf.Entity('u', keys={'u': pf.Int64}),\n"
        "                   features=[pf.Count(windows=['1d'])])\n"
        "x = pf.Transformed('x', 'v:count_1d', pf.Fitted('n', version=1))\n"
    )
    with pytest.raises(DefinitionError, match=str(file.parent / "fitted" / "n" / "v1.json")):
        load_definitions(file)
    export(file.parent / "fitted", "n", StandardScaler().fit([[1.0], [3.0]]))
    assert list(load_definitions(file).transformed) == ["x"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            Transformed("x", "spend:count_1d", Fitted("both", 1)),
            r"'x': both v1 was fitted on 2 columns, and of= names 1: spend:count_1d",
        ),
        (
            Transformed("x", "spend:last_word_1d", Fitted("amount", 2)),
            "spend:last_word_1d is String, and amount v2, a standard_scaler, was fitted on other",
        ),
        (
            Transformed("x", "spend:last_n_amount_2_1d", Fitted("amount", 2)),
            r"is List\(Float64\), and amount v2, a standard_scaler, was fitted on other",
        ),
        (
            Transformed("x", "spend:count_1d", Fitted("word", 1)),
            "spend:count_1d is Int64, and word v1, a one_hot_encoder, was fitted on other values",
        ),
        (
            Transformed("x", "spend:nothing", Fitted("amount", 2)),
            "unknown feature 'nothing' of view 'spend'; available: ",
        ),
        (Transformed("x", "spent:count_1d", Fitted("amount", 2)), "unknown feature view 'spent'"),
        (
            Transformed("x", "other", Fitted("amount", 2)),
            "unknown interaction 'other'; available: none",
        ),
        (
            Transformed("spend", "spend:count_1d", Fitted("amount", 2)),
            "has the name of a feature view",
        ),
        (Transformed("user", "spend:count_1d", Fitted("amount", 2)), "has the name of a key of"),
    ],
)
def test_what_does_not_fit_is_refused(fitted: Path, wrong: Transformed, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        of(fitted, FeatureService("m", [wrong]))


def test_names_of_transformed_features_are_their_own(fitted: Path) -> None:
    again = Transformed("amount_scaled", "spend:count_1d", Fitted("amount", 2))
    with pytest.raises(DefinitionError, match="two different definitions of transformed feature"):
        of(fitted, AMOUNT, again)
    with pytest.raises(DefinitionError, match="'share' has the name of an interaction"):
        of(fitted, SHARE, Transformed("share", "spend:count_1d", Fitted("amount", 2)))
    found = of(fitted, AMOUNT)
    with pytest.raises(RequestError, match="names amount_scaled twice"):
        found.outputs([AMOUNT, AMOUNT])
    for call, message in (
        (lambda: Fitted("amount", 0), "version=0; expected 1 or more"),
        (lambda: Fitted("Amount", 1), "a name starts with a lower-case letter"),
        (lambda: Fitted("amount", True), "version=True"),
        (lambda: Transformed("x", "v:f", "amount"), "fitted='amount'; expected Fitted"),
        (lambda: Transformed("x", [], Fitted("a", 1)), r"of=\[\]; expected 'view:feature'"),
        (lambda: Transformed("x", [1], Fitted("a", 1)), r"of=\[1\]; expected str or Interaction"),
        (lambda: FeatureService("m", [AMOUNT, AMOUNT]), "names amount_scaled twice"),
    ):
        with pytest.raises(DefinitionError, match=message):
            call()  # type: ignore[no-untyped-call]


def apply(made: CompiledTransformed, *columns: list[Any]) -> tuple[list[Any], list[bool] | None]:
    given = [
        Column(
            np.array(
                [0 if v is None else v for v in c], object if isinstance(c[0], str) else float
            ),
            None if None not in c else np.array([v is not None for v in c]),
        )
        for c in columns
    ]
    column, failed = made.apply(given)
    values = column.to_arrow(made.type.arrow).to_pylist()
    return values, None if failed is None else failed.tolist()


def test_null_stays_null_and_a_list_is_null_only_where_all_of_it_is(fitted: Path) -> None:
    assert apply(compiled(fitted, AMOUNT), [3.0, None]) == ([1.0, None], None)
    over = Transformed("over", ["spend:sum_amount_1d", "spend:count_1d"], Fitted("both", 1))
    got = apply(compiled(fitted, over), [0.5, None, 1.0, None], [10, 20, None, None])
    assert got == ([[0.5, 0.0], [None, 1.0], [1.0, None], None], None)


def test_what_cannot_be_transformed_is_null_and_marked_unless_a_null_went_in(fitted: Path) -> None:
    word = compiled(fitted, Transformed("word", "spend:last_word_1d", Fitted("word", 1)))
    got = apply(word, ["a", "z", None])
    assert got == ([[1.0, 0.0], None, None], [False, True, False])
    export(fitted, "word", OneHotEncoder("ignore").fit([["a"], [None]]), 2)
    lenient = compiled(fitted, Transformed("word", "spend:last_word_1d", Fitted("word", 2)))
    assert apply(lenient, ["a", "z", None]) == ([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0]], None)
    export(fitted, "tiny", StandardScaler().fit([[0.0], [5e-150]]))
    tiny = compiled(fitted, Transformed("tiny", "spend:sum_amount_1d", Fitted("tiny", 1)))
    values, failed = apply(tiny, [1e200, 0.0, None])
    assert (values[0], failed) == (None, [True, False, False])
    assert values[1:] == [pytest.approx(-1.0), None]


@pytest.mark.parametrize("name", MAKERS)
def test_each_numeric_kind_is_applied_as_a_loop_over_its_parameters(
    name: str, fitted: Path
) -> None:
    transformer = MAKERS[name]().fit([[1.0, 4.0], [2.5, None], [0.0, 1.0], [4.0, 8.0]])
    export(fitted, "both", transformer, 2)
    parts = ["spend:sum_amount_1d", "spend:count_1d"]
    made = compiled(fitted, Transformed("x", parts, Fitted("both", 2)))
    assert made.type == List(Float64, transformer.width_out)
    columns: tuple[list[Any], list[Any]] = (
        [1.0, None, 3.5, -20.0, None, 2.5],
        [4, 2, None, 1, None, 0],
    )
    values, failed = apply(made, *columns)
    for index, row in enumerate(zip(*columns, strict=True)):
        expected, overflown = transformed_value(made, row)
        assert agrees_transformed(made, values[index], expected)
        assert overflown == bool(failed and failed[index])
    # what is logged with an offset of 8 has no logarithm of -20
    assert bool(failed) == (name == "log")


def test_a_transformer_that_returns_texts_is_rejected_as_a_feature(fitted: Path) -> None:
    export(fitted, "words", Imputer("most_frequent").fit([["a"], [None]]))
    with pytest.raises(
        DefinitionError, match="words v1, of kind imputer, returns texts, .* in a Pipeline"
    ):
        of(fitted, Transformed("x", "spend:last_word_1d", Fitted("words", 1)))
    pipeline = Pipeline([("fill", Imputer("most_frequent")), ("hot", OneHotEncoder())])
    export(fitted, "filled", pipeline.fit([["a"], [None], ["b"]]))
    made = compiled(fitted, Transformed("y", "spend:last_word_1d", Fitted("filled", 1)))
    assert apply(made, ["b", None]) == ([[0.0, 1.0], [1.0, 0.0]], None)


def test_lists_of_texts_are_hashed(fitted: Path) -> None:
    encoder = HashingEncoder(4).fit([[["a"]]])
    export(fitted, "words", encoder)
    words = Transformed("words", "spend:last_n_word_2_1d", Fitted("words", 1))
    made = compiled(fitted, words)
    assert made.type == List(Float64, 4)
    lists = [["a", "b"], ["b", None], [], None]
    got = Column.from_arrow(pa.array(lists, pa.list_(pa.string())))
    column, failed = made.apply([got])
    assert failed is None
    expected = encoder.transform(pa.table({"w": pa.array(lists, pa.list_(pa.string()))}))
    values = column.to_arrow(made.type.arrow).to_pylist()
    assert values == [list(row.values()) for row in expected.to_pylist()]
    for row, value in zip(lists, values, strict=True):
        assert row_of(encoder.to_params(), [row]) == (value, False)
