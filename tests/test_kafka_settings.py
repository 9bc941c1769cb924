"""``[kafka]`` of a project: checked before anything starts, and its password never shown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from paimon_features.core.configuration.kafka_settings import PASSWORD_VARIABLE, KafkaSettings
from paimon_features.core.configuration.project_config import read_config
from paimon_features.core.errors import ConfigurationError

SECRET = {PASSWORD_VARIABLE: "hunter-two"}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("ca.pem", "cert.pem", "key.pem"):
        (tmp_path / name).write_text("pem")
    (tmp_path / "password").write_bytes(b" from a file \r\n")
    (tmp_path / "two-lines").write_text("a\nb\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "long").write_text("x" * 5_000)
    return tmp_path


def test_a_project_without_the_table_connects_without_security(tmp_path: Path) -> None:
    (tmp_path / "paimon-features.toml").write_text("")
    settings = KafkaSettings.of(read_config(tmp_path).kafka, tmp_path, {})
    assert (settings.protocol, settings.brokers, settings.discovery_ms) == (
        "PLAINTEXT", None, 60_000
    )  # fmt: skip


def test_the_table_is_read_with_paths_relative_to_the_project(root: Path) -> None:
    (root / "paimon-features.toml").write_text(
        '[kafka]\nbrokers = "a:1,b:2"\ntls = true\ntls_ca = "ca.pem"\nuser = "u"\n'
        'mechanism = "PLAIN"\npassword_file = "password"\npartition_discovery = "5s"\n'
    )
    values = read_config(root).kafka
    settings = KafkaSettings.of(values, root, {})
    assert settings.protocol == "SASL_SSL"
    assert settings.tls_ca == root / "ca.pem"
    assert settings.password == " from a file "
    assert settings.discovery_ms == 5_000
    assert "from a file" not in repr(settings)
    # the environment overrides the file
    assert KafkaSettings.of(values, root, SECRET).password == "hunter-two"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"brokers": "a"}, "[kafka] brokers = a: 'a' is not host:port"),
        ({"tls_ca": "ca.pem"}, "tls_ca requires tls = true"),
        ({"tls": True, "tls_ca": "gone.pem"}, "tls_ca: no such file"),
        ({"tls": True, "tls_cert": "cert.pem"}, "tls_cert and tls_key belong together"),
        ({"mechanism": "PLAIN"}, "mechanism and password_file require user"),
        ({"user": "u", "mechanism": "GSSAPI"}, "expected one of: SCRAM-SHA-512, SCRAM-SHA-256"),
        ({"user": "u"}, f"user 'u' has no password; set {PASSWORD_VARIABLE}"),
        ({"user": "u", "password_file": "gone"}, "password_file: no such file"),
        ({"user": "u", "password_file": "two-lines"}, "at most 4096 characters of one line"),
        ({"user": "u", "password_file": "long"}, "at most 4096 characters of one line"),
        ({"user": "u", "password_file": "binary"}, "cannot be read as UTF-8 text"),
        ({"partition_discovery": "soon"}, "[kafka] partition_discovery: "),
    ],
)
def test_an_invalid_value_is_an_error_that_says_what_is_expected(
    root: Path, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(message)):
        KafkaSettings.of(values, root, {})


def test_a_password_in_the_file_of_the_project_is_refused(tmp_path: Path) -> None:
    (tmp_path / "paimon-features.toml").write_text('[kafka]\npassword = "hunter-two"\n')
    with pytest.raises(ConfigurationError, match="a password comes from the environment") as caught:
        read_config(tmp_path)
    assert "hunter-two" not in str(caught.value)
