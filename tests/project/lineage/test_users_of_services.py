"""A service is used by the training sets and models that were made of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paimon_features.models import TrainingPins
from paimon_features.project import Project
from paimon_features.project.lineage.lineage_graph import lineage
from tests.models.networks import manifest, network
from tests.shop_projects import make_project

FEATURES = """
import paimon_features as pf
source = pf.EventSource("clicks", event_time="t", schema={"user": pf.Int64, "t": pf.Int64})
view = pf.FeatureView("visits", source=source, entity=pf.Entity("user", keys={"user": pf.Int64}),
                      features=[pf.Count(windows=["1d"])])
service = pf.FeatureService("%s", [view])
unused = pf.FeatureService("unused_v1", ["visits:count_1d"])
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = manifest()
    project = make_project(
        tmp_path, FEATURES % made.signature.service, '[project]\nname = "shop"\n'
    )
    pins = TrainingPins("training_churn", "3@ab", 900, {})
    files = {"network.onnx": network(1.0).SerializeToString()}
    project.models.register(replace(made, training=pins), files)
    project.models.promote("churn", 1)
    return project


def test_a_service_is_used_by_the_model_that_was_trained_on_it(project: Project) -> None:
    graph = lineage(project.definitions, project.lake)
    [service] = graph.find(manifest().signature.service)
    [model] = graph.children(service)
    assert (model.kind, model.name, model.note) == ("model", "churn", "version 1 production")
    [unused] = graph.find("unused_v1")
    assert list(graph.children(unused)) == []
