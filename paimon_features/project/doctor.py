"""Checks of the installation, each with a remedy if something is missing.

Each check reports on one component and never raises. What an installation does not need is
optional: without the extra ``flink``, Java is not required.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from paimon_features.core.errors import PaimonFeaturesError, SetupError
from paimon_features.core.extras import installed
from paimon_features.core.installation.cache import sha256_of
from paimon_features.core.installation.jars import jar_folder, locked_jars
from paimon_features.core.installation.java import find_java
from paimon_features.core.native import STATE
from paimon_features.testing.servers.redis_server import find_redis_server
from paimon_features.testing.servers.resp import connect

State = Literal["ok", "missing", "optional"]

EXTRAS: Mapping[str, tuple[str, str]] = {
    "lake": ("pypaimon", "the tables: plan, apply, training-set, verify"),
    "flink": ("pyflink", "jobs: ingest, backfill, submit"),
    "local": ("duckdb", "backfill --engine local, without Java"),
    "serve": ("redis", "the online store: materialize, lookup"),
    "torch": ("torch", "training batches for torch"),
    "tensorflow": ("tensorflow", "training batches for TensorFlow"),
    "onnx": ("onnx", "fitted --onnx"),
    "demo": ("matplotlib", "plots of the demo"),
}
"""For each extra, the module that shows whether it is installed, and its purpose."""

_DISTRIBUTIONS = {"flink": "apache-flink", "tensorflow": "tensorflow-cpu", "demo": "matplotlib"}
_ENOUGH_BYTES = 2 << 30


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check; ``remedy`` is empty if no action is needed.

    ``state`` is ``ok``, ``missing`` (absent, but required by this installation), or
    ``optional`` (absent and not required).
    """

    name: str
    state: State
    found: str
    remedy: str = ""


def has_extra(extra: str) -> bool:
    """Return whether the packages of an extra are installed, without importing them."""
    return installed(EXTRAS[extra][0])


def check_python(version: tuple[int, int] = sys.version_info[:2]) -> Check:
    """Check for a Python that this package supports, and name what has no release for it."""
    text = ".".join(map(str, version))
    if version < (3, 11):
        return Check("Python", "missing", text, "use Python 3.11 or later; 3.11 or 3.12 for Flink")
    without = [
        feature
        for feature, newest in (("Flink", (3, 12)), ("the lake", (3, 13)))
        if version > newest
    ]
    detail = f"{text}, without {' and '.join(without)}" if without else text
    return Check("Python", "ok", detail)


def check_native() -> Check:
    """Check whether the native core is built; without it NumPy does its work."""
    return Check("native core", "ok" if STATE.is_used else "optional", STATE.found, STATE.remedy)


def check_extra(extra: str) -> Check:
    """Check whether an extra is installed, and in which version."""
    name, (module, purpose) = f"extra {extra}", EXTRAS[extra]
    if not has_extra(extra):
        remedy = f"for {purpose}: pip install 'paimon-features[{extra}]'"
        return Check(name, "optional", "not installed", remedy)
    distribution = _DISTRIBUTIONS.get(extra, module)
    try:
        detail = f"{distribution} {metadata.version(distribution)}"
    except metadata.PackageNotFoundError:
        detail = f"module {module}"
    return Check(name, "ok", detail)


def check_java(needed: bool) -> Check:
    """Check for a Java version that Flink supports."""
    try:
        java = find_java()
    except SetupError as error:
        return Check("Java", "missing" if needed else "optional", "none", str(error))
    return Check("Java", "ok", f"{java.version} at {java.home} ({java.origin})")


def check_jars(group: str, needed: bool) -> Check:
    """Check the jars of a group; every file is hashed completely."""
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
        detail = f"{len(jars)} in {jar_folder()}, {size / 1e6:.1f} MB, all hashes correct"
        return Check(f"jars {group}", "ok", detail)
    missing = [f"not in the cache: {', '.join(absent)}"] if absent else []
    # remove the file first: `jars` may skip it, because size and time are as recorded
    remove = "".join(f"rm {text.split(' is corrupt')[0]} && " for text in corrupt)
    return Check(
        f"jars {group}",
        "missing" if needed else "optional",
        "; ".join(missing + corrupt),
        f"run: {remove}paimon-features jars --group {group}",
    )


def check_redis_server() -> Check:
    """Check for a server that the demo and the tests can start; a project may use any other."""
    try:
        return Check("Redis-protocol server", "ok", str(find_redis_server()))
    except SetupError as error:
        return Check("Redis-protocol server", "optional", "none to start", str(error))


def check_online_store(url: str, needed: bool) -> Check:
    """Check that the project's online store responds and rejects writes instead of evicting
    keys."""
    name = "online store"
    try:
        with connect(url) as connection:
            connection.request("PING")
            info = str(connection.request("INFO", "server"))
            try:
                policy = connection.request("CONFIG", "GET", "maxmemory-policy")
            except PaimonFeaturesError:
                # managed services often reject CONFIG; the materializer warns about it as well
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
            f"version {server}, maxmemory-policy {policy[1]}: it may evict records silently",
            "run: redis-cli CONFIG SET maxmemory-policy noeviction, and set it in the server's "
            "configuration file",
        )
    note = "" if policy else "; its maxmemory-policy is unknown, and must be noeviction"
    return Check(name, "ok", f"reachable, version {server}{note}")


def check_folder(name: str, folder: Path) -> Check:
    """Check that ``folder``, or its closest existing parent, is writable and has free space."""
    place = folder
    while not place.exists():
        place = place.parent
    try:
        # permissions alone do not suffice: root has them on a read-only file system, too
        with tempfile.TemporaryFile(dir=place) as probe:
            probe.write(b"x")
    except OSError as error:
        return Check(name, "missing", f"{folder} is not writable: {error}", "choose another folder")
    free = shutil.disk_usage(place).free
    detail = f"{folder} is writable, {free / (1 << 30):.1f} GiB free"
    if free < _ENOUGH_BYTES:
        return Check(name, "missing", detail, "free up disk space: at least 2 GiB are required")
    return Check(name, "ok", detail)
