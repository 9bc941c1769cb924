"""What to deploy, beyond what a project says itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from paimon_features._version import __version__
from paimon_features.core.errors import ConfigurationError, UnknownNameError

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_OBJECT = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_BROKER = re.compile(r"[A-Za-z0-9._-]+:[0-9]{1,5}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
IMAGES = ("serving", "predict", "materializer", "jobs")
"""The images of docker/Dockerfile that run here."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A Kafka topic that is ingested into a source; ``brokers`` is ``host:port,...``."""

    source: str
    brokers: str
    topic: str

    @classmethod
    def parse(cls, text: str) -> Topic:
        """Parse ``SOURCE=BROKERS/TOPIC``.

        >>> Topic.parse("clicks=kafka-0:9092,kafka-1:9092/clicks")
        Topic(source='clicks', brokers='kafka-0:9092,kafka-1:9092', topic='clicks')

        Raises
        ------
        ConfigurationError
            For another form.
        """
        source, equals, rest = text.partition("=")
        brokers, slash, topic = rest.rpartition("/")
        valid_brokers = all(_BROKER.fullmatch(broker) for broker in brokers.split(","))
        if not (source and equals and slash and valid_brokers and _TOPIC.fullmatch(topic)):
            raise ConfigurationError(
                f"--kafka {text!r}: expected SOURCE=HOST:PORT,.../TOPIC, for example "
                "clicks=kafka:9092/clicks"
            )
        return cls(source, brokers, topic)


@dataclass(frozen=True, slots=True)
class IterationDeployment:
    """A program of iterations, as ``jobs iterate`` takes it; ``name`` names its job."""

    name: str
    program: str

    @classmethod
    def parse(cls, text: str) -> IterationDeployment:
        """Parse ``NAME=FILE.py:FUNCTION``.

        >>> IterationDeployment.parse("train=train.py:build")
        IterationDeployment(name='train', program='train.py:build')

        Raises
        ------
        ConfigurationError
            For another form.
        """
        name, _, program = text.partition("=")
        file, _, function = program.rpartition(":")
        if not (_LABEL.fullmatch(name) and file and function.isidentifier()):
            raise ConfigurationError(
                f"--iterate {text!r}: expected NAME=FILE.py:FUNCTION or NAME=MODULE:FUNCTION, for "
                "example train=train.py:build; the name has lower-case letters, digits and dashes"
            )
        return cls(name, program)

    @property
    def file(self) -> Path | None:
        """The file of the program, relative to the project; None for a module."""
        file = self.program.rpartition(":")[0]
        return Path(file) if file.endswith(".py") else None


@dataclass(frozen=True, slots=True)
class NamedSetting:
    """A setting of ``deploy render --set NAME=VALUE``."""

    name: str
    default: str | int | None
    meaning: str

    @property
    def type(self) -> str:
        """The type of its value, as in a help text."""
        return "INTEGER" if isinstance(self.default, int) else "TEXT"

    def parse(self, text: str) -> str | int:
        """Convert the text of a value.

        Raises
        ------
        ConfigurationError
            For text that is not of its type.
        """
        if not isinstance(self.default, int):
            return text
        if not re.fullmatch("[0-9]{1,9}", text):
            raise ConfigurationError(f"--set {self.name}={text}: expected an integer of 1 or more")
        return int(text)


def _named(default: Any, meaning: str) -> Any:
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True, slots=True)
class DeploySettings:
    """The settings of ``paimon-features deploy render``.

    ``images`` is the prefix of the images' names, ``tag`` their tag; ``digests`` are those of
    images that are pinned, by the names in ``IMAGES``. ``warehouse_claim`` and
    ``state_claim`` are PersistentVolumeClaims that all pods mount (ReadWriteMany). ``predict``
    runs servers from the image that can predict. ``session`` adds a session cluster of Flink,
    highly available by Kubernetes. The fields with a meaning are set by ``--set``; secrets are
    names, their values never get here.
    """

    namespace: str | None = None
    images: str = ""
    tag: str = __version__
    digests: Mapping[str, str] = field(default_factory=dict)
    warehouse_claim: str | None = None
    state_claim: str | None = None
    predict: bool = False
    may_be_open: bool = False
    topics: tuple[Topic, ...] = ()
    iterations: tuple[IterationDeployment, ...] = ()
    session: bool = False
    replicas: int = _named(2, "Minimum number of server pods.")
    max_replicas: int = _named(10, "Maximum number of server pods.")
    in_flight: int = _named(16, "Requests in flight per server pod that the autoscaler aims at.")
    shards: int = _named(1, "Number of materializer pods; each has a share of the buckets.")
    slots: int = _named(2, "Number of parallel tasks of a Flink task manager.")
    online_secret: str | None = _named(
        None,
        "Secret with 'url', 'password' and 'sentinel-password' of the online store; default: "
        "PROJECT-online.",
    )
    tls_secret: str | None = _named(
        None,
        "Secret with ca.crt, tls.crt, tls.key for [online] tls_...; default: PROJECT-online-tls.",
    )
    tokens_secret: str | None = _named(
        None, "Secret with the file of [serve] tokens; default: PROJECT-tokens."
    )
    kafka_secret: str | None = _named(
        None,
        "Secret with 'password' for [kafka] user, and ca.crt, tls.crt, tls.key for [kafka] "
        "tls_...; default: PROJECT-kafka.",
    )
    log_secret: str | None = _named(
        None,
        "Secret with 'salt', by which [serve] request_log and prediction_log hash entities; "
        "default: PROJECT-request-log.",
    )
    lake_secret: str | None = _named(
        None,
        "Secret whose entries become environment variables: an object store's credentials, "
        "PAIMON_FEATURES_CATALOG_TOKEN.",
    )
    flink_service_account: str = _named(
        "flink", "Service account that may create pods; the operator's chart creates it."
    )
    operator_namespace: str = _named(
        "flink-operator", "Namespace of the Flink Kubernetes Operator."
    )
    monitoring_namespace: str = _named("monitoring", "Namespace of Prometheus.")

    def __post_init__(self) -> None:
        for name, pattern in _PATTERNS.items():
            value = getattr(self, name)
            if value is not None and not pattern.fullmatch(value):
                raise ConfigurationError(
                    f"{name} = {value!r}: not a name that Kubernetes accepts "
                    "(lower-case letters, digits, dashes)"
                )
        if not _TAG.fullmatch(self.tag):
            raise ConfigurationError(f"tag = {self.tag!r}: expected a tag of an image")
        for name, digest in self.digests.items():
            if name not in IMAGES or not _DIGEST.fullmatch(digest):
                raise ConfigurationError(
                    f"--digest {name}={digest}: expected IMAGE=sha256:... with 64 hexadecimal "
                    f"digits; the images are {', '.join(IMAGES)}"
                )
        for name in ("replicas", "in_flight", "shards", "slots"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} = {getattr(self, name)}; expected 1 or more")
        if self.max_replicas < self.replicas:
            raise ConfigurationError(
                f"max_replicas = {self.max_replicas}; expected at least replicas, {self.replicas}"
            )

    def image(self, name: str) -> str:
        """Return the complete name of an image.

        >>> DeploySettings(images="registry.example.com/ml/", tag="1.2").image("serving")
        'registry.example.com/ml/paimon-features-serving:1.2'
        """
        assert name in IMAGES, name
        digest = self.digests.get(name)
        pinned = "" if digest is None else f"@{digest}"
        return f"{self.images}paimon-features-{name}:{self.tag}{pinned}"


NAMED_SETTINGS = {
    one.name: NamedSetting(one.name, cast("str | int | None", one.default), **one.metadata)
    for one in fields(DeploySettings)
    if one.metadata
}
"""The settings that ``--set`` names, in the order of its help."""


def parse_settings(texts: Iterable[str]) -> dict[str, str | int]:
    """Parse ``NAME=VALUE`` texts; of a repeated name the last one counts.

    >>> parse_settings(["replicas=3", "lake_secret=s3"])
    {'replicas': 3, 'lake_secret': 's3'}

    Raises
    ------
    ConfigurationError
        For another form, or a value of another type.
    UnknownNameError
        For a name that no setting has.
    """
    values: dict[str, str | int] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (equals and value):
            raise ConfigurationError(f"--set {text}: expected NAME=VALUE")
        setting = NAMED_SETTINGS.get(name)
        if setting is None:
            raise UnknownNameError.of("setting", name, NAMED_SETTINGS, "--set")
        values[name] = setting.parse(value)
    return values


_PATTERNS: Mapping[str, Any] = {
    **dict.fromkeys(("namespace", "operator_namespace", "monitoring_namespace"), _LABEL),
    **dict.fromkeys(
        (
            "warehouse_claim",
            "state_claim",
            "online_secret",
            "lake_secret",
            "tokens_secret",
            "tls_secret",
            "kafka_secret",
            "log_secret",
            "flink_service_account",
        ),
        _OBJECT,
    ),
}
