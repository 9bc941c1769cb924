"""The project's files, which pods mount from a ConfigMap."""

from __future__ import annotations

import base64
import hashlib
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from paimon_features.core.configuration.project_config import FILE_NAME, ProjectConfig
from paimon_features.core.errors import ConfigurationError
from paimon_features.project.deploy.names import object_name

PROJECT = PurePosixPath("/project")
"""The folder of the project in every image."""
MAX_BYTES = 1_000_000
"""Somewhat less than the 1 MiB that Kubernetes takes."""
FITTED = "fitted"
"""The folder of fitted transformers next to the definitions."""


@dataclass(frozen=True, slots=True)
class ProjectFiles:
    """Files by their paths relative to the project's folder.

    >>> files = ProjectFiles("shop", {"paimon-features.toml": b"", "lib/units.py": b"x = 1"})
    >>> [mount["mountPath"] for mount in files.mounts()]
    ['/project/lib/units.py', '/project/paimon-features.toml']
    """

    project: str
    contents: Mapping[str, bytes]

    @property
    def digest(self) -> str:
        """A hash of all names and contents."""
        total = hashlib.sha256()
        for name, content in sorted(self.contents.items()):
            total.update(f"{name}\0{len(content)}\0".encode() + content)
        return total.hexdigest()[:10]

    @property
    def name(self) -> str:
        """The name of the ConfigMap: another content is another one, which restarts pods."""
        return object_name(self.project, "project", self.digest)

    def volume(self) -> dict[str, Any]:
        """Return the volume of a pod."""
        return {"name": "project", "configMap": {"name": self.name}}

    def mounts(self) -> list[dict[str, Any]]:
        """Return a mount for each file, so that a folder of the project can be another volume."""
        return [
            {
                "name": "project",
                "mountPath": str(PROJECT / name),
                "subPath": _key(name),
                "readOnly": True,
            }
            for name in sorted(self.contents)
        ]

    def config_map(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return the ConfigMap."""
        texts: dict[str, str] = {}
        binary: dict[str, str] = {}
        for name, content in sorted(self.contents.items()):
            try:
                texts[_key(name)] = content.decode("utf-8")
            except UnicodeDecodeError:
                binary[_key(name)] = base64.b64encode(content).decode("ascii")
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {**metadata, "name": self.name},
            "immutable": True,
            "data": texts,
            **({"binaryData": binary} if binary else {}),
        }


def read_project_files(
    config: ProjectConfig, extra: Iterable[Path] = (), modules: Iterable[Any] | None = None
) -> ProjectFiles:
    """Read ``paimon-features.toml``, the definitions, fitted transformers, and ``extra`` files.

    ``modules`` are the modules that the definitions have imported (by default all that this
    process has): one that is a file of the project must be among the files.

    Raises
    ------
    ConfigurationError
        For a file that is missing or outside the project, an imported module that is not among
        the files, or more than ``MAX_BYTES``.
    """
    root = config.root.resolve()
    fitted = config.definitions.parent / FITTED
    paths = {root / FILE_NAME, config.definitions.resolve()}
    paths |= {path.resolve() for path in fitted.rglob("*") if path.is_file()}
    paths |= {(root / path).resolve() for path in extra}
    contents: dict[str, bytes] = {}
    for path in sorted(paths):
        if not path.is_relative_to(root) or not path.is_file():
            raise ConfigurationError(
                f"{path} is not a file in the project's folder {root}; only such files can be "
                "mounted at /project"
            )
        if config.serve.tokens is not None and path == config.serve.tokens.resolve():
            raise ConfigurationError(
                f"{path} is the file of [serve] tokens, which comes from a Secret: not from --file"
            )
        contents[path.relative_to(root).as_posix()] = path.read_bytes()
    _check_modules(root, paths, sys.modules.values() if modules is None else modules)
    _check_keys(contents)
    return ProjectFiles(config.name, contents)


def in_pod(config: ProjectConfig, path: Path | str) -> PurePosixPath:
    """Return the path in a pod of a path of the project's configuration.

    A path in the project's folder is at the same place in ``/project``; others are unchanged.
    """
    try:
        return PROJECT / Path(path).relative_to(config.root).as_posix()
    except ValueError:
        return PurePosixPath(Path(path).as_posix())


def _check_modules(root: Path, paths: set[Path], modules: Iterable[Any]) -> None:
    for module in list(modules):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or "site-packages" in file:
            continue
        path = Path(file).resolve()
        inside = path.is_relative_to(root) and path.suffix == ".py"
        # a virtual environment, or this package itself, may lie in the folder
        is_of_package = str(getattr(module, "__name__", "")).partition(".")[0] == "paimon_features"
        if inside and not is_of_package and path not in paths:
            raise ConfigurationError(
                f"the definitions import {path.relative_to(root)}, which is not among the files "
                f"of the ConfigMap; add --file {path.relative_to(root)}"
            )


def _check_keys(contents: Mapping[str, bytes]) -> None:
    keys: dict[str, str] = {}
    for name in contents:
        if not re.fullmatch(r"[A-Za-z0-9._/-]+", name) or len(name) > 250:
            raise ConfigurationError(
                f"{name!r} cannot be a key of a ConfigMap: expected at most 250 letters, digits "
                "and . _ - /"
            )
        other = keys.setdefault(_key(name), name)
        if other != name:
            raise ConfigurationError(f"{name!r} and {other!r} have the same key; rename one")
    size = sum(map(len, contents.values()))
    if size > MAX_BYTES:
        raise ConfigurationError(
            f"the project's files have {size:,} bytes, a ConfigMap at most {MAX_BYTES:,}: build "
            "an image with the project at /project instead"
        )


def _key(name: str) -> str:
    return name.replace("/", "__")
