"""A trained model from its registry to /predict: online scores are the offline scores."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("hydra", reason="configurations of training runs")
pytest.importorskip("lightning", reason="training")
pytest.importorskip("onnxruntime", reason="the runtime of models")
pytest.importorskip("torch", reason="training")

import torch

from paimon_features.core.configuration.project_config import ServeConfig
from paimon_features.core.windows import DAY_MS
from paimon_features.online.materialize import Materializer
from paimon_features.online.store import MemoryStore
from paimon_features.serving.http.definitions.definition_set import DefinitionSet
from paimon_features.serving.http.definitions.served_models import ModelSet
from paimon_features.serving.http.server.app import FeatureApp
from paimon_features.serving.http.server.model_reload import ModelReloader
from tests.serving.http.conftest import send_request
from tests.trainer_bridge.training.shop import SMALL, START, make_shop
from trainer_bridge.training import run
from trainer_bridge.training.config import compose
from trainer_bridge.training.export import run_onnx

pytestmark = pytest.mark.torch

NOW = START + 90 * DAY_MS
"""After all events."""


def test_online_predictions_of_a_trained_model_equal_its_offline_scores(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    project = make_shop(tmp_path)
    overrides = (*SMALL, "trainer.epochs=1")
    found, *_ = run.train(project, compose(project.root / "churn.yaml", overrides))
    project.models.promote(found.name, found.version)
    compare(project, found)


def compare(project: Any, manifest: Any) -> None:
    store = MemoryStore()
    view = project.definitions.views["spend"].compiled
    record = project.generation(view)
    Materializer(
        project.lake, project.name, view, lambda: record, store, lease_ttl_ms=None
    ).run_once()
    served = DefinitionSet(project.name, project.definitions, store, 1)
    served.fetcher.clock = lambda: NOW
    app = FeatureApp(served, ServeConfig(predict_batch=16))
    app.replace_models(ModelReloader(project.models.place).load(ModelSet()))
    assert app.state.models.problems(served) == []
    users = list(range(105))
    body = json.dumps({"entities": {"customer_id": users}, "as_of": NOW, "full": True}).encode()
    answer = asyncio.run(send_request(app, "POST", "/predict/churn", body))
    app.close()
    assert answer.status == 200, answer.body
    document = answer.json
    assert document["version"] == manifest.version
    # the same entities and time, read from the lake, through the same network
    keys = pa.table({"customer_id": users, "event_time_ms": [NOW] * len(users)})
    history = project.get_historical_features(manifest.signature.service, keys)
    columns = {each.name: history[each.of.partition(":")[2]] for each in manifest.signature.inputs}
    network = project.models.file(manifest, "network.onnx")
    offline = run_onnx(network, manifest.signature.inputs, columns)
    np.testing.assert_allclose(document["predictions"], offline[:, 0], rtol=1e-5, atol=1e-7)
    assert len(set(document["predictions"])) > 5
