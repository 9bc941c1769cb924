"""The feature server's request log: every kind of reply, no matter what becomes of the log."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paimon_features.core.configuration.project_config import ServeConfig, read_config
from paimon_features.core.errors import ConfigurationError
from paimon_features.serving.http.metrics import page
from paimon_features.serving.request_log.log import RequestLog, open_request_log
from paimon_features.serving.request_log.log_rows import log_schema
from paimon_features.serving.request_log.spool import read_spool
from tests.tile_lake import PROJECT


def rows_of(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("*.arrow"))
    return [row for path in files for row in read_spool(path, log_schema()).rows.to_pylist()]


def test_answers_are_logged_with_the_ids_that_clients_see(
    make_client: Callable[..., Any], tmp_path: Path
) -> None:
    client = make_client()
    client.app.reads.request_log = RequestLog(tmp_path, PROJECT, rate=1.0)
    reading = {"feature_service": "reading_v1", "entities": {"user": [1, 2]}}
    first = client.read(reading)
    paying = {"feature_service": "paying_v1", "entities": {"user": [1]}, "request": {"amount": 0.3}}
    for accept in ("application/json", "application/msgpack"):
        assert client.read(paying, headers={"accept": accept}).status == 200
    listed = client.read({"features": ["clicks:sum_n_1h"], "entities": {"user": [1]}})
    assert client.read({**reading, "entities": {"nobody": [1]}}).status == 422
    client.app.close()
    rows = rows_of(tmp_path)
    assert [(row["request_id"], row["entity"]) for row in rows[:2]] == [
        (first.headers["x-request-id"], "[1]"), (first.headers["x-request-id"], "[2]"),
    ]  # fmt: skip
    served = first.json["results"][1:]
    names = first.json["metadata"]["feature_names"][1:]
    for i, row in enumerate(rows[:2]):
        values = {name: of["values"][i] for name, of in zip(names, served, strict=True)}
        assert json.loads(row["feature_values"]) == values
    assert [(row["service"], row["view"]) for row in rows[2:]] == [
        ("paying_v1", "clicks"), ("paying_v1", ""), ("paying_v1", "clicks"), ("paying_v1", ""),
        ("", "clicks"),
    ]  # fmt: skip
    assert rows[-1]["request_id"] == listed.headers["x-request-id"]
    assert client.app.counts.logged["written"] == 7
    reported = page([client.app.counts], client.app.counts.written_s, 0, True).decode()
    assert 'paimon_features_request_log_rows_total{result="written"} 7.0' in reported


def test_a_log_that_cannot_be_written_changes_no_reply(
    make_client: Callable[..., Any], tmp_path: Path
) -> None:
    client, other = make_client(), make_client()
    (tmp_path / "spool").write_text("in the way")
    client.app.reads.request_log = RequestLog(tmp_path / "spool", PROJECT, rate=1.0)
    requested = {"feature_service": "reading_v1", "entities": {"user": [1, 2]}}
    ours, theirs = client.read(requested), other.read(requested)
    assert ours.status == theirs.status == 200
    assert ours.json["results"] == theirs.json["results"]
    client.app.close()
    assert client.app.counts.logged["dropped_disk"] == 2


def test_settings_name_a_folder_beside_the_file_and_hash_unless_set_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "paimon-features.toml"
    file.write_text('[project]\nname = "shop"\n[serve]\nrequest_log = "spool"\n')
    serve = read_config(tmp_path).serve
    assert (serve.request_log, serve.request_log_rate) == (tmp_path / "spool", 0.01)
    monkeypatch.delenv("PAIMON_FEATURES_REQUEST_LOG_SALT", raising=False)
    with pytest.raises(ConfigurationError, match="is not set"):
        open_request_log("shop", serve)
    assert open_request_log("shop", ServeConfig()) is None
    file.write_text('[serve]\nrequest_log = "spool"\nrequest_log_rate = 1.5\n')
    with pytest.raises(ConfigurationError, match=r"request_log_rate = 1\.5"):
        read_config(tmp_path)
