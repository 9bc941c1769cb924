"""A secret in any form that a text may have it in is removed."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import traceback
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.documents.redaction import redact

NAMES = ("password", "passwd", "client_secret", "secret-key", "s3.secret-key", "api_key", "apiKey",
         "access_token", "fs.s3a.access.key", "AWS_SECRET_ACCESS_KEY", "accountKey", "Passphrase",
         "PAIMON_FEATURES_ONLINE_PASSWORD", "private_key", "session_token")  # fmt: skip
FORMS = (
    "{n}={v}", "{n} = {v}", '{n}="{v}"', "{n} = '{v}'", '"{n}" = "{v}"', "{n}: '{v}'",
    '{{"{n}": "{v}", "x": 1}}', '{{"{n}":"{v}"}}', "{{'{n}': '{v}'}}", "{{'{n}': b'{v}'}}",
    '{{\\"{n}\\": \\"{v}\\"}}', "('{n}', '{v}')", "[(b'{n}', b'{v}')]", "{n} => {v}",
    "{n}: {v}", "  {n}: {v}\nnext: 1", "export {n}={v}", "{n}={v};Timeout=3", "--{n} {v}",
    "--{n}={v}", "<{n}>{v}</{n}>", "<name>{n}</name><value>{v}</value>",
    "https://h/x?{n}={v}&y=1", "https://h/x?y=1&{n}={v}", "https://h/x?{n}%3D{v}%26y",
    '{n} = """{v}"""', "f(user='a', {n}='{v}')", "os.environ['{n}'] = '{v}'", '{n}="{v}',
    "Config(user='u', {n}='{v}', x=1)", "{n}:='{v}'",
)  # fmt: skip
WITHOUT_NAME = (
    "redis://u:{v}@h:6379/0", "redis://:{v}@h", "postgresql+psycopg://u:{v}@h/db?x=1",
    "redis%3A%2F%2Fu%3A{v}%40h", "cannot connect to shop:{v}@db:6379", "u:{v}@tcp(h:3306)/db",
    "Authorization: Basic {v}", "authorization: Bearer {v}", "'Authorization': 'Bearer {v}'",
    "(b'authorization', b'Bearer {v}')", "Proxy-Authorization: Digest {v}", "X-Api-Key: {v}",
    "X-Auth-Token: {v}", "Cookie: session={v}", "curl -H 'X-Api-Key: {v}'", "requirepass {v}",
    "('AUTH', 'default', '{v}')", "https://h/?X-Amz-Signature={v}", "https://h/?a=1&sig={v}",
    "https://h/?token={v}", "-----BEGIN PRIVATE KEY-----\n{v}\n-----END PRIVATE KEY-----",
    "-----BEGIN RSA PRIVATE KEY-----\n{v}",
)  # fmt: skip
SECRETS = st.text("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_+.!", min_size=6,
                  max_size=24).map(lambda text: f"k{text}Z")  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@given(name=st.sampled_from(NAMES), secret=SECRETS)
def test_the_value_of_a_setting_is_removed(form: str, name: str, secret: str) -> None:
    text = form.format(n=name, v=secret)
    for whole in (text, f"cannot start: {text}" if ": {v}" not in form else text, f"{text}\n"):
        assert secret not in redact(whole, {}), redact(whole, {})


@pytest.mark.parametrize("form", WITHOUT_NAME)
@given(secret=SECRETS)
def test_logins_headers_and_keys_are_removed(form: str, secret: str) -> None:
    text = form.format(v=secret)
    assert secret not in redact(text, {}), redact(text, {})


@given(st.text(min_size=6, max_size=20))
def test_a_secret_of_the_environment_is_removed_in_every_encoding(secret: str) -> None:
    if not secret.isprintable() or "\\" in secret or secret.strip("*") == "":
        return
    data = secret.encode()
    for text in (
        secret, quote(secret, safe=""), quote(secret), quote_plus(secret), repr(secret)[1:-1],
        json.dumps(secret)[1:-1], json.dumps({"a": secret}, ensure_ascii=False),
        base64.b64encode(data).decode(), data.hex(), repr(data)[2:-1], repr(repr(secret)),
    ):  # fmt: skip
        found = redact(f"refused ({text})", {"SHOP_PASSWORD": secret})
        assert text not in found or len(text) < 6


def test_causes_and_notes_of_errors_have_no_secret() -> None:
    try:
        try:
            raise OSError("redis://u:hunter2@h refused")
        except OSError as error:
            error.add_note("password = 'hunter2'")
            raise ValueError('{"secret": "hunter2"}') from error
    except ValueError as error:
        text = "".join(traceback.format_exception(error))
    assert "hunter2" not in redact(text.replace("raise ", ""), {})


def test_uncaught_errors_of_threads_are_printed_without_secrets() -> None:
    program = (
        "import threading\n"
        "from paimon_features.core.documents.redaction import redact_uncaught_errors\n"
        "redact_uncaught_errors()\n"
        "def fail():\n"
        "    raise ValueError('redis://u:' + 'hunter' + '2@h')\n"
        "thread = threading.Thread(target=fail)\n"
        "thread.start()\n"
        "thread.join()\n"
        "fail()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr.count("ValueError: redis://***@h") == 2
    assert "hunter2" not in done.stderr


@pytest.mark.parametrize(
    "text",
    [
        "unknown key 'password'; a password comes from the environment",
        "the feature 'token': expected Int64, got 'x'",
        "send the header 'Authorization: Bearer <token>'",
        "kafka://broker:9092 and s3://bucket/key, mail me@example.com",
        "a key: it is missing", "expected one of: secret, token", "--kafka-password FILE",
        "columns: user_id, passes, secretary", "events@12", "spend:sum_amount_1d", "a:b@12",
        "primary key = customer_id", "bucket-key=user", "12:30:45", "the token file /x/tokens.toml",
    ],
)  # fmt: skip
def test_other_texts_stay(text: str) -> None:
    assert redact(text, {}) == text


def test_the_current_folder_is_no_secret() -> None:
    folders = {"PWD": "/srv/shop", "OLDPWD": "/srv/other", "DB_PWD": "hunter2"}
    assert redact("/srv/shop, /srv/other, hunter2", folders) == "/srv/shop, /srv/other, ***"
