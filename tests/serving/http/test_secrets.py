"""A password is in no reply, log or error, on whatever path something fails."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from paimon_features.core.documents.redaction import redact
from paimon_features.core.errors import OnlineStoreError
from paimon_features.online.store import MemoryStore
from paimon_features.serving.http.access.tokens import add_token
from paimon_features.serving.http.http_errors import STORE_UNAVAILABLE
from paimon_features.serving.http.logs import _JsonLines
from tests.long_cases import quick_cases
from tests.serving.chaos.processes import Server

ROOT = Path(__file__).parents[3]
CANARY = "kanarienvogel/4711@x"
READ = {"feature_service": "reading_v1", "entities": {"user": [1]}}


class Away(MemoryStore):
    def get_many(self, keys: Any) -> Any:
        raise OnlineStoreError("online store redis://db-7.internal:6379/0: refused user 'shop'")


@pytest.mark.parametrize("path", ["/health", "/health/ready", "/get-online-features", "/explain"])
def test_the_address_and_user_of_the_store_are_for_operators_and_the_log(
    make_client: Any, tmp_path: Path, path: str, caplog: Any
) -> None:
    file = tmp_path / "tokens.toml"
    operator = add_token(file, "operations", ["*"], "2026-01-01")
    reader = add_token(file, "reader", ["reading_v1"], "2026-01-01")
    client = make_client(store=Away(), tokens=file)

    def answer(token: str | None) -> str:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        if path == "/get-online-features":
            reply = client.read(READ, headers=headers)
        else:
            query = "view=clicks&entity=user%3D1" if path == "/explain" else ""
            reply = client.get(path, headers=headers, query=query)
        assert reply.status in (401, 503)
        return str(reply.body.decode())

    for token in (None, "unknown", reader):
        assert "db-7" not in answer(token)
        assert "shop" not in answer(token)
    assert STORE_UNAVAILABLE in answer(reader)
    assert "db-7.internal" in answer(operator)
    assert "db-7.internal" in caplog.text


def test_a_failed_reload_is_explained_to_operators_only(make_client: Any, tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    operator = add_token(file, "operations", ["*"], "2026-01-01")
    client = make_client(tokens=file)
    client.app.state.reload_error = "features.py, line 3: x = 1 +"
    assert "line 3" not in str(client.get("/health").body)
    answer = client.get("/health", headers={"authorization": f"Bearer {operator}"})
    assert answer.json["definitions"]["error"] == "features.py, line 3: x = 1 +"


@pytest.mark.parametrize(
    "text",
    [
        f"cannot connect to redis://user:{CANARY}@db:6379/0",
        f"'properties.sasl.jaas.config' = 'PlainLoginModule required password=\"{CANARY}\";'",
        f"{{'fs.s3a.secret.key': '{CANARY}'}}",
        f"s3.secret-key={CANARY}",
        f"accessKeySecret = '{CANARY}'",
        f"the server said {CANARY}",
        f"Authorization: Bearer {CANARY.replace('@', '')}",
    ],
)
def test_secrets_of_every_form_are_removed(text: str) -> None:
    environ = {"PAIMON_FEATURES_ONLINE_PASSWORD": CANARY, "HOME": "/root"}
    assert "kanarienvogel" not in redact(text, environ)


@pytest.mark.parametrize(
    "text",
    [
        "unknown key 'password'; a password comes from the environment",
        "the feature 'token': expected Int64, got 'x'",
        "send the header 'Authorization: Bearer <token>'",
        "kafka://broker:9092 and s3://bucket/key, mail me@example.com",
        "a key: it is missing",
    ],
)
def test_other_texts_stay(text: str) -> None:
    assert redact(text, {"HOME": "/root", "SHORT_TOKEN": "key"}) == text


def test_log_lines_and_tracebacks_have_no_secrets() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_JsonLines())
    logger = logging.Logger("test")
    logger.addHandler(handler)
    try:
        raise ValueError(f"redis://u:{CANARY}@h")
    except ValueError:
        logger.exception("cannot read redis://u:%s@h", CANARY)
    assert "kanarienvogel" not in stream.getvalue()
    assert json.loads(stream.getvalue())["traceback"].startswith("Traceback")


FAILING = {
    "no definitions": "x = 1\n",
    "an error with the address": "import os\nraise ValueError(os.environ['SHOP_URL'])\n",
    "a syntax error": "x = 1 +\n",
}
COMMANDS = (
    ["serve", "--port", "0"],
    ["describe"],
    ["materialize"],
    ["lookup", "clicks", "user=1"],
    ["check", "installation"],
    ["ingest", "files", "clicks", "missing.csv"],
)


@pytest.mark.parametrize(
    "definitions", quick_cases(FAILING, "a syntax error", "an error with the address")
)
def test_commands_that_fail_print_no_secret(tmp_path: Path, definitions: str) -> None:
    (tmp_path / "features.py").write_text(FAILING[definitions])
    (tmp_path / "paimon-features.toml").write_text(
        f'[online]\nurl = "redis://shop:{CANARY}@127.0.0.1:1/0"\n[lake.options]\n'
        f'"s3.access-key" = "{CANARY}"\n'
    )
    url = f"redis://shop:{CANARY}@127.0.0.1:1/0"
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "SHOP_URL": url,
        "AWS_SECRET_ACCESS_KEY": CANARY,
    }
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "paimon_features", *command], cwd=tmp_path, env=environ,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for command in COMMANDS
    ]  # fmt: skip
    for command, process in zip(COMMANDS, running, strict=True):
        output, _ = process.communicate(timeout=300)
        assert output, command
        assert "kanarienvogel" not in output, command


PATHS = ("/health", "/health/ready", "/metrics", "/docs", "/openapi.json", "/features", "/ui",
         "/get-online-features", "/explain?view=clicks&entity=user%3D1")  # fmt: skip


@pytest.mark.redis
def test_a_running_server_with_a_wrong_password_shows_it_nowhere(tmp_path: Path) -> None:
    host = tmp_path / "host"
    host.mkdir()
    (host / "features.py").write_text(
        "from tests.serving.http.conftest import CLICK_VIEW, SERVICES\n"
        "clicks, reading = CLICK_VIEW, SERVICES[0]\n"
    )
    (host / "paimon-features.toml").write_text(
        f'[online]\nurl = "redis://shop:{quote(CANARY, safe="")}@127.0.0.1:1/0"\nretries = 1\n'
    )
    server = Server(host, workers=1)
    seen = ""
    try:
        for path in PATHS:
            body = json.dumps(READ).encode() if path == "/get-online-features" else None
            url = f"http://127.0.0.1:{server.port}{path}"
            try:
                with urllib.request.urlopen(
                    urllib.request.Request(url, body), timeout=120
                ) as reply:
                    seen += reply.read().decode()
            except urllib.error.HTTPError as error:
                seen += error.read().decode()
    finally:
        server.stop()
    assert STORE_UNAVAILABLE in seen
    log = server.log.read_text()
    assert "redis://127.0.0.1:1" in log
    assert "127.0.0.1:1" not in seen
    for text in (seen, log):
        assert "kanarienvogel" not in text
