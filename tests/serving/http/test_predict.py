"""POST /predict/{model}: entity keys in, one read, one run of the network, predictions out."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

pytest.importorskip("onnx", reason="networks for tests")
pytest.importorskip("onnxruntime", reason="the runtime of models")

import onnx

from paimon_features.definitions.value_definition import PREFIX
from paimon_features.models import (
    ModelFile,
    ModelInput,
    ModelOutput,
    ModelStates,
    VersionState,
    sha256_of,
)
from paimon_features.online.store.published_models import ServedModel
from paimon_features.serving.http.definitions.served_models import (
    LoadedModel,
    LoadedVersion,
    ModelSet,
)
from paimon_features.serving.http.messages import Request
from paimon_features.serving.prediction.network import OnnxNetwork
from tests.serving.http.conftest import Sent
from tests.serving.prediction.networks import NULL, linear, number, sigmoid, state
from tests.waiting import LONG_S

SUM, COUNT = number("clicks:sum_n_1d"), number("clicks:count_12d")
USER = number("user", source="entity")
MODEL = linear([0.25, -0.5], [SUM, COUNT])
# sum_n_1d and count_12d of the users 1 (12, 2), 2 (1, 1) and 99 (none)
SCORES = [sigmoid(0.25 * 12 - 0.5 * 2), sigmoid(0.25 - 0.5), sigmoid(NULL * (0.25 - 0.5))]


def models(
    *versions: tuple[ServedModel, VersionState], salt: str = "salt", **problems: str
) -> ModelSet:
    """A set with one model of these versions."""
    rest = 10_000 - sum(each.traffic for _, each in versions if each.state == "challenger")
    states = [
        replace(each, traffic=rest) if each.state == "production" else each for _, each in versions
    ]
    loaded = {
        of.manifest.version: LoadedVersion(each, OnnxNetwork(of))
        for (of, _), each in zip(versions, states, strict=True)
    }
    name = versions[0][0].manifest.name
    return ModelSet({name: LoadedModel(ModelStates(name, 1, salt, 1, tuple(states)), loaded)}, "1")


@pytest.fixture
def served(client: Any) -> Any:
    client.app.replace_models(models((MODEL, state(MODEL))))
    return client


def predict(client: Any, document: object, model: str = "churn", **options: Any) -> Any:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return client.request("POST", f"/predict/{model}", body, **options)


def test_entities_are_answered_with_predictions_from_their_features(served: Any) -> None:
    answer = predict(served, {"entities": {"user": [1, 2, 99]}})
    assert answer.status == 200, answer.body
    document = answer.json
    assert document["predictions"] == pytest.approx(SCORES, rel=1e-6)
    assert (document["model"], document["version"]) == ("churn", 1)
    assert answer.headers["x-model-version"] == "churn@1"
    assert document["statuses"] == ["PRESENT", "PRESENT", "MISSING"]
    assert document["freshness"]["clicks"]["stale"] is False
    assert "features" not in document
    assert "explanations" not in document


def test_the_body_may_come_in_parts_and_the_reply_be_messagepack(served: Any) -> None:
    body = msgspec.msgpack.encode({"entities": {"user": [2]}})
    answer = predict(served, body, headers={"content-type": "application/msgpack"}, parts=3)
    assert msgspec.msgpack.decode(answer.body)["predictions"] == pytest.approx(SCORES[1:2])


def test_full_adds_the_features_of_the_version(served: Any) -> None:
    document = predict(served, {"entities": {"user": [1, 99]}, "full": True}).json
    assert {name: each["values"] for name, each in document["features"].items()} == {
        "clicks:sum_n_1d": [12, None], "clicks:count_12d": [2, None],
    }  # fmt: skip
    assert document["features"]["clicks:sum_n_1d"]["statuses"] == ["PRESENT", "MISSING"]


def test_an_explanation_is_what_a_prediction_loses_without_each_input(served: Any) -> None:
    document = predict(served, {"entities": {"user": [2, 1]}, "explain": True}).json
    assert document["predictions"] == pytest.approx([SCORES[1], SCORES[0]])
    entries = document["explanations"][1]
    without = {
        "clicks:sum_n_1d": sigmoid(0.25 * NULL - 0.5 * 2),
        "clicks:count_12d": sigmoid(0.25 * 12 - 0.5 * NULL),
    }
    assert {e["of"]: e["contribution"] for e in entries} == pytest.approx(
        {name: SCORES[0] - score for name, score in without.items()}, rel=1e-5
    )
    sizes = [abs(e["contribution"]) for e in entries]
    assert sizes == sorted(sizes, reverse=True)
    first = next(e for e in entries if e["of"] == "clicks:sum_n_1d")
    assert (first["value"], first["status"]) == (12, "PRESENT")
    assert first["event_time_ms"] > 0


def test_requests_that_arrive_together_share_a_read_and_a_run(served: Any) -> None:
    before = replace(served.app.state.batcher.stats)
    reads = served.app.state.coalescer.batches

    async def all_at_once() -> list[Any]:
        bodies = [json.dumps({"entities": {"user": [1 + n % 2]}}).encode() for n in range(20)]
        return await asyncio.gather(
            *(served.send("POST", "/predict/churn", body) for body in bodies)
        )

    answers = served.run(all_at_once())
    assert [a.json["predictions"][0] for a in answers] == pytest.approx(SCORES[:2] * 10)
    stats = served.app.state.batcher.stats
    assert stats.rows - before.rows == 20
    assert stats.runs - before.runs == 1
    assert served.app.state.coalescer.batches - reads == 1


def test_a_large_request_is_run_in_parts_with_others_in_between(
    make_client: Callable[..., Any],
) -> None:
    client = make_client(predict_batch=4)
    client.app.replace_models(models((MODEL, state(MODEL))))
    order: list[int] = []

    async def send(rows: int) -> Any:
        users = [1 + n % 2 for n in range(rows)]
        body = json.dumps({"entities": {"user": users}}).encode()
        answer = await client.send("POST", "/predict/churn", body)
        order.append(rows)
        return answer

    async def both() -> list[Any]:
        return await asyncio.gather(send(1_001), send(3))

    large, small = client.run(both())
    expected = [SCORES[n % 2] for n in range(1_001)]
    assert large.json["predictions"] == pytest.approx(expected)
    assert small.json["predictions"] == pytest.approx(expected[:3])
    assert order == [3, 1_001]
    stats = client.app.state.batcher.stats
    assert stats.rows == 1_004
    assert stats.runs >= 251


def test_a_version_that_was_trained_on_another_feature_of_that_name_is_refused(client: Any) -> None:
    definitions = client.app.state.definitions.definitions
    [output] = definitions.outputs([definitions.resolve_one("clicks:sum_n_1d")])
    own = replace(SUM, definition=definitions.value_definition(output))
    model = linear([0.25], [own])
    client.app.replace_models(models((model, state(model))))
    assert predict(client, {"entities": {"user": [1]}}).status == 200
    model = linear([0.25], [replace(SUM, definition=f"{PREFIX}{'0' * 16}")])
    client.app.replace_models(models((model, state(model))))
    answer = predict(client, {"entities": {"user": [1]}})
    assert answer.status == 503
    assert (
        "'clicks:sum_n_1d' is defined otherwise than when it was trained" in answer.json["detail"]
    )
    assert "train it again" in answer.json["detail"]


def test_an_input_may_be_an_entity_key(client: Any) -> None:
    model = linear([0.1, 0.2], [USER, SUM])
    client.app.replace_models(models((model, state(model))))
    document = predict(client, {"entities": {"user": [1, 2]}}).json
    expected = [sigmoid(0.1 + 0.2 * 12), sigmoid(0.2 + 0.2)]
    assert document["predictions"] == pytest.approx(expected)


def test_an_explanation_has_the_value_of_an_entity_key(client: Any) -> None:
    name = ModelInput("name", "entity", "user", "int64", "string")
    model = linear([0.1, 0.2], [USER, name, SUM])
    client.app.replace_models(models((model, state(model))))
    document = predict(client, {"entities": {"user": [2]}, "explain": True}).json
    [entries] = document["explanations"]
    assert {each["input"]: each["value"] for each in entries} == {
        "user": 2, "name": 2, "clicks__sum_n_1d": 1,
    }  # fmt: skip
    assert all("status" in each for each in entries if each["of"] != "user")


def of_classes(bias: float = 0.0) -> ServedModel:
    """A version whose first output has two classes, ``MODEL``'s and its logarithm."""
    made = linear([0.25, -0.5], [SUM, COUNT], bias=bias)
    network = onnx.load_from_string(made.network)
    graph = network.graph
    log = onnx.helper.make_node("Log", ["probability"], ["logarithm"])
    wide = onnx.helper.make_node("Concat", ["probability", "logarithm"], ["both"], axis=1)
    graph.node.extend([log, wide])
    both = onnx.helper.make_tensor_value_info("both", onnx.TensorProto.FLOAT, ["rows", 2])
    graph.output.insert(0, both)
    content = network.SerializeToString()
    signature = replace(
        made.manifest.signature,
        outputs=(ModelOutput("both", 2, ("yes", "log")), ModelOutput("probability")),
        task="multiclass",
    )
    files = {"network.onnx": ModelFile(sha256_of(content), len(content))}
    return ServedModel(replace(made.manifest, signature=signature, files=files), content)


def test_classes_and_further_outputs_are_in_the_reply(client: Any) -> None:
    model = of_classes()
    client.app.replace_models(models((model, state(model))))
    document = predict(client, {"entities": {"user": [1, 2]}}).json
    assert document["classes"] == ["yes", "log"]
    assert document["outputs"]["probability"] == pytest.approx(SCORES[:2], rel=1e-5)
    expected = [[score, math.log(score)] for score in SCORES[:2]]
    assert np.allclose(document["predictions"], expected, rtol=1e-5)
    explained = predict(client, {"entities": {"user": [1]}, "explain": True}).json
    assert [len(each["contribution"]) for each in explained["explanations"][0]] == [2, 2]


ARROW = "application/vnd.apache.arrow.stream"


@pytest.mark.parametrize(
    ("options", "status", "says"),
    [
        ({"headers": {"content-type": ARROW}}, 415, "take and return JSON and MessagePack"),
        ({"headers": {"accept": ARROW}}, 406, "application/json or application/msgpack"),
        ({"query": "full=true"}, 422, "the fields of a prediction belong in its body"),
    ],
)
def test_what_predictions_do_not_take_is_told(
    served: Any, options: dict[str, Any], status: int, says: str
) -> None:
    found, _, detail = predict(served, {"entities": {"user": [1]}}, **options).problem
    assert (found, says in detail) == (status, True), detail


def test_a_model_without_a_version_in_production_is_named_in_warnings(client: Any) -> None:
    client.app.replace_models(models((MODEL, state(MODEL, "candidate"))))
    status, code, detail = predict(client, {"entities": {"user": [1]}}).problem
    assert (status, code) == (503, "not_ready")
    assert "'paimon-features models promote churn VERSION' puts one there" in detail
    warnings = client.get("/health").json["warnings"]
    assert "model 'churn' has no version in production" in warnings


# -- versions --------------------------------------------------------------------------------


CHALLENGER = linear([0.0, 0.0], [SUM, COUNT], version=2, bias=3.0)
SHADOW = linear([0.5], [number("clicks:sum_n_1h")], version=3)


def test_the_split_is_stable_by_entity_and_each_reply_has_one_version(client: Any) -> None:
    split = models(
        (MODEL, state(MODEL)), (CHALLENGER, state(CHALLENGER, "challenger", [(0, 3000)]))
    )
    client.app.replace_models(split)
    states = split.models["churn"].states
    seen = set()
    for user in range(1, 60):
        document = predict(client, {"entities": {"user": [user, 1]}}).json
        assert document["version"] == states.version_of(str(user))
        expected = sigmoid(3.0) if document["version"] == 2 else None
        if expected is not None:
            assert document["predictions"] == pytest.approx([expected] * 2)
        seen.add(document["version"])
    assert seen == {1, 2}
    by_unit = {
        predict(client, {"entities": {"user": [user]}, "unit": "session-7"}).json["version"]
        for user in range(1, 10)
    }
    assert by_unit == {states.version_of("session-7")}


def test_a_version_may_be_named(client: Any) -> None:
    client.app.replace_models(
        models((MODEL, state(MODEL)), (CHALLENGER, state(CHALLENGER, "challenger", [(0, 1)])))
    )
    for version in (1, 2):
        answer = predict(client, {"entities": {"user": [1]}, "version": version})
        assert answer.json["version"] == version
    status, code, detail = predict(client, {"entities": {"user": [1]}, "version": 7}).problem
    assert (status, code) == (404, "unknown_name")
    assert "unknown version 7" in detail
    assert "1, 2" in detail


def test_a_shadow_predicts_from_the_same_read_and_answers_nobody(client: Any) -> None:
    client.app.replace_models(models((MODEL, state(MODEL)), (SHADOW, state(SHADOW, "shadow"))))
    reads = client.app.state.coalescer.batches
    answer = predict(client, {"entities": {"user": [1, 2]}, "full": True})
    assert answer.json["version"] == 1
    assert list(answer.json["features"]) == ["clicks:sum_n_1d", "clicks:count_12d"]

    async def compared() -> None:
        while "churn@3" not in client.app.counts.shadows:
            await asyncio.sleep(0.001)

    client.run(asyncio.wait_for(compared(), LONG_S))
    shadow = client.app.counts.shadows["churn@3"]
    expected = abs(sigmoid(2.5) - SCORES[0]) + abs(sigmoid(0.5) - SCORES[1])
    assert (shadow.rows, shadow.failed) == (2, 0)
    assert shadow.difference == pytest.approx(expected, rel=1e-5)
    assert client.app.state.coalescer.batches - reads == 1


def test_a_promotion_between_requests_in_flight_leaves_one_version_in_each_reply(
    make_client: Callable[..., Any],
) -> None:
    client = make_client()
    one = models((MODEL, state(MODEL)))
    two = models((CHALLENGER, state(CHALLENGER)))
    client.app.replace_models(one)

    async def promoted_meanwhile() -> list[Any]:
        body = json.dumps({"entities": {"user": [1, 2, 99]}}).encode()
        tasks = []
        for number_ in range(200):
            tasks.append(asyncio.create_task(client.send("POST", "/predict/churn", body)))
            if number_ % 7 == 0:
                client.app.replace_models(two if number_ % 2 else one)
            if number_ % 5 == 0:
                await asyncio.sleep(0)
        return await asyncio.gather(*tasks)

    versions = set()
    for answer in client.run(promoted_meanwhile()):
        assert answer.status == 200, answer.body
        document = answer.json
        versions.add(document["version"])
        expected = SCORES if document["version"] == 1 else [sigmoid(3.0)] * 3
        assert document["predictions"] == pytest.approx(expected)
    assert versions == {1, 2}


# -- what cannot be answered -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "status", "code", "says"),
    [
        ({"entities": {"user": ["1"]}}, 422, "invalid_request", "user"),
        ({"entities": {"user": [1.5]}}, 422, "invalid_request", "user"),
        ({"entities": {"user": []}, "full": 1}, 422, "invalid_request", "Expected `bool`"),
        ({"entities": {}}, 422, "invalid_request", "'entities' is empty"),
        ({"entities": {"shop": ["a"]}}, 422, "invalid_request", "'shop'"),
        ({"entities": {"user": [1]}, "explian": True}, 422, "invalid_request", "'explain'"),
        ({"entities": {"user": [1]}, "request": {"x": 1}}, 422, "invalid_request", "'x'"),
        ({"entities": {"user": list(range(20_001))}}, 413, "too_large", "20,001"),
        ({"entities": {"user": list(range(400))}, "explain": True}, 413, "too_large", "341"),
        (
            b'{"entities": {"user": [1]}, "entities": {"user": [2]}}',
            422,
            "invalid_request",
            "twice",
        ),
        (b'{"entities": {"user": [NaN]}}', 400, "malformed", "no NaN"),
        (b"{", 400, "malformed", "JSON"),
    ],
)
def test_a_wrong_request_is_told_what_is_wrong(
    served: Any, document: Any, status: int, code: str, says: str
) -> None:
    got = predict(served, document).problem
    assert got[:2] == (status, code)
    assert says in got[2]
    assert served.app.state.admission.in_flight == 0
    assert served.app.state.buffers.held == 0


def test_an_unknown_model_names_those_there_are(served: Any) -> None:
    status, code, detail = predict(served, {"entities": {"user": [1]}}, model="chrun").problem
    assert (status, code) == (404, "unknown_name")
    assert "'chrun'" in detail
    assert "churn" in detail


def test_a_model_whose_features_have_changed_is_not_served(client: Any) -> None:
    retyped = linear([1.0], [number("clicks:sum_n_1d", "float64")])
    gone = linear([1.0], [number("clicks:sum_x_1d")])
    other_key = linear([1.0], [SUM], key=("user", "string"))
    for model, says in ((retyped, "is now of type int64"), (gone, "sum_x_1d"), (other_key, "keys")):
        client.app.replace_models(models((model, state(model))))
        status, code, detail = predict(client, {"entities": {"user": [1]}}).problem
        assert (status, code) == (503, "not_ready")
        assert says in detail
        health = client.get("/health/ready")
        assert health.status == 503
        assert any(says in each for each in health.json["reasons"])


def test_a_late_prediction_is_an_error_and_not_made(make_client: Callable[..., Any]) -> None:
    client = make_client(predict_delay_ms=60_000, predict_timeout_ms=1)
    client.app.replace_models(models((MODEL, state(MODEL))))

    async def late() -> Any:
        task = asyncio.create_task(
            client.send("POST", "/predict/churn", b'{"entities": {"user": [1]}}')
        )
        while not client.app.state.batcher.waiting_rows:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.005)
        client.app.tick()
        return await task

    status, code, detail = client.run(late()).problem
    assert (status, code) == (503, "overloaded")
    assert "in time" in detail
    assert client.app.state.batcher.stats.rows == 0
    assert client.app.state.admission.in_flight == 0


def test_a_prediction_whose_client_is_gone_is_not_made(make_client: Callable[..., Any]) -> None:
    client = make_client(predict_delay_ms=20)
    client.app.replace_models(models((MODEL, state(MODEL))))

    async def leaves() -> int:
        body = b'{"entities": {"user": [1]}}'
        head = [(b"content-length", str(len(body)).encode())]
        sent = Sent(Request("POST", "/predict/churn", b"", "1.0", head), [body])
        sent.is_gone = True
        client.app.start(sent)
        return (await sent.replied)[0]

    assert client.run(leaves()) == 499
    assert client.app.state.batcher.stats.rows == 0
    assert client.app.state.batcher.waiting_rows == 0
    assert client.app.state.admission.in_flight == 0


def test_a_network_that_fails_for_one_request_fails_for_no_other(served: Any) -> None:
    [model] = served.app.state.models.models.values()
    network = model.versions[1].network
    session = network._session

    class Failing:
        def run(self, names: Any, feed: dict[str, np.ndarray], options: Any) -> Any:
            if (feed[SUM.name] == 1).any():
                raise RuntimeError("no such kernel")
            return session.run(names, feed, options)

    network._session = Failing()

    async def together(users: Sequence[int]) -> list[Any]:
        bodies = [json.dumps({"entities": {"user": [user]}}).encode() for user in users]
        return await asyncio.gather(
            *(served.send("POST", "/predict/churn", body) for body in bodies)
        )

    answers = served.run(together([1, 2, 1, 99]))
    assert [a.status for a in answers] == [200, 500, 200, 200]
    _, code, detail = answers[1].problem
    assert code == "prediction_failed"
    assert "no such kernel" in detail
