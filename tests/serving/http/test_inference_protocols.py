"""The Open Inference Protocol, MLflow's /invocations, and the list of models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnx", reason="networks for tests")
pytest.importorskip("onnxruntime", reason="the runtime of models")

from paimon_features.serving.http.access.tokens import NewToken, add_token
from paimon_features.serving.http.definitions.served_models import LoadedModel, ModelSet
from tests.serving.http.test_predict import CHALLENGER, MODEL, SCORES, SHADOW, models
from tests.serving.prediction.networks import NULL, linear, number, sigmoid, state

NAMES = ("clicks__sum_n_1d", "clicks__count_12d")
V2 = "/v2/models/churn"


@pytest.fixture
def served(client: Any) -> Any:
    client.app.replace_models(
        models((MODEL, state(MODEL)), (CHALLENGER, state(CHALLENGER, "challenger", [(0, 100)])))
    )
    return client


def post(client: Any, path: str, document: object, **options: Any) -> Any:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return client.request("POST", path, body, **options)


def tensors(*columns: list[Any], **changes: Any) -> dict[str, Any]:
    return {
        "inputs": [
            {"name": name, "shape": [len(column), 1], "datatype": "FP64", "data": column} | changes
            for name, column in zip(NAMES, columns, strict=True)
        ]
    }


def test_health_and_metadata_of_the_protocol(served: Any) -> None:
    assert served.get("/v2").json["name"] == "paimon-features"
    for path in ("/v2/health/live", f"{V2}/ready", f"{V2}/versions/2/ready"):
        assert served.get(path).status == 200, path
    metadata = served.get(V2).json
    assert (metadata["name"], metadata["versions"]) == ("churn", ["1", "2"])
    assert [(each["name"], each["datatype"], each["shape"]) for each in metadata["inputs"]] == [
        (name, "FP64", [-1, 1]) for name in NAMES
    ]
    assert metadata["outputs"] == [{"name": "probability", "datatype": "FP32", "shape": [-1, 1]}]
    for path in ("/v2/models/other", f"{V2}/versions/9", f"{V2}/versions/x/ready"):
        answer = served.get(path)
        assert answer.status == 404
        assert list(answer.json) == ["error"]


def test_what_cannot_answer_is_not_ready(client: Any) -> None:
    gone = linear([1.0], [number("clicks:sum_x_1d")])
    client.app.replace_models(models((gone, state(gone))))
    for path in (f"{V2}/ready", "/v2/health/ready"):
        answer = client.get(path)
        assert (answer.status, answer.json["ready"]) == (400, False)


def test_tensors_are_answered_as_the_protocol_says(served: Any) -> None:
    request = tensors([12, 1, None], [2, 1.0, None]) | {
        "id": "abc",
        "outputs": [{"name": "probability"}],
    }
    document = post(served, f"{V2}/infer", request).json
    [output] = document["outputs"]
    assert output["data"] == pytest.approx(SCORES)
    assert (output["name"], output["datatype"], output["shape"]) == ("probability", "FP32", [3, 1])
    assert (document["id"], document["model_name"], document["model_version"]) == (
        "abc",
        "churn",
        "1",
    )
    nested = tensors([[12]], [[2]], shape=[1, 1])
    assert post(served, f"{V2}/infer", nested).json["outputs"][0]["data"] == pytest.approx(
        SCORES[:1]
    )
    second = post(served, f"{V2}/versions/2/infer", tensors([1.0], [1.0]))
    assert second.json["model_version"] == "2"
    assert second.json["outputs"][0]["data"] == pytest.approx([sigmoid(3.0)])


@pytest.mark.parametrize(
    ("document", "status", "says"),
    [
        (tensors(["1"], [2]), 422, "'clicks__sum_n_1d'"),
        (tensors([True], [2]), 422, "expected numbers or null"),
        (tensors([1], [2], datatype="INT64"), 422, "'FP64'"),
        (tensors([1, 2], [2]), 422, "expected [2, 1]"),
        (tensors([1], [2], shape=[2, 1]), 422, "expected 2, as its shape says"),
        (tensors([], []), 422, "no rows"),
        (tensors([1], [2], shape=[-1, 1]), 422, "no rows"),
        (tensors([[1, 2]], [[1]], shape=[1, 1]), 422, "not nested"),
        (tensors([1], [2], name="other"), 422, "twice"),
        ({"inputs": tensors([1], [2])["inputs"][:1]}, 422, "'clicks__count_12d' is missing"),
        (tensors([1], [2]) | {"outputs": [{"name": "p"}]}, 422, "available: probability"),
        (tensors([float("nan")], [2]), 400, "JSON has no NaN"),
        (tensors([0] * 20_001, [0] * 20_001), 413, "20,001"),
        (b"[]", 422, "Expected `object`"),
    ],
)
def test_wrong_tensors_are_told_what_is_wrong(
    served: Any, document: Any, status: int, says: str
) -> None:
    answer = post(served, f"{V2}/infer", document)
    assert (answer.status, list(answer.json)) == (status, ["error"])
    assert says in answer.json["error"]
    assert served.app.state.admission.in_flight == 0
    assert served.app.state.buffers.held == 0


@pytest.mark.parametrize(
    "document",
    [
        {"dataframe_split": {"columns": [*NAMES], "data": [[12, 2], [1, 1], [None, None]]}},
        {
            "dataframe_records": [
                {"clicks:sum_n_1d": a, "clicks:count_12d": b}
                for a, b in ((12, 2), (1, 1), (None, None))
            ]
        },
        {"instances": [[12, 2], [1, 1], [None, None]]},
        {
            "instances": [
                dict(zip(NAMES, row, strict=True)) for row in ((12, 2), (1, 1), (None, None))
            ]
        },
        {"inputs": {NAMES[0]: [12, 1, None], NAMES[1]: [2, 1, None]}},
    ],
)
def test_each_form_of_mlflow_is_answered(served: Any, document: Any) -> None:
    answer = post(served, "/invocations", document)
    assert answer.status == 200, answer.body
    assert answer.json["predictions"] == pytest.approx(SCORES)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({}, "exactly one of"),
        ({"instances": [[1, 2]], "inputs": {}}, "exactly one of"),
        ({"instances": [[1]]}, "has 1 values; expected 2"),
        ({"instances": []}, "expected a list of rows"),
        ({"inputs": {NAMES[0]: [1]}}, "is missing"),
        ({"inputs": {NAMES[0]: [1], NAMES[1]: [1, 2]}}, "one length"),
        ({"inputs": {NAMES[0]: ["1"], NAMES[1]: [1]}}, "expected numbers or null"),
        ({"inputs": {NAMES[0]: [1], NAMES[1]: [1], "age": [1]}}, "unknown column 'age'"),
        ({"dataframe_records": [{"a": 1}, {"b": 1}]}, "record 1"),
        ({"dataframe_split": {"columns": ["a", "a"], "data": [[1, 2]]}}, "twice"),
        ({"dataframe_split": {"columns": ["a"]}}, "data"),
        ({"instances": [[1, 2]], "params": {"x": 1}}, "'params'"),
    ],
)
def test_wrong_invocations_are_told_what_is_wrong(served: Any, document: Any, says: str) -> None:
    answer = post(served, "/invocations", document)
    assert answer.status == 422
    assert answer.json["error_code"] == "BAD_REQUEST"
    assert says in answer.json["message"]


def test_of_several_models_an_invocation_names_one(client: Any) -> None:
    other = linear([1.0], [number("clicks:sum_n_1h")], name="other")
    one, two = models((MODEL, state(MODEL))), models((other, state(other)))
    client.app.replace_models(ModelSet({**one.models, **two.models}))
    rows = {"instances": [[2.0]]}
    refused = post(client, "/invocations", rows)
    assert (refused.status, "churn, other" in refused.json["message"]) == (422, True)
    for query in ("model=other&x=1", "other", "modle=other"):
        wrong = post(client, "/invocations", rows, query=query)
        assert wrong.status == 422
        assert f"query {query!r}; expected model=NAME or nothing" in wrong.json["message"]
    plain = post(client, "/invocations", rows, headers={"content-type": "text/plain"})
    assert (plain.status, "content-type 'text/plain'; expected" in plain.json["message"]) == (
        415, True,
    )  # fmt: skip
    assert client.get(f"{V2}/versions/1/nothing").status == 404
    answer = post(client, "/invocations", rows, query="model=other")
    assert answer.json["predictions"] == pytest.approx([sigmoid(2.0)])
    assert NULL == 0.5


def test_texts_and_lists_as_inputs(client: Any) -> None:
    from paimon_features.models import ModelInput

    inputs = [
        ModelInput("sizes", "feature", "clicks:sizes", "list(int64)", "float64", 2),
        ModelInput("word", "feature", "clicks:last_word_30d", "string", "string", null_text="?"),
    ]
    model = linear([1.0, 10.0], inputs)
    client.app.replace_models(models((model, state(model))))
    # its features cannot be read here, but what is ready-made needs no features
    [loaded] = client.app.state.models.models.values()
    loaded.bound(client.app.state.definitions)[1].problem = None
    request = {
        "inputs": [
            {"name": "sizes", "shape": [2, 2], "datatype": "FP64", "data": [0.1, 0.2, 0.3, None]},
            {"name": "word", "shape": [2, 1], "datatype": "BYTES", "data": ["a", None]},
        ]
    }
    found = post(client, f"{V2}/infer", request).json["outputs"][0]["data"]
    assert found == pytest.approx([sigmoid(2.1), sigmoid(0.3 + 10 * NULL)])
    records = {"dataframe_records": [{"sizes": [0.1], "word": "a"}, {"sizes": None, "word": "b"}]}
    found = post(client, "/invocations", records).json["predictions"]
    assert found == pytest.approx([sigmoid(0.1 + 10 * NULL), sigmoid(11 * NULL)])
    long = {"inputs": [request["inputs"][0], {**request["inputs"][1], "data": ["a" * 5_000, "b"]}]}
    assert post(client, f"{V2}/infer", long).status == 422


def test_the_list_of_models_has_versions_states_and_problems(client: Any) -> None:
    found = models((MODEL, state(MODEL)), (SHADOW, state(SHADOW, "shadow")))
    client.app.replace_models(
        ModelSet({"churn": found.models["churn"].with_problem("version 4 is damaged")})
    )
    [model] = client.get("/models").json["models"]
    assert [(v["version"], v["state"], v["share"], v["ready"]) for v in model["versions"]] == [
        (1, "production", 1.0, True), (3, "shadow", 0.0, True),
    ]  # fmt: skip
    assert model["versions"][0]["features"] == ["clicks:sum_n_1d", "clicks:count_12d"]
    assert model["problem"] == "version 4 is damaged"
    assert "version 4 is damaged" in client.get("/health").json["warnings"]
    retyped = linear([1.0], [number("clicks:sum_n_1d", "float64")])
    client.app.replace_models(models((retyped, state(retyped))))
    [model] = client.get("/models").json["models"]
    [version] = model["versions"]
    assert not version["ready"]
    assert "is now of type int64" in version["problem"]


def test_a_token_uses_the_models_whose_features_it_may_read(
    make_client: Any, tmp_path: Path
) -> None:
    path = tmp_path / "tokens.toml"
    reader = add_token(path, "reader", ["reading_v1"], "2026-01-01")
    visitor = add_token(path, "visitor", ["visiting_v1"], "2026-01-01")
    client = make_client(tokens=path)
    client.app.replace_models(models((MODEL, state(MODEL))))
    body = {"entities": {"user": [1]}}
    for token, status in ((reader, 200), (visitor, 403), ("pf_wrong", 401), (None, 401)):
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        assert post(client, "/predict/churn", body, headers=headers).status == status
        assert post(client, f"{V2}/infer", tensors([1], [2]), headers=headers).status == status
    listed = client.get("/models", headers={"authorization": f"Bearer {visitor}"})
    assert listed.json == {"models": []}
    metrics = client.get("/metrics").body.decode()
    assert 'paimon_features_predictions_total{model="churn",version="1"} 2.0' in metrics


def test_a_token_of_a_model_predicts_and_shows_no_feature(make_client: Any, tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    scorer = add_token(path, "scorer", NewToken(models=["churn"]), "2026-01-01")
    dumb = add_token(path, "dumb", ["reading_v1"], "2026-01-01")
    with path.open("a") as file:
        file.write("explain = false\n")
    client = make_client(tokens=path)
    client.app.replace_models(models((MODEL, state(MODEL))))

    def asked(token: str, **fields: Any) -> Any:
        headers = {"authorization": f"Bearer {token}"}
        return post(
            client, "/predict/churn", {"entities": {"user": [1]}, **fields}, headers=headers
        )

    assert asked(scorer).json["predictions"] == pytest.approx(SCORES[:1])
    for fields in ({"full": True}, {"explain": True}):
        status, code, detail = asked(scorer, **fields).problem
        assert (status, code) == (403, "forbidden")
        assert "the token 'scorer' may" in detail
    assert (
        "may use the model 'churn' but not read its features"
        in (asked(scorer, full=True).problem[2])
    )
    assert asked(dumb, full=True).status == 200
    assert "the token 'dumb' may not explain predictions" in asked(dumb, explain=True).problem[2]


def test_a_model_that_never_loaded_is_there_and_not_ready(client: Any) -> None:
    states = models((MODEL, state(MODEL))).models["churn"].states
    client.app.replace_models(
        ModelSet({"churn": LoadedModel(states, {}, "its network is damaged")})
    )
    answer = post(client, "/predict/churn", {"entities": {"user": [1]}})
    assert answer.problem[:2] == (503, "not_ready")
    assert "its network is damaged" in answer.problem[2]
