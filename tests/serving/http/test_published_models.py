"""A server process follows published models: promotions, damaged files, kills."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnx", reason="networks for tests")
pytest.importorskip("onnxruntime", reason="the runtime of models")

from paimon_features.models import ModelStates, VersionState
from paimon_features.online.store.published_models import ModelPlace, PublishedModels, ServedModel
from tests.patient_stores import patient_store
from tests.serving.http.test_server import Running, folder, run
from tests.serving.prediction.networks import linear, looping, number, sigmoid, state
from tests.tile_lake import PROJECT
from tests.waiting import await_true

__all__ = ["folder", "run"]  # fixtures
pytestmark = pytest.mark.redis

COUNT = number("clicks:count_1d")
VERSIONS = {n: linear([0.0], [COUNT], version=n, bias=float(n)) for n in (1, 2, 3)}


class Published:
    """The models of the project in the online store, as a registry publishes them."""

    def __init__(self, url: str) -> None:
        self.store = patient_store(url)
        self.place = ModelPlace(PROJECT, "online", lambda: self.store)
        self.serial = 0

    def publish(self, *versions: tuple[ServedModel, VersionState]) -> None:
        self.serial += 1
        rest = 10_000 - sum(s.traffic for _, s in versions if s.state == "challenger")
        states = tuple(
            replace(s, traffic=rest) if s.state == "production" else s for _, s in versions
        )
        index = PublishedModels(
            PROJECT, self.serial, {"churn": ModelStates("churn", self.serial, "salt", 1, states)}
        )
        files: dict[str, Callable[[], bytes]] = {}
        for model, own in versions:
            files[own.manifest] = model.manifest.to_bytes
            files[model.manifest.network.sha256] = lambda data=model.network: data  # type: ignore[misc]
        self.place.publish(index, files)


@pytest.fixture
def published(folder: Path, redis_url: str) -> Iterator[Published]:
    config = folder / "paimon-features.toml"
    config.write_text(config.read_text() + '\nbundle = "online"\n')
    from paimon_features.project import Project

    Project.open(folder).publish_bundle("online")
    made = Published(redis_url)
    yield made
    made.store.close()


def predict(port: int | None, connection: http.client.HTTPConnection | None = None) -> Any:
    own = connection or http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    own.request("POST", "/predict/churn", b'{"entities":{"user":[7, 8]}}')
    reply = own.getresponse()
    document = json.loads(reply.read())
    if connection is None:
        own.close()
    return reply.status, document


def check(status: int, document: Any) -> int:
    """The version of a reply, which is of one version."""
    assert status == 200, document
    version: int = document["version"]
    assert document["predictions"] == pytest.approx([sigmoid(float(version))] * 2)
    return version


@pytest.mark.long
def test_promotions_under_load_drop_no_request_and_mix_no_versions(
    published: Published, run: Callable[..., Running]
) -> None:
    published.publish((VERSIONS[1], state(VERSIONS[1])))
    server = run()
    assert check(*predict(server.port)) == 1
    stop, seen, problems = threading.Event(), set(), []

    def load() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
        with contextlib.closing(connection):
            while not stop.is_set():
                try:
                    seen.add(check(*predict(None, connection)))
                except Exception as error:
                    problems.append(error)
                    return

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    challenger = state(VERSIONS[3], "challenger", [(0, 9_999)])
    for version in (2, 1, 2):
        published.publish((VERSIONS[version], state(VERSIONS[version])))
        await_true(lambda version=version: check(*predict(server.port)) == version)  # type: ignore[misc]
    published.publish((VERSIONS[2], state(VERSIONS[2])), (VERSIONS[3], challenger))
    await_true(lambda: check(*predict(server.port)) == 3)
    stop.set()
    for thread in threads:
        thread.join()
    assert not problems
    assert seen == {1, 2, 3}


@pytest.mark.long
def test_a_damaged_network_replaces_nothing_and_a_killed_worker_comes_back(
    published: Published, run: Callable[..., Running]
) -> None:
    published.publish((VERSIONS[1], state(VERSIONS[1])))
    server = run()
    assert check(*predict(server.port)) == 1
    # its file is other bytes than the manifest names
    broken = VERSIONS[2]
    digest = broken.manifest.network.sha256
    hostile = ServedModel(broken.manifest, b"\x08\x09 no network")
    published.publish((hostile, state(broken)))
    await_true(lambda: "is damaged" in server.get("/models")[1].decode())
    assert check(*predict(server.port)) == 1
    assert digest[:8] not in json.dumps(predict(server.port)[1])
    published.publish((VERSIONS[3], state(VERSIONS[3])))
    await_true(lambda: check(*predict(server.port)) == 3)
    os.kill(server.workers[0], signal.SIGKILL)

    def back() -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return check(*predict(server.port)) == 3
        return False

    await_true(back)


@pytest.mark.long
def test_a_network_that_never_ends_replaces_nothing_and_the_next_one_is_loaded(
    published: Published, run: Callable[..., Running], folder: Path
) -> None:
    config = folder / "paimon-features.toml"
    config.write_text(config.read_text() + 'predict_load_timeout = "10s"\n')
    endless = looping(COUNT, version=2)
    published.publish((VERSIONS[1], state(VERSIONS[1])))
    server = run()
    assert check(*predict(server.port)) == 1
    await_true(lambda: server.metric("model_ok") == 1)
    published.publish((endless, state(endless)))
    await_true(lambda: server.metric("model_ok") == 0)
    assert "predict_load_timeout" in server.get("/models")[1].decode()
    assert check(*predict(server.port)) == 1
    assert server.get("/health/ready")[0] == 200
    published.publish((VERSIONS[3], state(VERSIONS[3])))
    await_true(lambda: check(*predict(server.port)) == 3)
    await_true(lambda: server.metric("model_ok") == 1)


@pytest.mark.long
def test_a_model_that_never_loaded_is_503_and_the_server_is_not_ready(
    published: Published, run: Callable[..., Running], folder: Path
) -> None:
    config = folder / "paimon-features.toml"
    config.write_text(config.read_text() + 'predict_load_timeout = "10s"\n')
    endless = looping(COUNT)
    published.publish((endless, state(endless)))
    server = run()
    assert predict(server.port)[0] == 503
    status, body = server.get("/health/ready")
    assert status == 503
    assert "churn" in body.decode()
    # a challenger that does not load leaves its entities to production
    hostile = looping(COUNT, version=3)
    challenger = state(hostile, "challenger", [(0, 9_999)])
    published.publish((VERSIONS[2], state(VERSIONS[2])), (hostile, challenger))
    await_true(lambda: predict(server.port)[0] == 200)
    assert check(*predict(server.port)) == 2
    assert server.get("/health/ready")[0] == 200


def test_models_whose_index_is_lost_are_served_as_they_were(
    published: Published, run: Callable[..., Running]
) -> None:
    published.publish((VERSIONS[1], state(VERSIONS[1])))
    server = run()
    for key in [key for page in published.store.scan(b"pf:") for key in page if b"#model" in key]:
        published.store.delete([key])
    await_true(lambda: "is lost" in server.get("/health")[1].decode())
    assert check(*predict(server.port)) == 1
    assert server.metric("models_ok") == 0
    published.publish((VERSIONS[2], state(VERSIONS[2])))
    await_true(lambda: check(*predict(server.port)) == 2)
    await_true(lambda: server.metric("models_ok") == 1)


def test_an_application_of_fastapi_answers_the_same(published: Published, folder: Path) -> None:
    fastapi = pytest.importorskip("fastapi", reason="the framework")
    testclient = pytest.importorskip("fastapi.testclient", reason="its client")
    from paimon_features.integrations.fastapi import feature_router, model_router

    published.publish((VERSIONS[1], state(VERSIONS[1])))
    app = fastapi.FastAPI()
    app.include_router(feature_router(folder))
    app.include_router(model_router(folder), prefix="/ml")
    with testclient.TestClient(app) as client:
        read = client.post(
            "/get-online-features",
            json={"feature_service": "times_v1", "entities": {"user": [7]}},
        )
        assert read.json()["results"][1]["values"] == [1]
        answer = client.post("/ml/predict/churn", json={"entities": {"user": [7, 8]}})
        assert check(answer.status_code, answer.json()) == 1
        assert answer.headers["x-model-version"] == "churn@1"
        infer = client.post(
            "/ml/v2/models/churn/infer",
            json={
                "inputs": [{"name": COUNT.name, "shape": [1, 1], "datatype": "FP64", "data": [1.0]}]
            },
        )
        assert infer.json()["outputs"][0]["data"] == pytest.approx([sigmoid(1.0)])
        wrong = client.post("/ml/predict/other", json={"entities": {"user": [7]}})
        assert (wrong.status_code, wrong.json()["code"]) == (404, "unknown_name")
        too_large = client.post("/ml/predict/churn", content=b" " * (9 << 20))
        assert too_large.status_code == 413
        paths = client.get("/openapi.json").json()["paths"]
        assert "/ml/predict/{model}" in paths
        assert "/get-online-features" in paths
        published.publish((VERSIONS[2], state(VERSIONS[2])))
        end_s = time.monotonic() + 120
        body = {"entities": {"user": [7]}}
        while client.post("/ml/predict/churn", json=body).json()["version"] != 2:
            assert time.monotonic() < end_s
            time.sleep(0.05)
    with pytest.raises(Exception, match="lifespan"):
        testclient.TestClient(app).post("/ml/predict/churn", json={})
