"""What the names in a request refer to."""

from __future__ import annotations

import pytest

from paimon_features.core.errors import DefinitionError, RequestError, UnknownNameError
from paimon_features.core.types.schema import Int64, String
from paimon_features.definitions import (
    Definitions,
    Entity,
    EventSource,
    FeatureService,
    FeatureView,
    Interaction,
    Selection,
    TableSource,
    TableView,
)
from paimon_features.definitions.aggregates import Count, Last

USER = Entity("user", keys={"user_id": Int64})
CLICKS = EventSource("clicks", schema={"user_id": Int64, "t": Int64}, event_time="t")
PLANS = TableSource(
    "plans",
    schema={"user_id": Int64, "t": Int64, "plan": String},
    event_time="t",
)
VIEW = FeatureView(
    "activity", source=CLICKS, entity=USER, features=[Count(windows=["1h", "1d"]), Last("t")]
)
TABLE = TableView("plan", source=PLANS, entity=USER)
SHARE = Interaction("share", "ratio(activity:count_1h, activity:count_1d, zero=0)")
SERVICE = FeatureService("model", [SHARE, "activity:count_1d"])
DEFINED = Definitions.of([VIEW, TABLE, SHARE, SERVICE])


def names(text: str) -> list[str]:
    return [str(item) for item in DEFINED.resolve(text)]


def test_a_service_or_a_view_refers_to_all_its_features_in_order() -> None:
    assert names("model") == ["share", "activity:count_1d"]
    assert names("activity") == ["activity:count_1h", "activity:count_1d", "activity:last_t"]
    assert names("plan") == ["plan:plan"]


def test_a_reference_or_a_computed_feature_refers_to_itself() -> None:
    for text in ("activity:count_1h", "share"):
        assert names(text) == [str(DEFINED.resolve_one(text))] == [text]


def test_where_one_item_is_expected_a_service_or_a_view_is_an_unknown_name() -> None:
    for text in ("model", "activity", "plan", "shares"):
        with pytest.raises(UnknownNameError, match=f"unknown interaction '{text}'.*share"):
            DEFINED.resolve_one(text)


def test_an_unknown_name_or_a_malformed_reference_is_an_error() -> None:
    with pytest.raises(UnknownNameError, match="unknown service 'models'; available: model"):
        DEFINED.resolve("models")
    for text in (":", "activity:", ":count_1h"):
        with pytest.raises(DefinitionError, match="expected 'view:feature'"):
            DEFINED.resolve(text)


def test_an_online_read_needs_the_feature_views_of_its_outputs_and_no_table_view() -> None:
    outputs = DEFINED.outputs(DEFINED.resolve("model"))
    assert DEFINED.read_views(Selection.of(outputs)) == [VIEW.compiled]
    with pytest.raises(RequestError, match=r"table view 'plan' is read offline only.*'plans'"):
        DEFINED.read_views(Selection.of(DEFINED.outputs(DEFINED.resolve("plan"))))
