"""Names that a request, a command or a page takes without a kind mean one definition."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from paimon_features.core.errors import DefinitionError
from paimon_features.core.types.schema import Int64
from paimon_features.definitions import (
    Definitions,
    Entity,
    EventSource,
    FeatureService,
    FeatureView,
    TableSource,
    TableView,
    TumblingView,
)
from paimon_features.definitions.aggregates import Count

SCHEMA = {"id": Int64, "t": Int64, "x": Int64}
USER = Entity("user", keys={"id": Int64})


def feature_view(name: str) -> FeatureView:
    source = EventSource("clicks", SCHEMA, event_time="t")
    return FeatureView(name, source=source, entity=USER, features=[Count(windows=["1d"])])


def table_view(name: str) -> TableView:
    return TableView(name, source=TableSource("rows", SCHEMA, event_time="t"), entity=USER)


def derived_view(name: str) -> TumblingView:
    return TumblingView(name, feature_view("base"), "1d")


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("feature view", feature_view),
        ("table view", table_view),
        ("derived view", derived_view),
    ],
)
@pytest.mark.parametrize("service_first", [False, True])
def test_a_service_needs_a_name_that_no_view_has(
    kind: str, make: Callable[[str], object], service_first: bool
) -> None:
    read = feature_view("base")
    service, view = FeatureService("spend", [read]), make("spend")
    items = [service, view] if service_first else [view, service]
    with pytest.raises(DefinitionError) as error:
        Definitions.of([read, *items])
    assert str(error.value) == f"service 'spend' has the name of a {kind}; rename one"
    # a source may have the name of either: nothing takes a source and a view by a name alone
    assert Definitions.of([read, FeatureService("clicks", [read])]).services
