"""What ``paimon-features.toml`` says, checked and with its defaults."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paimon_features.errors import ConfigurationError, DefinitionError
from paimon_features.schema import NAME
from paimon_features.windows import parse_duration

FILE_NAME = "paimon-features.toml"


@dataclass(frozen=True, slots=True)
class FlinkConfig:
    """How jobs run: ``checkpoint_interval_ms`` is also how often tiles are committed."""

    parallelism: int = 2
    checkpoint_interval_ms: int = 1_000


@dataclass(frozen=True, slots=True)
class ProjectConfig:
    """Settings of a project; paths are absolute."""

    name: str
    root: Path
    definitions: Path
    warehouse: str
    database: str
    online_url: str
    flink: FlinkConfig
    state_dir: Path


_KNOWN: Mapping[str, Mapping[str, type]] = {
    "project": {"name": str, "definitions": str, "state": str},
    "lake": {"warehouse": str, "database": str},
    "online": {"url": str},
    "flink": {"parallelism": int, "checkpoint_interval": str},
}


def find_root(path: Path) -> Path:
    """The nearest folder at or above ``path`` that holds ``paimon-features.toml``.

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
        f"there is no {FILE_NAME} in {start} or above; 'paimon-features init' makes a project"
    )


def read_config(root: Path) -> ProjectConfig:
    """Read and check the configuration of the project in ``root``.

    ``PAIMON_FEATURES_ONLINE_URL`` replaces the online store's address, so that a password
    need not stand in a file.

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
    for table, values in document.items():
        _check_table(path, table, values)

    def value(table: str, key: str, default: Any) -> Any:
        return document.get(table, {}).get(key, default)

    name = value("project", "name", root.name)
    if not NAME.fullmatch(name):
        raise ConfigurationError(
            f"{path}: [project] name = {name!r}; expected lower-case letters, digits, underscores"
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
    return ProjectConfig(
        name=name,
        root=root,
        definitions=root / value("project", "definitions", "features.py"),
        warehouse=warehouse,
        database=value("lake", "database", "features"),
        online_url=os.environ.get("PAIMON_FEATURES_ONLINE_URL")
        or value("online", "url", "redis://127.0.0.1:6379/0"),
        flink=FlinkConfig(parallelism, interval_ms),
        state_dir=(root / value("project", "state", ".paimon-features")).resolve(),
    )


def _check_table(path: Path, table: str, values: object) -> None:
    known = _KNOWN.get(table)
    if known is None or not isinstance(values, dict):
        raise ConfigurationError(
            f"{path}: unknown entry {table!r}; expected the tables {', '.join(_KNOWN)}"
        )
    for key, value in values.items():
        if key not in known:
            raise ConfigurationError(
                f"{path}: [{table}] has an unknown key {key!r}; it takes: {', '.join(known)}"
            )
        if type(value) is not known[key]:
            raise ConfigurationError(
                f"{path}: [{table}] {key} = {value!r}; expected {known[key].__name__}"
            )
