"""Definitions files, sources, entities and services."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paimon_features.core.errors import DefinitionError, UnknownNameError
from paimon_features.core.types.schema import Float64, Int32, Int64, String
from paimon_features.definitions import (
    Definitions,
    Entity,
    EventSource,
    FeatureService,
    FeatureView,
    FeedbackSource,
    load_definitions,
)
from paimon_features.definitions.aggregates import Count

FILE = """
import paimon_features as pf
from windows_of_ours import WINDOWS

shop = pf.EventSource("shop", schema={"user_id": pf.Int64, "t": pf.Int64}, event_time="t")
user = pf.Entity("user", keys={"user_id": pf.Int64})
spend = pf.FeatureView("spend", source=shop, entity=user, features=[pf.Count(windows=WINDOWS)])
model = pf.FeatureService("model", ["spend:count_7d", "spend:count_1d"])
"""


def view(name: str, windows: list[str]) -> FeatureView:
    source = EventSource("shop", schema={"user_id": Int64, "t": Int64}, event_time="t")
    user = Entity("user", keys={"user_id": Int64})
    return FeatureView(name, source=source, entity=user, features=[Count(windows=windows)])


def test_a_file_defines_its_top_level_and_may_import_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "windows_of_ours.py").write_text('WINDOWS = ["1d", "7d"]\n')
    (tmp_path / "features.py").write_text(FILE)
    found = load_definitions(tmp_path / "features.py")
    assert (list(found.sources), list(found.views), list(found.entities)) == (
        ["shop"], ["spend"], ["user"],
    )  # fmt: skip
    assert list(map(str, found.service("model").refs())) == ["spend:count_7d", "spend:count_1d"]
    with pytest.raises(UnknownNameError, match="feature view 'spent'.*spend"):
        found.view("spent")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no such definitions file: .*'paimon-features init' writes an example"),
        ("1 +", "does not run: SyntaxError"),
        ("import nothing_like_it", "does not run: ModuleNotFoundError"),
        ("x = 1", "contains no EventSource and no FeatureView"),
        ("import paimon_features as pf\npf.Count(windows='1d')", "expected a list of durations"),
    ],
)
def test_the_error_of_an_unreadable_file_states_the_reason(
    tmp_path: Path, text: str | None, message: str
) -> None:
    path = tmp_path / "features.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DefinitionError, match=message):
        load_definitions(path)


def test_names_are_unique() -> None:
    Definitions.of([view("spend", ["1d"]), view("spend", ["1d"])])
    with pytest.raises(DefinitionError, match="two different definitions of feature view 'spend'"):
        Definitions.of([view("spend", ["1d"]), view("spend", ["2d"])])


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (
            "spent:count_1d",
            "spent:count_1d: unknown feature view 'spent'; available: spend",
        ),
        (
            "spend:count_9d",
            "unknown feature 'count_9d' of view 'spend'; available: count_1d",
        ),
    ],
)
def test_a_service_refers_to_existing_features(reference: str, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        Definitions.of([view("spend", ["1d"]), FeatureService("model", [reference])])


def test_a_service_names_a_feature_once() -> None:
    spend = view("spend", ["1d"])
    with pytest.raises(DefinitionError, match="'model' names spend:count_1d twice"):
        FeatureService("model", [spend, "spend:count_1d"]).refs()
    wrong = ([], "has no features"), ([3], r"features=\[3\]; expected"), (["x"], "'view:feature'")
    for features, message in wrong:
        with pytest.raises(DefinitionError, match=message):
            FeatureService("model", features)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"event_time": "x"}, "event_time: unknown column 'x'; available: a, t"),
        ({"event_time": "a"}, "event_time 'a' is String; expected Timestamp or Int64"),
        ({"retraction": "x"}, "retraction: unknown column 'x'; available: a, t"),
        ({"retraction": "t"}, r"retraction 't' is Int64; expected a Bool .* or a String"),
        ({"event_id": "a"}, "event_id='a' and dedup_horizon=None belong together"),
        ({"dedup_horizon": "1d"}, "event_id=None and dedup_horizon='1d' belong together"),
        ({"event_id": "x", "dedup_horizon": "1d"}, "event_id: unknown column 'x'"),
        ({"event_id": "a", "dedup_horizon": "soon"}, "duration 'soon'"),
        (
            {"event_id": "t", "dedup_horizon": "1d", "retraction": "a"},
            "event_id and the row kinds of 'a' exclude each other",
        ),
        ({"max_skew": "soon"}, "duration 'soon'"),
        (
            {"schema": {"event_day": Int64, "t": Int64}},
            "'event_day' is reserved by the events",
        ),
        ({"schema": {"Bad Name": Int64, "t": Int64}}, "Bad Name"),
        ({"name": "no-dash"}, "no-dash"),
    ],
)
def test_an_invalid_source_is_rejected(changes: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"name": "s", "schema": {"a": String, "t": Int64}, "event_time": "t"}
    with pytest.raises(DefinitionError, match=message):
        EventSource(**{**given, **changes})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "has no keys"),
        ({"x": Float64}, "key 'x' is Float64; a key is Int32, Int64, String, Bool or Date"),
        ({"p_x": Int64}, "'p_x' is reserved by the tile table"),
        ({"tile_day": Int32}, "'tile_day' is reserved by the tile table"),
    ],
)
def test_an_entity_has_keys_that_identify_it(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        Entity("user", keys=keys)


def test_feedback_is_a_source_with_its_own_table() -> None:
    loop = FeedbackSource("churn", {"sample_id": Int64})
    assert loop.table == "feedback_churn"
    assert list(loop.schema)[:4] == ["sample_id", "run_id", "rank", "seq"]


HEAD = """import paimon_features as pf
from paimon_features import Count, Int64

shop = pf.EventSource("shop", schema={"user_id": Int64, "t": Int64, "n": Int64}, event_time="t")
user = pf.Entity("user", keys={"user_id": Int64})
spend = pf.FeatureView("spend", source=shop, entity=user, features=[Count(windows=["1d"])])
"""
"""Six lines."""


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ('\nx = pf.FeatureService("x", ["spend:count_1h"])\n', 8, "did you mean 'count_1d'?"),
        ('x = pf.FeatureService(\n    "x",\n    ["spnd:count_1d"],\n)\n', 7, "you mean 'spend'?"),
        ('x = pf.Interaction("x", "spend:count_1x + 1")\n', 7, "did you mean 'count_1d'?"),
        ('x = pf.Interaction("x", "spent:count_1d + 1")\n', 7, "did you mean 'spend'?"),
        ('x = pf.Interaction("x", "coalesc(spend:count_1d, 0)")\n', 7, "mean 'coalesce'?"),
        (
            'a = pf.Interaction("a", "spend:count_1d + 1")\nb = pf.Interaction("b", "A2 + 1")\n',
            8,
            "did you mean 'a'?",
        ),
        ('x, y = 1, pf.FeatureService("x", ["spend:count_1h"])\n', 7, "did you mean 'count_1d'?"),
        ("if True:\n    x = pf.FeatureService('x', ['spend:count_1h'])\n", 7, "mean 'count_1d'?"),
        (
            'x = pf.FeatureView("v", source=shop, entity=user, features=[Count(where="nn > 1")])\n',
            7,
            "available: n, t, user_id; did you mean 'n'?",
        ),
        ("x = Cuont()\n", 7, "name 'Cuont' is not defined; did you mean 'Count'?"),
        ("x = spned\n", 7, "did you mean 'spend'?"),
        ("x = Featureview()\n", 7, "did you mean 'pf.FeatureView' (import paimon_features as pf)?"),
        ("x = pf.Int64()\n", 7, "Int64 is a type already, and is not called: write pf.Int64"),
        (
            'x = pf.Entity("e", keys={"a": pf.Decimal})\n',
            7,
            "column 'a' is Decimal without arguments; write pf.Decimal(10, 2)",
        ),
        (
            'x = pf.Entity("e", keys={"a": pf.List})\n',
            7,
            "column 'a' is List without arguments; write pf.List(Float32, 3)",
        ),
        (
            'e = pf.Entity("e", keys={"user": Int64})\n'
            'x = pf.FeatureView("v", source=shop, entity=e, features=[Count()])\n',
            8,
            "did you mean 'user_id'?",
        ),
    ],
)
def test_an_error_has_the_line_and_the_name_that_may_be_meant(
    tmp_path: Path, text: str, line: int, message: str
) -> None:
    path = tmp_path / "features.py"
    path.write_text(HEAD + text)
    with pytest.raises(DefinitionError) as caught:
        load_definitions(path)
    shown = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert message in shown
    assert f"{path}, line {line}" in shown
    assert "0x" not in shown
