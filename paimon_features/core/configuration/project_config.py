"""What ``paimon-features.toml`` says, checked and with its defaults."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from paimon_features.core.errors import ConfigurationError, DefinitionError, unknown_name
from paimon_features.core.times.durations import parse_duration
from paimon_features.core.types.schema import NAME

FILE_NAME = "paimon-features.toml"
_HOST_NAME = re.compile(r"\.?[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_S3_FOLDER = re.compile(r"s3://[A-Za-z0-9._-]+/[^\s?#]*[^\s?#/]/?")
ENGINES = ("flink", "local")
TOKEN_USE_FILES = "token-use-*.jsonl"
"""The files in the folder of ``[serve] audit``."""
SALT_VARIABLE = "PAIMON_FEATURES_REQUEST_LOG_SALT"
"""The environment variable with the secret for hashing entities in logs."""
FILES_OF_HOSTS: Mapping[str, tuple[str, ...]] = {
    "serve": ("tokens",),
    **dict.fromkeys(("online", "kafka"), ("tls_ca", "tls_cert", "tls_key")),
}
"""Settings whose files can be elsewhere on each host, by table; see ``file_variable``."""
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class FlinkConfig:
    """How jobs run: ``checkpoint_interval_ms`` is also how often tiles are committed. ``wire`` is
    what iterations on a cluster send their feedback through: ``redis://...`` or ``memory``.

    ``checkpoints`` is the folder ``s3://...`` of checkpoints and savepoints, None for the state
    folder; ``checkpoint_options`` are endpoint, region and keys of its store.
    """

    parallelism: int = 2
    checkpoint_interval_ms: int = 1_000
    wire: str | None = None
    checkpoints: str | None = None
    # may contain keys, so it is not printed
    checkpoint_options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class CatalogConfig:
    """A Paimon REST catalog: the address of its server, and the name of a warehouse there."""

    uri: str
    warehouse: str


ASYMMETRIC = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
"""Algorithms of JWTs whose keys can be public."""


@dataclass(frozen=True, slots=True)
class OidcConfig:
    """The identity provider whose JWTs the feature server accepts.

    A token has the issuer and one of the audiences; its times may be off by ``clock_skew_ms``.
    ``jwks_url`` is where its keys are, by default where the issuer's configuration says, and
    ``tls_ca`` the absolute path of certificates that sign the provider's, None for those of the
    system. The claim ``roles_claim`` has the values that give roles; a dot leads into an object.
    """

    issuer: str
    audience: tuple[str, ...]
    jwks_url: str | None = None
    algorithms: tuple[str, ...] = ("RS256", "ES256")
    roles_claim: str = "roles"
    clock_skew_ms: int = 30_000
    refresh_ms: int = 600_000
    tls_ca: Path | None = None


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """The feature server: where it listens, who may read, and what it takes at most.

    ``tokens`` is the absolute path of the token file, None where everybody may read; with ``oidc``
    its roles are also given to JWTs of an identity provider. ``audit`` is the absolute path of the
    folder for summaries of the tokens' use, None for no summaries. Limits of
    one request: ``max_body_bytes``, ``max_entities``, ``max_features`` and, for both together,
    ``max_values``; a text among its entity keys and request inputs has at most ``max_text_bytes``
    in UTF-8. A worker takes on ``max_concurrent`` requests at once, and none that would
    wait for longer than ``max_wait_ms``. Requests for other names than ``hosts`` are rejected
    (see ``host_names``). It has at most ``max_connections`` connections and keeps
    at most ``max_buffered_bytes`` of requests and unread replies in memory. A head and a body
    have to be complete within ``head_timeout_ms`` and ``body_timeout_ms``, a reply has to be read
    within ``reply_timeout_ms`` and the time of its bytes at 64 KB/s, and a connection without
    requests is closed after ``idle_timeout_ms``. Of the requests that went well, a share of
    ``log_sample`` is logged; those that did not, always. With ``request_log``, the absolute path
    of a folder, a share of ``request_log_rate`` of the answers is kept there for
    ``paimon-features request-log`` and ``verify --from-log``, with hashed entities unless
    ``request_log_hash`` is false. ``prediction_log`` is such a folder for predictions: those of a
    share of ``prediction_log_rate`` of the entities, in a share of ``prediction_log_reads`` of the
    requests with the values that were read. A file of either folder is complete, and can be
    committed, after ``spool_age_ms``. ``bundle`` is where definitions are read and ``apply``
    publishes them: ``online``, the online store, or the absolute path of a file; None: the
    definitions file.
    A run of a model's network has at most ``predict_batch`` rows and ``predict_threads`` threads,
    and waits for more rows for at most ``predict_delay_ms``; a prediction that is not made within
    ``predict_timeout_ms`` is an error. A network that does not load and run one row within
    ``predict_load_timeout_ms`` is not served.
    """

    host: str = "127.0.0.1"
    port: int = 6566
    workers: int = 1
    tokens: Path | None = None
    oidc: OidcConfig | None = None
    audit: Path | None = None
    hosts: tuple[str, ...] | None = None
    max_body_bytes: int = 8 << 20
    max_entities: int = 20_000
    max_features: int = 2_000
    max_values: int = 2_000_000
    max_text_bytes: int = 4_096
    max_concurrent: int = 256
    max_wait_ms: int = 200
    max_connections: int = 1_000
    max_buffered_bytes: int = 64 << 20
    head_timeout_ms: int = 10_000
    body_timeout_ms: int = 10_000
    idle_timeout_ms: int = 75_000
    reply_timeout_ms: int = 30_000
    cache_ms: int = 0
    cache_entities: int = 10_000
    log_level: str = "info"
    log_sample: float = 1.0
    reload: bool = True
    request_log: Path | None = None
    request_log_rate: float = 0.01
    request_log_hash: bool = True
    prediction_log: Path | None = None
    prediction_log_rate: float = 1.0
    prediction_log_reads: float = 0.1
    prediction_log_hash: bool = True
    spool_age_ms: int = 60_000
    bundle: str | None = None
    predict_batch: int = 32
    predict_delay_ms: int = 0
    predict_threads: int = 1
    predict_timeout_ms: int = 2_000
    predict_load_timeout_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class ProjectConfig:
    """Settings of a project; paths are absolute.

    ``online`` is what ``[online]`` says; ``paimon_features.online.store.OnlineSettings`` reads it;
    ``kafka`` what ``[kafka]`` says, which ``paimon_features.core.configuration.kafka_settings``
    reads; ``outcomes`` what ``[outcomes.MODEL]`` says, by model, which
    ``paimon_features.project.outcomes.rule`` reads.
    ``mlflow`` is the address of an MLflow server that gets a copy of models, of ``[models]``.
    ``lake_options`` and ``side_folder`` are about a remote warehouse, ``catalog`` is what
    ``[lake.catalog]`` says, None without it; ``Lake.open`` takes them.
    """

    name: str
    root: Path
    definitions: Path
    warehouse: str
    database: str
    online: Mapping[str, Any]
    flink: FlinkConfig
    state_dir: Path
    serve: ServeConfig = field(default_factory=ServeConfig)
    # may contain keys, so it is not printed
    lake_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    side_folder: Path | None = None
    catalog: CatalogConfig | None = None
    kafka: Mapping[str, Any] = field(default_factory=dict)
    outcomes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # source -> how its files are written, as ``core.configuration.input_settings`` reads it
    inputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    # what ingests files and computes tiles where a command names no engine
    engine: str = "flink"
    openlineage: str | None = None
    """Where events of OpenLineage go: an address ``http...``, or the absolute path of a file."""
    # may contain a password
    mlflow: str | None = field(default=None, repr=False)


_TYPES: Mapping[str, type] = {
    **{kind.__name__: kind for kind in (int, float, bool, str)},
    "Path": str,
    "tuple": list,
    "OidcConfig": dict,
}
"""The TOML type of a setting, by its annotation."""


def _keys_of(kind: type, **other: type) -> dict[str, type]:
    """Return the keys of the table of these settings, and their types; a duration is a text."""
    keys: dict[str, type] = {}
    for setting in fields(kind):
        name = re.split(r"\W", str(setting.type))[0]
        is_duration = setting.name.endswith("_ms")
        keys[setting.name.removesuffix("_ms")] = str if is_duration else _TYPES.get(name, object)
    return {**keys, **other}


# an audience is a text or a list
_OIDC = _keys_of(OidcConfig, audience=object)
_CATALOG: Mapping[str, type] = dict.fromkeys(("type", "uri", "warehouse"), str)

_KNOWN: Mapping[str, Mapping[str, type]] = {
    "project": {"name": str, "definitions": str, "state": str, "engine": str},
    "lake": {
        **dict.fromkeys(("warehouse", "database", "side_folder"), str),
        **dict.fromkeys(("options", "catalog"), dict),
    },
    "online": {
        **dict.fromkeys(("url", "user", "key_prefix", "tls_ca", "tls_cert", "tls_key"), str),
        **dict.fromkeys(("connect_timeout", "timeout", "write_timeout"), str),
        **dict.fromkeys(("retries", "connections"), int),
        "tls_verify": bool,
    },
    "kafka": {
        **dict.fromkeys(("brokers", "tls_ca", "tls_cert", "tls_key", "mechanism", "user"), str),
        **dict.fromkeys(("password_file", "partition_discovery"), str),
        "tls": bool,
    },
    "lineage": {"openlineage": str},
    "models": {"mlflow": str},
    "flink": {"parallelism": int, "checkpoint_interval": str, "wire": str, "checkpoints": str},
    "serve": _keys_of(ServeConfig),
}

_OUTCOME_KEYS: Mapping[str, type] = {
    **dict.fromkeys(("source", "rows", "where", "label", "take", "within", "lateness"), str),
    "otherwise": float,
    "time": str,
    "keys": dict,
}
"""Of a table [outcomes.MODEL]."""


def find_root(path: Path) -> Path:
    """Return the nearest folder at or above ``path`` that contains ``paimon-features.toml``.

    Raises
    ------
    ConfigurationError
        If there is none.
    """
    start = path.resolve()
    for folder in (start, *start.parents):
        if (folder / FILE_NAME).is_file():
            return folder
    raise ConfigurationError(
        f"no {FILE_NAME} in {start} or a folder above it; 'paimon-features init' creates a project"
    )


def read_config(root: Path) -> ProjectConfig:
    """Read and check the configuration of the project in ``root``.

    Raises
    ------
    ConfigurationError
        For a file that is not TOML, an unknown table or key, or a value of the wrong type.
    """
    path = root / FILE_NAME
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{path}: {error}") from error
    _replace_files(document)
    outcomes = document.pop("outcomes", {})
    _check_outcomes(path, outcomes)
    inputs = document.pop("inputs", {})
    if not isinstance(inputs, dict) or not all(isinstance(v, dict) for v in inputs.values()):
        raise ConfigurationError(f"{path}: [inputs]; expected a table [inputs.NAME] for a source")
    for table, values in document.items():
        _check_table(path, table, values)

    def value(table: str, key: str, default: Any) -> Any:
        return document.get(table, {}).get(key, default)

    name = value("project", "name", root.name)
    if not NAME.fullmatch(name):
        raise ConfigurationError(
            f"{path}: [project] name = {name!r}; expected lower-case letters, digits, underscores"
        )
    engine = value("project", "engine", "flink")
    if engine not in ENGINES:
        raise ConfigurationError(
            f"{path}: [project] engine = {engine!r}; expected {' or '.join(map(repr, ENGINES))}"
        )
    parallelism = value("flink", "parallelism", FlinkConfig().parallelism)
    if parallelism < 1:
        raise ConfigurationError(f"{path}: [flink] parallelism = {parallelism}; expected 1 or more")
    try:
        interval_ms = parse_duration(value("flink", "checkpoint_interval", "1s"))
    except DefinitionError as error:
        raise ConfigurationError(f"{path}: [flink] checkpoint_interval: {error}") from error
    warehouse = value("lake", "warehouse", "lake")
    if "://" not in warehouse:
        warehouse = str((root / warehouse).resolve())
    side = value("lake", "side_folder", None)
    lake_options = {name: str(text) for name, text in value("lake", "options", {}).items()}
    checkpoints = value("flink", "checkpoints", None)
    if checkpoints is not None and not _S3_FOLDER.fullmatch(checkpoints):
        raise ConfigurationError(
            f"{path}: [flink] checkpoints = {checkpoints!r}; expected s3://BUCKET/FOLDER (for a "
            "folder that all hosts see, set [project] state)"
        )
    return ProjectConfig(
        name=name,
        root=root,
        definitions=root / value("project", "definitions", "features.py"),
        warehouse=warehouse,
        database=value("lake", "database", "features"),
        online={"url": "redis://127.0.0.1:6379/0", **document.get("online", {})},
        flink=FlinkConfig(
            parallelism,
            interval_ms,
            value("flink", "wire", None),
            None if checkpoints is None else checkpoints.rstrip("/"),
            lake_options if warehouse.startswith("s3") else {},
        ),
        state_dir=(root / value("project", "state", ".paimon-features")).resolve(),
        serve=_serve(path, document.get("serve", {})),
        lake_options=lake_options,
        side_folder=None if side is None else (root / side).resolve(),
        catalog=_catalog(path, value("lake", "catalog", None)),
        kafka=document.get("kafka", {}),
        outcomes=outcomes,
        inputs=inputs,
        engine=engine,
        openlineage=_openlineage(root, value("lineage", "openlineage", None)),
        mlflow=value("models", "mlflow", None),
    )


def file_variable(table: str, key: str) -> str:
    """Return the environment variable that replaces the path of a file that a setting names.

    >>> file_variable("serve", "tokens")
    'PAIMON_FEATURES_SERVE_TOKENS'
    """
    return f"PAIMON_FEATURES_{table}_{key}".upper()


def _replace_files(document: dict[str, Any]) -> None:
    for table, keys in FILES_OF_HOSTS.items():
        for key in keys:
            path = os.environ.get(file_variable(table, key))
            values = document.setdefault(table, {}) if path else None
            if isinstance(values, dict):
                values[key] = path


def _catalog(path: Path, values: Mapping[str, Any] | None) -> CatalogConfig | None:
    if values is None:
        return None
    where = f"{path}: [lake.catalog]"
    _check_keys(where, _CATALOG, values)
    if values.get("type", "rest") != "rest":
        raise ConfigurationError(f"{where} type = {values['type']!r}; expected 'rest'")
    for name in ("uri", "warehouse"):
        if not values.get(name):
            raise ConfigurationError(
                f"{where} {name} is missing; expected uri, the address of the server, and "
                "warehouse, its name for the warehouse"
            )
    if not is_trusted_url(values["uri"]):
        raise ConfigurationError(
            f"{where} uri = {values['uri']!r}; expected https://HOST/... (http only on this host): "
            "each request contains the token"
        )
    return CatalogConfig(values["uri"].rstrip("/"), values["warehouse"])


def _openlineage(root: Path, where: str | None) -> str | None:
    if where is None or where.startswith(("http://", "https://")):
        return where
    return str((root / where).resolve())


def _settings(where: str, root: Path, kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a table: paths are made absolute, durations milliseconds."""
    settings = dict(values)
    for setting in fields(kind):
        key = setting.name.removesuffix("_ms")
        if key not in settings:
            continue
        if setting.name.endswith("_ms"):
            try:
                settings[setting.name] = parse_duration(settings.pop(key))
            except DefinitionError as error:
                raise ConfigurationError(f"{where} {key}: {error}") from error
        elif str(setting.type).startswith("Path"):
            # symbolic links stay: of a mounted Secret they lead to its version of this moment
            settings[key] = Path(os.path.abspath(root / settings[key]))
    return settings


def _serve(path: Path, values: Mapping[str, Any]) -> ServeConfig:
    settings = _settings(f"{path}: [serve]", path.parent, ServeConfig, values)
    if "oidc" in settings:
        settings["oidc"] = _oidc(path, settings["oidc"])
        if "tokens" not in settings:
            raise ConfigurationError(
                f"{path}: [serve.oidc] needs [serve] tokens: the file with the roles that claims "
                "give, [role.NAME] with oidc = [VALUES OF THE CLAIM]"
            )
    if settings.get("bundle", "online") != "online":
        settings["bundle"] = str((path.parent / settings["bundle"]).resolve())
    if "hosts" in settings:
        settings["hosts"] = tuple(settings["hosts"])
        for name in settings["hosts"]:
            if not isinstance(name, str) or not _HOST_NAME.fullmatch(name):
                raise ConfigurationError(
                    f"{path}: [serve] hosts: {name!r}; expected names without scheme and port, "
                    "such as 'features.example.com', or '.example.com' for all below it"
                )
    # two of the largest bodies fit, with the quarter that is left to small ones
    least = 3 * settings.get("max_body_bytes", ServeConfig().max_body_bytes)
    if settings.setdefault("max_buffered_bytes", max(64 << 20, least)) < least:
        raise ConfigurationError(
            f"{path}: [serve] max_buffered_bytes = {settings['max_buffered_bytes']}; expected at "
            f"least three times max_body_bytes, {least}"
        )
    serve = ServeConfig(**settings)
    for name in sorted(settings):
        number = getattr(serve, name)
        if type(number) is int and not (0 if name == "port" else 1) <= number < 2**31:
            raise ConfigurationError(f"{path}: [serve] {name} = {number}; expected 1 or more")
    if serve.port > 65_535:
        raise ConfigurationError(f"{path}: [serve] port = {serve.port}; expected 0 to 65535")
    if serve.log_level not in LOG_LEVELS:
        raise ConfigurationError(
            f"{path}: [serve] log_level = {serve.log_level!r}; expected {', '.join(LOG_LEVELS)}"
        )
    for name in (setting.name for setting in fields(serve) if setting.type == "float"):
        share = getattr(serve, name)
        if not 0 <= share <= 1:
            raise ConfigurationError(
                f"{path}: [serve] {name} = {share}; expected a share from 0.0 to 1.0"
            )
    return serve


def is_trusted_url(url: str) -> bool:
    """Return True if nobody between the hosts can change what the address returns: https, or this
    host."""
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    local = host in ("localhost", "127.0.0.1", "::1")
    return bool(host) and (parts.scheme == "https" or (parts.scheme == "http" and local))


def _oidc(path: Path, values: Mapping[str, Any]) -> OidcConfig:
    where = f"{path}: [serve.oidc]"
    _check_keys(where, _OIDC, values)
    for name in ("issuer", "audience"):
        if not values.get(name):
            raise ConfigurationError(f"{where} {name} is missing; expected the {name} of the JWTs")
    settings = _settings(where, path.parent, OidcConfig, values)
    for name in ("issuer", "jwks_url"):
        if name in settings and not is_trusted_url(settings[name]):
            raise ConfigurationError(
                f"{where} {name} = {settings[name]!r}; expected https://HOST/... (http only on "
                "this host): whoever can change keys on their way can make tokens"
            )
    settings["audience"] = _texts(where, "audience", settings["audience"])
    if "algorithms" in settings:
        settings["algorithms"] = _texts(where, "algorithms", settings["algorithms"])
        for name in settings["algorithms"]:
            if name not in ASYMMETRIC:
                raise ConfigurationError(
                    f"{where} algorithms: {name!r}; expected some of {', '.join(ASYMMETRIC)}"
                )
    config = OidcConfig(**settings)
    if config.clock_skew_ms > 300_000 or not 60_000 <= config.refresh_ms <= 86_400_000:
        raise ConfigurationError(
            f"{where}: clock_skew {config.clock_skew_ms} ms, refresh {config.refresh_ms} ms; "
            "expected at most 5min, and from 1min to 1d"
        )
    return config


def _texts(where: str, key: str, value: Any) -> tuple[str, ...]:
    """Return a text or a list of texts."""
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not values or not all(isinstance(v, str) for v in values):
        raise ConfigurationError(f"{where} {key} = {value!r}; expected a list of texts")
    return tuple(values)


def _check_table(path: Path, table: str, values: object) -> None:
    key_types = _KNOWN.get(table)
    if key_types is None or not isinstance(values, dict):
        raise ConfigurationError(
            f"{path}: unknown entry {table!r}; expected the tables {', '.join(_KNOWN)}, "
            "inputs.SOURCE, outcomes.MODEL"
        )
    _check_keys(f"{path}: [{table}]", key_types, values)


def _check_outcomes(path: Path, tables: object) -> None:
    for model, values in tables.items() if isinstance(tables, dict) else [("MODEL", None)]:
        if not isinstance(values, dict):
            raise ConfigurationError(
                f"{path}: outcomes.{model} is not a table; expected [outcomes.{model}] with: "
                f"{', '.join(_OUTCOME_KEYS)}"
            )
        if type(values.get("otherwise")) is int:
            values["otherwise"] = float(values["otherwise"])
        _check_keys(f"{path}: [outcomes.{model}]", _OUTCOME_KEYS, values)
        if not all(isinstance(text, str) for text in values.get("keys", {}).values()):
            raise ConfigurationError(
                f"{path}: [outcomes.{model}] keys = {values['keys']!r}; expected the name of a "
                "column for each key"
            )


def _check_keys(where: str, key_types: Mapping[str, type], values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if key not in key_types:
            secret = key in ("password", "token")
            hint = f"; a {key} comes from the environment" if secret else ""
            raise ConfigurationError(f"{where}: {unknown_name('key', key, key_types)}{hint}")
        if key_types[key] is not object and type(value) is not key_types[key]:
            raise ConfigurationError(
                f"{where} {key} = {value!r}; expected {key_types[key].__name__}"
            )
