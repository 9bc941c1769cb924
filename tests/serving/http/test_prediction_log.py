"""The log of predictions: what was answered, by which version, from which values."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnx", reason="networks for tests")
pytest.importorskip("onnxruntime", reason="the runtime of models")

from paimon_features.core.configuration.project_config import ServeConfig, read_config
from paimon_features.core.errors import ConfigurationError
from paimon_features.models import sha256_of
from paimon_features.serving.http.metrics import page
from paimon_features.serving.request_log.log_rows import EntityText
from paimon_features.serving.request_log.prediction_log import (
    PredictionLog,
    open_prediction_log,
)
from paimon_features.serving.request_log.prediction_rows import prediction_schema
from paimon_features.serving.request_log.spool import read_spool
from paimon_features.serving.request_log.spool_folder import SpoolLimits
from tests.serving.http.test_predict import (
    COUNT,
    MODEL,
    SCORES,
    SUM,
    models,
    of_classes,
    predict,
)
from tests.serving.prediction.networks import linear, state
from tests.tile_lake import PROJECT
from tests.waiting import LONG_S

CHALLENGER = linear([0.0, 1.0], [SUM, COUNT], version=2)
SHADOW = linear([0.25], [SUM], version=3, bias=-0.5)


def rows_of(folder: Path, model: str = "churn") -> list[dict[str, Any]]:
    files = sorted((folder / "predictions" / model).glob("*.arrow"))
    return [row for path in files for row in read_spool(path, prediction_schema()).rows.to_pylist()]


def with_log(client: Any, folder: Path, **options: Any) -> PredictionLog:
    log = PredictionLog(folder, PROJECT, flush_interval_s=0.01, **options)
    client.app.predictions.prediction_log = log
    return log


def test_predictions_of_the_answering_version_and_of_shadows_are_logged(
    client: Any, tmp_path: Path
) -> None:
    client.app.replace_models(models((MODEL, state(MODEL)), (SHADOW, state(SHADOW, "shadow"))))
    with_log(client, tmp_path)
    answer = predict(client, {"entities": {"user": [1, 2, 99]}})

    async def compared() -> None:
        while "churn@3" not in client.app.counts.shadows:
            await asyncio.sleep(0.001)

    client.run(asyncio.wait_for(compared(), LONG_S))
    client.app.close()
    rows = rows_of(tmp_path)
    own = [row for row in rows if row["role"] == "production"]
    shadows = [row for row in rows if row["role"] == "shadow"]
    assert [row["prediction"] for row in own] == answer.json["predictions"]
    assert [row["prediction"] for row in own] == pytest.approx(SCORES, rel=1e-6)
    assert [row["entity"] for row in own] == ["[1]", "[2]", "[99]"]
    assert [row["status"] for row in own] == answer.json["statuses"]
    assert {row["version"] for row in own} == {1}
    assert {row["version"] for row in shadows} == {3}
    digest = sha256_of(MODEL.manifest.to_bytes())
    assert {row["manifest"] for row in own} == {digest}
    identity = ("request_id", "worker", "number", "row", "served_at_ms", "as_of_ms", "entity")
    assert [[row[k] for k in identity] for row in own] == [
        [row[k] for k in identity] for row in shadows
    ]
    assert {row["request_id"] for row in rows} == {answer.headers["x-request-id"]}
    assert own[0]["as_of_ms"] == answer.json["as_of_ms"]
    [read] = json.loads(own[0]["reads"])
    assert json.loads(read["feature_values"]) == {"sum_n_1d": 12, "count_12d": 2}
    assert read["applied_snapshot"] > 0
    # the read is that of the request, and it is there once
    assert {row["reads"] for row in shadows} == {None}
    assert client.app.counts.logged_predictions["written"] == 6
    reported = page([client.app.counts], client.app.counts.written_s, 0, True).decode()
    assert 'paimon_features_prediction_log_rows_total{result="written"} 6.0' in reported


def test_all_outputs_of_a_version_are_logged_by_name(client: Any, tmp_path: Path) -> None:
    model = of_classes(bias=-800.0)
    client.app.replace_models(models((model, state(model))))
    with_log(client, tmp_path)
    answer = predict(client, {"entities": {"user": [1, 2]}})
    assert answer.json["predictions"] == [[0.0, None], [0.0, None]]  # the logarithm of 0
    client.app.close()
    rows = rows_of(tmp_path)
    assert [row["prediction"] for row in rows] == [None, None]
    assert [json.loads(row["outputs"]) for row in rows] == [
        {"both": [0.0, None], "probability": [0.0]}
    ] * 2


def test_a_row_says_why_its_version_answered(client: Any, tmp_path: Path) -> None:
    challenger = state(CHALLENGER, "challenger", [(0, 5_000)])
    client.app.replace_models(models((MODEL, state(MODEL)), (CHALLENGER, challenger)))
    with_log(client, tmp_path)
    for user in range(20):
        predict(client, {"entities": {"user": [user]}})
    predict(client, {"entities": {"user": [1]}, "version": 2, "explain": True})
    client.app.close()
    rows = rows_of(tmp_path)
    assert {(row["role"], row["version"]) for row in rows} == {
        ("production", 1), ("challenger", 2), ("requested", 2),
    }  # fmt: skip
    assert len(rows) == 21


def test_entities_are_sampled_and_hashed_whoever_asks_for_them(client: Any, tmp_path: Path) -> None:
    client.app.replace_models(models((MODEL, state(MODEL))))
    log = with_log(client, tmp_path, rate=0.5, reads=0.0, salt=b"a secret of some length")
    users = list(range(100))
    for _ in range(2):
        predict(client, {"entities": {"user": users}})
    client.app.close()
    rows = rows_of(tmp_path)
    text = EntityText(b"a secret of some length")
    times = [sum(row["entity"] == text([user]) for row in rows) for user in users]
    # all predictions of an entity or none
    assert set(times) == {0, 2}
    assert 30 < times.count(2) < 70
    assert {row["reads"] for row in rows} == {None}
    assert (log.stats.left_out, log.stats.written) == (200 - len(rows), len(rows))


def test_a_log_without_room_changes_no_reply_and_counts(
    make_client: Callable[..., Any], tmp_path: Path
) -> None:
    client, full = make_client(), make_client()
    for each in (client, full):
        each.app.replace_models(models((MODEL, state(MODEL))))
    (tmp_path / "predictions").write_text("in the way")
    log = with_log(client, tmp_path)
    with_log(full, tmp_path / "other", max_pending=1, limits=SpoolLimits(max_spool_bytes=1))
    for each in (client, full):
        assert predict(each, {"entities": {"user": [1, 2]}}).status == 200
        each.app.close()
    assert log.stats.dropped_disk == 2
    assert log.stats.written == 0
    assert full.app.counts.logged_predictions["dropped_overload"] == 2


def test_settings_name_a_folder_and_hash_unless_set_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "paimon-features.toml"
    file.write_text('[project]\nname = "shop"\n[serve]\nprediction_log = "spool"\n')
    serve = read_config(tmp_path).serve
    assert (serve.prediction_log, serve.prediction_log_rate) == (tmp_path / "spool", 1.0)
    monkeypatch.delenv("PAIMON_FEATURES_REQUEST_LOG_SALT", raising=False)
    with pytest.raises(ConfigurationError, match="hashes entities"):
        open_prediction_log("shop", serve)
    assert open_prediction_log("shop", ServeConfig()) is None
    file.write_text("[serve]\nprediction_log_reads = 1.5\n")
    with pytest.raises(ConfigurationError, match=r"prediction_log_reads = 1\.5"):
        read_config(tmp_path)
