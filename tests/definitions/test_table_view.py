"""Table views in a project: defined, planned, applied, read offline, refused online."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from paimon_features.core.errors import DefinitionError, RequestError, UnknownNameError
from paimon_features.core.types.schema import Int64, String, Timestamp
from paimon_features.definitions import (
    Definitions,
    Entity,
    EventSource,
    FeatureService,
    FeatureView,
    TableSource,
    TableView,
)
from paimon_features.definitions.aggregates import Count
from paimon_features.lake.writing.table_writer import EventWriter
from paimon_features.project import Project
from tests.shop_projects import write_project

DEFINITIONS = """
import paimon_features as pf

profiles = pf.TableSource("profiles", event_time="since_ms",
    schema={"user": pf.Int64, "since_ms": pf.Int64, "plan": pf.String})
user = pf.Entity("user", keys={"user": pf.Int64})
profile = pf.TableView("profile", source=profiles, entity=user)
changes = pf.FeatureView("changes", source=profiles, entity=user,
    features=[pf.Count(windows=["7d"])])
service = pf.FeatureService("churn", [profile, changes])
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return write_project(tmp_path, DEFINITIONS)


def test_a_table_view_is_planned_applied_and_read_after_an_ordinary_ingest(
    project: Project,
) -> None:
    planned = [(c.kind, c.name, c.action) for c in project.plan().changes]
    assert ("table_view", "profile", "create") in planned
    project.apply()
    assert project.plan().is_empty
    writer = EventWriter(project.lake, "events_profiles", "since_ms", lambda: 10_000)
    writer.write(pa.table({"user": [1, 1], "since_ms": [5, 9], "plan": ["free", "paid"]}))
    rows = {"user": [1, 1, 2], "event_time_ms": [8, 9, 9]}
    got = project.get_historical_features("profile", rows)
    assert got["plan"].to_pylist() == ["free", "paid", None]
    project.jobs.backfill("changes")
    both = project.get_historical_features("churn", rows)
    assert both.column_names[2:] == ["plan", "count_7d"]
    built = project.build_training_set("churn", "churn", rows)
    assert [pin.table for pin in built.sources] == ["events_profiles", "tiles_changes_g1"]


def test_another_ttl_is_a_change_and_needs_no_table(project: Project) -> None:
    project.apply()
    text = DEFINITIONS.replace(
        "source=profiles, entity=user)", 'source=profiles, entity=user, ttl="1d")'
    )
    (project.root / "features.py").write_text(text)
    changed = [str(c) for c in Project.open(project.root).plan().changes if c.action != "same"]
    assert changed == ["~ table view profile\n    ttl_ms: None -> 86400000"]


def test_the_error_of_an_online_read_says_what_to_do(project: Project) -> None:
    for features in ("churn", "profile:plan"):
        with pytest.raises(RequestError, match=r"'profile' is read offline only .*Last"):
            project.online.fetcher(features)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"edge": "half"}, "edge='half'; expected 'closed', 'open'"),
        ({"source": EventSource("e", schema={"user": Int64, "t": Int64}, event_time="t")},
         "source=EventSource.*; expected TableSource"),
        ({"columns": ["user"]}, "column 'user' of source 's' cannot be a feature; expected one of"),
        ({"columns": ["x", "x"]}, "expected the names of one or more columns, each once"),
    ],
)  # fmt: skip
def test_a_wrong_table_view_is_refused(changes: dict[str, Any], message: str) -> None:
    source = TableSource("s", schema={"user": Int64, "t": Int64, "x": String}, event_time="t")
    valid = {"source": source, "entity": Entity("user", keys={"user": Int64})}
    with pytest.raises(DefinitionError, match=message):
        TableView("v", **{**valid, **changes})


def test_a_table_view_is_shown_and_its_created_time_may_be_a_timestamp() -> None:
    source = TableSource(
        "plans", schema={"user": Int64, "t": Int64, "made": Timestamp, "plan": String},
        event_time="t", created_time="made",
    )  # fmt: skip
    assert source.schema["made"] == Int64
    view = TableView(
        "plan", source=source, entity=Entity("user", keys={"user": Int64}), ttl="7d",
        description="newest <plan>",
    )  # fmt: skip
    assert [feature.name for feature in view.compiled.features] == ["plan"]
    shown = view._repr_html_()
    for text in ("TableView plan", "plans → plan, per user", "7d", "closed", "newest &lt;plan&gt;"):
        assert text in shown


def test_unknown_features_are_named(project: Project) -> None:
    with pytest.raises(UnknownNameError, match="profile:plam.*profile:plan"):
        project.refs("profile:plam")


def test_a_feature_view_and_a_table_view_cannot_share_a_name() -> None:
    source = TableSource("s", schema={"user": Int64, "t": Int64, "x": String}, event_time="t")
    user = Entity("user", keys={"user": Int64})
    views = [
        TableView("same", source=source, entity=user),
        FeatureView("same", source=source, entity=user, features=[Count()]),
    ]
    with pytest.raises(DefinitionError, match="named 'same'"):
        Definitions.of(views)
    with pytest.raises(DefinitionError, match="or Interaction or Transformed or str"):
        FeatureService("s", [source])  # type: ignore[list-item]
