"""Which features of a service a network reads, and in which form."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from paimon_features.core.errors import ConfigurationError
from paimon_features.core.windows import DAY_MS
from paimon_features.lake.writing.table_writer import EventWriter
from paimon_features.project import Project
from trainer_bridge.training.config import DataConfig
from trainer_bridge.training.training_table import TrainingTable

DEFINITIONS = """
import paimon_features as pf

profiles = pf.TableSource("profiles", event_time="since_ms", schema={
    "user": pf.Int64, "since_ms": pf.Int64, "age": pf.Int32, "plan": pf.String,
    "place": pf.List(pf.Float32, 2), "tags": pf.List(pf.String), "sizes": pf.List(pf.Float64),
    "born": pf.Date, "seen": pf.List(pf.Date)})
user = pf.Entity("user", keys={"user": pf.Int64})
profile = pf.TableView("profile", source=profiles, entity=user)
everything = pf.FeatureService("everything", [profile])
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder: Path = tmp_path_factory.mktemp("profiles")
    (folder / "features.py").write_text(DEFINITIONS)
    (folder / "paimon-features.toml").write_text('[project]\nname = "profiles"\n')
    project = Project.open(folder)
    project.apply()
    schema = project.lake.schema("events_profiles")
    users = range(10)
    columns = {
        "user": users,
        "since_ms": [1] * 10,
        "age": users,
        "plan": ["free"] * 10,
        "place": [[0.5, 1.5]] * 10,
        "tags": [["a"] * (n % 4) for n in users],
        "sizes": [None if n else [] for n in users],
        "born": pa.array(users, pa.int32()).cast(pa.date32()),
        "seen": pa.array([[0]] * 10, pa.list_(pa.int32())).cast(pa.list_(pa.date32())),
    }
    rows = pa.table({n: pa.array(v, schema.field(n).type) for n, v in columns.items()})
    EventWriter(project.lake, "events_profiles", "since_ms", lambda: 10_000).write(rows)
    times = [DAY_MS * n + 5 for n in users]
    asked = pa.table({"user": users, "event_time_ms": times, "won": [n % 2 for n in users]})
    project.build_training_set("all", "everything", asked, label="won")
    return project


def test_lists_are_as_wide_as_their_type_or_the_longest_row(project: Project) -> None:
    data = DataConfig(training_set="all", service="everything", gap="0",
                      exclude=("profile:born", "profile:seen"))  # fmt: skip
    found = TrainingTable.open(project, data).features
    assert [(each.output, each.kind, each.width) for each in found] == [
        ("profile:age", "number", 1),
        ("profile:plan", "text", 1),
        ("profile:place", "vector", 2),
        ("profile:tags", "text_list", 3),
        ("profile:sizes", "number_list", 1),  # no row has an item
    ]


@pytest.mark.parametrize(("name", "kind"), [("born", "date"), ("seen", r"list\(date\)")])
def test_features_that_no_network_reads_are_named(project: Project, name: str, kind: str) -> None:
    others = {"profile:born", "profile:seen"} - {f"profile:{name}"}
    data = DataConfig(training_set="all", service="everything", exclude=tuple(others))
    message = f"feature profile:{name} is {kind}, which no network reads; leave it out: data.exclud"
    with pytest.raises(ConfigurationError, match=message):
        TrainingTable.open(project, data)
