"""The public API as the type checkers of users see it: mypy and pyright, in `make lint`.

What is written here has to be accepted, and each `assert_type` has to hold. A line with an ignore
has to be an error: one that is not needed is itself an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, assert_type

import paimon_features as pf
from paimon_features.core.configuration.project_config import ProjectConfig
from paimon_features.core.errors import DefinitionError
from paimon_features.definitions import Definitions
from paimon_features.project import Project
from paimon_features.project.models import ProjectModels
from paimon_features.project.planning.plan import Change, ProjectPlan
from paimon_features.serving.client import AsyncFeatureClient, FeatureClient, FeatureReply
from paimon_features.serving.replies.response import OnlineResponse

SOURCE = pf.EventSource(
    "retail",
    schema={"customer_id": pf.Int64, "at_ms": pf.Int64, "amount": pf.Float64, "tag": pf.String},
    event_time="at_ms",
    owner="growth",
    tags={"tier": "1"},
)
CUSTOMER = pf.Entity("customer", keys={"customer_id": pf.Int64})
SPEND = pf.FeatureView(
    "spend",
    source=SOURCE,
    entity=CUSTOMER,
    tile="5min",
    features=[
        pf.Count(windows=["1h", "7d"]),
        pf.Sum("amount", windows=["1d"], scale=2),
        pf.DecayedSum("amount", half_life="1d", windows=["30d"]),
        pf.Last("tag", windows=["30d"]),
    ],
    max_staleness="5min",
)
BASKET = pf.RequestSource("basket", schema={"price": pf.Float64})
OVER = pf.Interaction("over", "ratio(price, spend:sum_amount_1d, zero=0)", request=BASKET)
SERVICE = pf.FeatureService("churn_v1", [SPEND, OVER], description="what churn reads")

assert_type(SOURCE, pf.EventSource)
assert_type(SPEND, pf.FeatureView)
assert_type(SPEND.name, str)
assert_type(Definitions.of([SERVICE]), Definitions)


def a_project(folder: str) -> None:
    """Plan, apply and read."""
    project = Project.open(folder)
    assert_type(project, Project)
    assert_type(project.config, ProjectConfig)
    plan = project.plan()
    assert_type(plan, ProjectPlan)
    assert_type(plan.changes, tuple[Change, ...])
    assert_type(plan.is_empty, bool)
    assert_type(project.apply(), ProjectPlan)
    entities: dict[str, Sequence[Any]] = {"customer_id": [1, 2]}
    assert_type(project.get_online_features(SERVICE, entities), OnlineResponse)
    assert_type(project.models, ProjectModels)
    assert_type(project.get_online_features(SERVICE, event={"amount": 1.0}), OnlineResponse)
    project.get_online_features()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    project.plan(5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def a_client() -> None:
    """Requests to a feature server."""
    with FeatureClient("http://localhost:6566", token="pf_...") as client:
        assert_type(client, FeatureClient)
        reply = client.get_online_features("churn_v1", {"customer_id": [1]})
        assert_type(reply, FeatureReply)
        assert_type(client.health(), dict[str, Any])


async def an_asynchronous_client() -> None:
    """The same in asyncio."""
    async with AsyncFeatureClient("http://localhost:6566") as client:
        reply = await client.get_online_features("churn_v1", {"customer_id": [1]})
        assert_type(reply, FeatureReply)


def errors_are_a_tree(error: pf.PaimonFeaturesError) -> str:
    """Errors can be told apart."""
    if isinstance(error, DefinitionError):
        assert_type(error.concerns, tuple[str, str] | None)
    return str(error)


def what_is_refused() -> None:
    """Wrong arguments."""
    pf.Count(windows=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    pf.Entity("customer")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
