"""Checks of what a machine has, each with what to do where something is missing.

A check tells the truth about one part and never raises. What an install does not need is not
missing: without the extra ``flink`` nobody asks for Java.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from paimon_features.errors import PaimonFeaturesError, SetupError
from paimon_features.setup.cache import sha256_of
from paimon_features.setup.jars import jar_folder, locked_jars
from paimon_features.setup.java import find_java
from paimon_features.setup.redis_server import find_redis_server
from paimon_features.setup.resp import connect

State = Literal["ok", "missing", "optional"]

EXTRAS: Mapping[str, tuple[str, str]] = {
    "flink": ("pyflink", "jobs: ingest, backfill, submit"),
    "local": ("duckdb", "backfill --engine local, without Java"),
    "serve": ("redis", "the online store: materialize, lookup"),
    "torch": ("torch", "training batches for torch"),
    "tensorflow": ("tensorflow", "training batches for TensorFlow"),
    "onnx": ("onnx", "fitted export --onnx"),
    "demo": ("matplotlib", "the pictures of the demo"),
}
"""The module that tells whether an extra is installed, and what the extra is for."""

_DISTRIBUTIONS = {"flink": "apache-flink", "tensorflow": "tensorflow-cpu", "demo": "matplotlib"}
_ENOUGH_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class Check:
    """What one check found; ``remedy`` is empty where there is nothing to do.

    ``state`` is ``ok``, ``missing`` (something here needs it), or ``optional`` (absent, and
    nothing here needs it).
    """

    name: str
    state: State
    found: str
    remedy: str = ""


def has_extra(extra: str) -> bool:
    """Whether the packages of an extra are installed. Imports nothing."""
    return importlib.util.find_spec(EXTRAS[extra][0]) is not None


def check_python(version: tuple[int, int] = sys.version_info[:2]) -> Check:
    """Python 3.11 or 3.12: the versions for which Flink and pyarrow have wheels."""
    text = ".".join(map(str, version))
    if (3, 11) <= version < (3, 13):
        return Check("Python", "ok", text)
    return Check("Python", "missing", text, "use Python 3.11 or 3.12")


def check_extra(extra: str) -> Check:
    """Whether an extra is installed, and in which version."""
    name, (module, purpose) = f"extra {extra}", EXTRAS[extra]
    if not has_extra(extra):
        remedy = f"for {purpose}: pip install 'paimon-features[{extra}]'"
        return Check(name, "optional", "not installed", remedy)
    distribution = _DISTRIBUTIONS.get(extra, module)
    try:
        found = f"{distribution} {metadata.version(distribution)}"
    except metadata.PackageNotFoundError:
        found = f"module {module}"
    return Check(name, "ok", found)


def check_java(needed: bool) -> Check:
    """A Java that Flink runs on."""
    try:
        java = find_java()
    except SetupError as error:
        return Check("Java", "missing" if needed else "optional", "none", str(error))
    return Check("Java", "ok", f"{java.version} at {java.home} ({java.origin})")


def check_jars(group: str, needed: bool) -> Check:
    """The jars of a group, each hashed from its first byte to its last."""
    absent, corrupt, size = [], [], 0
    jars = locked_jars([group])
    for jar in jars:
        path = jar_folder() / jar.file_name
        if not path.is_file():
            absent.append(jar.file_name)
        elif (got := sha256_of(path)) != jar.sha256:
            corrupt.append(f"{path} is corrupt: expected sha256 {jar.sha256}, got {got}")
        else:
            size += path.stat().st_size
    if not absent and not corrupt:
        found = f"{len(jars)} in {jar_folder()}, {size / 1e6:.1f} MB, every hash is right"
        return Check(f"jars {group}", "ok", found)
    missing = [f"not in the cache: {', '.join(absent)}"] if absent else []
    # the file is removed first: the quick look of `jars` may take it for what it was
    remove = "".join(f"rm {text.split(' is corrupt')[0]} && " for text in corrupt)
    return Check(
        f"jars {group}",
        "missing" if needed else "optional",
        "; ".join(missing + corrupt),
        f"run: {remove}paimon-features jars --group {group}",
    )


def check_redis_server() -> Check:
    """A server that the demo and the tests can start; a project may use any other."""
    try:
        return Check("Redis-protocol server", "ok", str(find_redis_server()))
    except SetupError as error:
        return Check("Redis-protocol server", "optional", "none to start", str(error))


def check_online_store(url: str, needed: bool) -> Check:
    """Whether the project's online store answers and would rather refuse than forget."""
    name = "online store"
    try:
        with connect(url) as connection:
            connection.ask("PING")
            info = str(connection.ask("INFO", "server"))
            try:
                policy = connection.ask("CONFIG", "GET", "maxmemory-policy")
            except PaimonFeaturesError:
                # services often refuse CONFIG; the materializer says so too
                policy = None
    except PaimonFeaturesError as error:
        return Check(
            name,
            "missing" if needed else "optional",
            str(error),
            "start a Redis or Valkey server there, or set [online] url in paimon-features.toml",
        )
    lines = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    server = lines.get("valkey_version") or lines.get("redis_version") or "unknown version"
    if isinstance(policy, list) and len(policy) == 2 and policy[1] != "noeviction":
        return Check(
            name,
            "missing",
            f"version {server}, maxmemory-policy {policy[1]}: it may drop records in silence",
            "run: redis-cli CONFIG SET maxmemory-policy noeviction, and set it in its file",
        )
    told = "" if policy else "; it does not tell its maxmemory-policy, which must be noeviction"
    return Check(name, "ok", f"answers, version {server}{told}")


def check_folder(name: str, folder: Path) -> Check:
    """Whether files can be written in ``folder``, or where it would be made; and the space."""
    place = folder
    while not place.exists():
        place = place.parent
    try:
        # root may write anywhere by its rights and still not on a read-only disk: try it
        with tempfile.TemporaryFile(dir=place) as probe:
            probe.write(b"x")
    except OSError as error:
        return Check(name, "missing", f"{folder} cannot be written: {error}", "choose another")
    free = shutil.disk_usage(place).free
    found = f"{folder} can be written, {free / (1 << 30):.1f} GiB free"
    if free < _ENOUGH_BYTES:
        return Check(name, "missing", found, "make room: at least 2 GiB")
    return Check(name, "ok", found)
