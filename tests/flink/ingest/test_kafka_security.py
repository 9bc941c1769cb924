"""Secrets of Kafka's client stand in files of their owner, and not in the options of a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from paimon_features.core.configuration.kafka_settings import KafkaSettings
from paimon_features.core.errors import ConfigurationError
from paimon_features.ingest.flink.kafka_security import client_properties, remove_secrets
from paimon_features.ingest.flink.kafka_sql import KafkaTopic, kafka_scan, topic_columns
from tests.flink.ingest.click_source import CLICKS


@pytest.fixture
def settings(tmp_path: Path) -> KafkaSettings:
    (tmp_path / "key.pem").write_text("-----BEGIN PRIVATE KEY-----\nsecret-key\n")
    (tmp_path / "cert.pem").write_text("-----BEGIN CERTIFICATE-----\npublic\n")
    return KafkaSettings(
        tls=True,
        tls_ca=tmp_path / "ca.pem",
        tls_cert=tmp_path / "cert.pem",
        tls_key=tmp_path / "key.pem",
        user="u",
        password='a"b\\c',
    )


def test_the_ddl_of_a_topic_refers_to_secrets_and_contains_none(
    tmp_path: Path, settings: KafkaSettings
) -> None:
    folder = tmp_path / "state/kafka/clicks"
    properties = client_properties(settings, folder)
    columns = topic_columns(CLICKS, {})
    topic = KafkaTopic("a:1", "clicks", "g", columns, properties=properties)
    ddl = kafka_scan("in_0", topic).table
    assert ddl is not None
    assert f"'properties.sasl.jaas.config' = '${{file:{folder}/login.properties:jaas}}'" in ddl
    assert "'properties.security.protocol' = 'SASL_SSL'" in ddl
    for secret in ('a"b', "secret-key", "password"):
        assert secret not in ddl
    # a properties file, in which a backslash is escaped once more
    login = (folder / "login.properties").read_text()
    assert login.startswith("jaas=org.apache.flink.kafka.shaded.")
    assert login.endswith('username="u" password="a\\\\"b\\\\\\\\c";\n')
    assert "secret-key" in (folder / "client.pem").read_text()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    remove_secrets(folder)
    remove_secrets(folder)
    assert not folder.exists()


def test_without_security_nothing_is_written(tmp_path: Path) -> None:
    assert client_properties(KafkaSettings(), tmp_path / "state/kafka/clicks") == {}
    assert not (tmp_path / "state").exists()


def test_a_key_of_another_form_is_refused_with_the_command_that_converts_it(
    tmp_path: Path, settings: KafkaSettings
) -> None:
    (tmp_path / "key.pem").write_text("-----BEGIN RSA PRIVATE KEY-----\nsecret-key\n")
    with pytest.raises(ConfigurationError, match="openssl pkcs8 -topk8 -nocrypt") as caught:
        client_properties(settings, tmp_path / "kafka/clicks")
    assert "secret-key" not in str(caught.value)


def test_a_state_folder_that_a_reference_cannot_name_is_refused(
    tmp_path: Path, settings: KafkaSettings
) -> None:
    with pytest.raises(ConfigurationError, match="choose another one by .project. state"):
        client_properties(settings, tmp_path / "a:b/kafka/clicks")
