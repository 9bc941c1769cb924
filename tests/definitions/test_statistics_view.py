"""Statistics views: what they keep, and where a view without keys has its place."""

from __future__ import annotations

import pytest

import paimon_features as pf
from paimon_features.core.errors import DefinitionError, RequestError
from paimon_features.definitions import Definitions

SHOP = pf.EventSource(
    "shop",
    schema={"t": pf.Int64, "price": pf.Float64, "items": pf.Int32, "country": pf.String},
    event_time="t",
)


def test_it_has_the_aggregates_of_each_column_and_no_key() -> None:
    view = pf.statistics_view(
        "kept",
        SHOP,
        [
            pf.Numbers("price", scale=2, edges=[0, 1]),
            pf.Numbers("cents"),
            pf.Categories("country", ["FR", "other"]),
        ],
        derive={"cents": "items * 100"},
        tile="1d",
    )
    assert [feature.name for feature in view.compiled.features] == [
        "count_price", "stddev_price", "min_price", "max_price", "histogram_price",
        "count_cents", "stddev_cents", "min_cents", "max_cents",
        "count_country", "count_by_country",
    ]  # fmt: skip
    assert (view.compiled.keys, view.compiled.is_online) == ({}, False)
    assert [*view.derived] == ["cents"]
    with pytest.raises(RequestError, match="'kept' has no keys: it aggregates all events"):
        view.compiled.check_online()


def test_its_features_cannot_be_read_for_an_entity() -> None:
    view = pf.statistics_view("kept", SHOP, [pf.Numbers("price")])
    service = pf.FeatureService("model", [view])
    with pytest.raises(DefinitionError, match="service 'model': feature view 'kept' has no keys"):
        Definitions.of([service])


def test_an_invalid_statistics_view_is_rejected() -> None:
    with pytest.raises(DefinitionError, match="'kept' names no column"):
        pf.statistics_view("kept", SHOP, [])
    with pytest.raises(DefinitionError, match="names the column 'price' twice"):
        pf.statistics_view("kept", SHOP, [pf.Numbers("price"), pf.Categories("price", ["a"])])
    with pytest.raises(DefinitionError, match="unknown column"):
        pf.statistics_view("kept", SHOP, [pf.Numbers("cost")])
    with pytest.raises(DefinitionError, match="entity 'customer' has no keys"):
        pf.Entity("customer", keys={})
    with pytest.raises(DefinitionError, match="buckets=2; a view without keys has one"):
        pf.FeatureView("kept", source=SHOP, entity=pf.everything, features=[pf.Count()])
