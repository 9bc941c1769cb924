"""Settings of Kafka's client in Flink; secrets reach it by a file that only the owner can read.

An option of a table is in Flink's plan, in error messages and in the submitted job. So the options
contain a reference, which Kafka's client replaces when it connects (its ``FileConfigProvider``).
A file is read again at each start of a source, hence exists as long as the job.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from paimon_features.core.configuration.kafka_settings import KafkaSettings
from paimon_features.core.documents.generated_text import jaas_text, java_property
from paimon_features.core.errors import ConfigurationError

_SHADED = "org.apache.flink.kafka.shaded.org.apache.kafka.common"
"""The package of Kafka's client in the connector."""
_LOGIN = {
    "PLAIN": f"{_SHADED}.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_SHADED}.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_SHADED}.security.scram.ScramLoginModule",
}
_PRIVATE_KEY = "-----BEGIN PRIVATE KEY-----"


def secret_folder(state_dir: Path, source: str) -> Path:
    """Return the folder with the secrets of the job of a source."""
    return state_dir / "kafka" / source


def client_properties(settings: KafkaSettings, folder: Path) -> dict[str, str]:
    """Return the properties of Kafka's client; secrets are written into ``folder``.

    Raises
    ------
    ConfigurationError
        If a file cannot be read or written, is no private key of PKCS #8, or has a path that
        Kafka's references cannot contain.
    """
    properties: dict[str, str] = {}
    if settings.protocol != "PLAINTEXT":
        properties["security.protocol"] = settings.protocol
    if settings.tls_ca is not None:
        properties["ssl.truststore.type"] = "PEM"
        properties["ssl.truststore.location"] = str(settings.tls_ca)
    if settings.tls_cert is not None and settings.tls_key is not None:
        properties["ssl.keystore.type"] = "PEM"
        properties["ssl.keystore.location"] = str(
            _write(folder / "client.pem", _key_and_certificate(settings.tls_key, settings.tls_cert))
        )
    if settings.user is not None and settings.password is not None:
        path = folder / "login.properties"
        if set(":{}") & set(str(path)):
            raise ConfigurationError(
                f"the state folder {folder} has ':', '{{' or '}}' in its path, which Kafka's "
                "references to secrets cannot contain; choose another one by [project] state"
            )
        _write(path, f"jaas={java_property(_jaas(settings))}\n")
        properties["sasl.mechanism"] = settings.mechanism
        properties["config.providers"] = "file"
        properties["config.providers.file.class"] = f"{_SHADED}.config.provider.FileConfigProvider"
        properties["config.providers.file.param.allowed.paths"] = str(folder)
        properties["sasl.jaas.config"] = f"${{file:{path}:jaas}}"
    return properties


def remove_secrets(folder: Path) -> None:
    """Delete what ``client_properties`` wrote, once no job needs it any more."""
    shutil.rmtree(folder, ignore_errors=True)


def _jaas(settings: KafkaSettings) -> str:
    user, password = (jaas_text(text) for text in (settings.user or "", settings.password or ""))
    return f"{_LOGIN[settings.mechanism]} required username={user} password={password};"


def _key_and_certificate(key: Path, certificate: Path) -> str:
    """Return the content of the one file from which Kafka's client reads both."""
    texts = []
    for path in (key, certificate):
        try:
            texts.append(path.read_text("ascii").strip())
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                f"[kafka] {path}: it cannot be read as PEM ({type(error).__name__})"
            ) from None
    if _PRIVATE_KEY not in texts[0]:
        raise ConfigurationError(
            f"[kafka] tls_key {key}: expected an unencrypted PKCS #8 key ({_PRIVATE_KEY}); "
            "'openssl pkcs8 -topk8 -nocrypt -in KEY -out NEW' makes one"
        )
    return "\n".join(texts) + "\n"


def _write(path: Path, text: str) -> Path:
    """Write a file that only its owner can read; in a new file, so that a reader sees all of it."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        draft.replace(path)
    except OSError as error:
        raise ConfigurationError(f"{path}: it cannot be written: {error.strerror}") from error
    return path
