"""What was fitted on a feature is not applied to another one of that name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from paimon_features.core.errors import DefinitionError, TableError
from paimon_features.core.types.schema import Float64, Int64
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions import (
    Definitions,
    Entity,
    EventSource,
    FeatureService,
    FeatureView,
    Interaction,
)
from paimon_features.definitions.aggregates import Aggregate, Count, Max, Mean, Sum
from paimon_features.lake import append_arrow, read_arrow
from paimon_features.project import Project
from paimon_features.transformers import StandardScaler
from tests.shop_projects import make_project

NOW = 1_795_000_000_000
CONFIG = '[project]\nname = "shop"\nengine = "local"\n[online]\nurl = "memory://"\n'
DEFINITIONS = """
import paimon_features as pf

s = pf.EventSource("s", schema={{"k": pf.Int64, "t": pf.Int64, "x": pf.Float64}}, event_time="t")
e = pf.Entity("e", keys={{"k": pf.Int64}})
v = pf.FeatureView("v", source=s, entity=e, where={where!r}, features=[{features}])
"""
PINNED = """
plain = pf.FeatureService("plain", [v])
svc = pf.FeatureService("svc", [pf.Transformed("scaled", "v:f_30d", pf.Fitted("sc", version=1))])
"""
SUM = 'pf.Sum("x", name="f", windows=["30d"])'
ROWS = {"k": [1, 2], "event_time_ms": [NOW, NOW]}


def text(features: str = SUM, where: str | None = None) -> str:
    return DEFINITIONS.format(features=features, where=where)


@pytest.fixture
def fitted(tmp_path: Path) -> Project:
    """A scaler that was fitted on the sum ``v:f_30d``."""
    project = make_project(tmp_path, text(), CONFIG)
    events = [(1, NOW - 1, 10.0), (1, NOW - 2, 11.0), (2, NOW - 3, 30.0), (2, NOW - 4, 31.0)]
    rows = [
        {"k": k, "t": t, "x": x, "event_day": t // DAY_MS, "ingest_time_ms": 0}
        for k, t, x in events
    ]
    schema = project.lake.schema("events_s")
    append_arrow(project.lake, "events_s", pa.Table.from_pylist(rows, schema=schema))
    project.jobs.backfill("v")
    version = project.fitted.fit("sc", StandardScaler(), "v", features=["f_30d"]).version
    project.fitted.export("sc", version)
    return project


def reopened(project: Project, definitions: str) -> Project:
    (project.root / "features.py").write_text(definitions)
    return Project.open(project.root)


def test_a_scaler_of_sums_is_not_applied_to_maxima_of_the_same_name(fitted: Project) -> None:
    shop = reopened(fitted, text() + PINNED)
    shop.apply()
    assert shop.get_historical_features("svc", ROWS)["scaled"].to_pylist() == [-1.0, 1.0]
    changed = reopened(fitted, text(SUM.replace("Sum", "Max")) + PINNED)
    problem = r"'scaled': sc v1 was fitted on 'f_30d', and v:f_30d is defined otherwise .*Fit it"
    plan = {change.name: change for change in changed.plan().changes}
    assert plan["scaled"].action == "change"
    assert any("cannot be read" in detail for detail in plan["scaled"].details)
    changed.apply()
    for call in (
        lambda: changed.get_historical_features("svc", ROWS),
        lambda: changed.get_historical_features(["scaled"], ROWS),
        lambda: changed.build_training_set("a", "svc", ROWS),
        lambda: changed.get_online_features("svc", {"k": [1]}),
        lambda: changed.online.fetcher("svc"),
    ):
        with pytest.raises(DefinitionError, match=problem):
            call()
    assert [str(ref) for ref in changed.refs("plain")] == ["v:f_30d"]
    again = reopened(fitted, text() + PINNED)
    assert again.get_historical_features("svc", ROWS)["scaled"].to_pylist() == [-1.0, 1.0]


@pytest.mark.parametrize(
    ("features", "where"),
    [
        (SUM.replace('windows=["30d"]', 'windows=["30d"], where="x > 1"'), None),
        (SUM.replace('"x"', '"x", scale=2'), None),
        (SUM, "x > 1"),
    ],
)
def test_another_condition_scale_or_view_is_another_feature(
    fitted: Project, features: str, where: str | None
) -> None:
    changed = reopened(fitted, text(features, where) + PINNED)
    with pytest.raises(DefinitionError, match="defined otherwise now"):
        changed.refs("svc")


def test_further_features_and_windows_of_the_view_change_nothing(fitted: Project) -> None:
    windows = SUM.replace('["30d"]', '["30d", "1d"]')
    more = windows + ', pf.Max("x", windows=["1d"]), pf.Count()'
    assert reopened(fitted, text(more) + PINNED).refs("svc")


def test_a_fit_on_a_changed_feature_is_another_version(fitted: Project) -> None:
    changed = reopened(fitted, text(SUM.replace("Sum", "Max")))
    changed.apply()
    changed.jobs.backfill("v")
    from paimon_features.lake.side_folder import generations

    generations.activate(changed.lake, "v", 2)
    assert changed.fitted.fit("sc", StandardScaler(), "v", features=["f_30d"]).version == 2
    changed.fitted.export("sc", 2)
    pinned = PINNED.replace("version=1", "version=2")
    shop = reopened(fitted, text(SUM.replace("Sum", "Max")) + pinned)
    assert shop.get_historical_features("svc", ROWS)["scaled"].to_pylist() == [-1.0, 1.0]


def test_a_scaler_of_a_training_set_is_not_applied_to_another_feature(fitted: Project) -> None:
    fitted.build_training_set("a", ["v:f_30d"], ROWS)
    rows = read_arrow(fitted.lake, "training_a", ["f_30d"])
    fitted.fitted.export(
        "sc2", fitted.fitted.save("sc2", StandardScaler().fit(rows), table="training_a")
    )
    pinned = PINNED.replace('"sc"', '"sc2"')
    assert reopened(fitted, text() + pinned).refs("svc")
    changed = reopened(fitted, text(SUM.replace("Sum", "Max")) + pinned)
    with pytest.raises(DefinitionError, match="sc2 v1 was fitted on 'f_30d'"):
        changed.refs("svc")


def test_rows_are_not_appended_with_another_interaction_of_that_name(fitted: Project) -> None:
    ratio = '\nr = pf.Interaction("r", "ratio(v:f_30d, v:f_30d)")\n'
    features = ["v:f_30d", "r"]
    reopened(fitted, text() + ratio).build_training_set("a", features, ROWS)
    other = reopened(fitted, text() + ratio.replace("ratio", "product"))
    with pytest.raises(TableError, match="features defined otherwise"):
        other.append_training_rows("a", features, {"k": [1], "event_time_ms": [NOW - 1]})


SOURCE = EventSource("s", schema={"k": Int64, "t": Int64, "x": Float64}, event_time="t")


def defined(*features: Aggregate, expression: str = "ratio(v:a, v:b)") -> Definitions:
    view = FeatureView("v", source=SOURCE, entity=Entity("e", {"k": Int64}), features=features)
    return Definitions.of([FeatureService("m", [view, Interaction("r", expression)])])


def digests(definitions: Definitions, names: Sequence[str] = ("r",)) -> list[str]:
    outputs = definitions.outputs(definitions.service("m").items())
    return [definitions.value_definition(o) for o in outputs if str(o) in names]


def test_an_interaction_is_another_one_if_a_feature_that_it_reads_is() -> None:
    plain = defined(Sum("x", name="a"), Count(name="b"))
    assert digests(plain) == digests(defined(Sum("x", name="a"), Count(name="b"), Mean("x")))
    assert digests(plain) != digests(defined(Max("x", name="a"), Count(name="b")))
    other = defined(Sum("x", name="a"), Count(name="b"), expression="product(v:a, v:b)")
    assert digests(plain) != digests(other)
    assert digests(plain, ("v:a", "v:b")) == digests(other, ("v:a", "v:b"))
