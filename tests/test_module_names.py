"""No two modules have one name where a reader could mistake one for the other."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("paimon_features", "trainer_bridge", "jobs")
OF_ONE_NAME_BY_RULE = ("paimon_features/cli/", "paimon_features/testing/reference/")
"""A command has the name of what it runs, a reference implementation the name of what it checks."""

REPEATED = {
    "backfill": (2, "what every backfill records, and how the local engine runs it"),
    "base": (5, "the base classes of the package that the module is in"),
    "checks": (2, "definitions and deployments are each checked by their own package"),
    "config": (2, "one for each tool with settings: an iteration, a training run"),
    "connections": (2, "a client's to Redis, and a server's"),
    "context": (2, "a project's and a function's: neither uses the other"),
    "dataset": (3, "each defines a form of dataset, of the package that the module is in"),
    "derived": (2, "definition of derived views, and their part of a project"),
    "documents": (2, "definitions as documents, and documents in the online store"),
    "duckdb": (2, "SQL of expressions, and DuckDB as a form of batches: named after the engine"),
    "engine": (2, "the protocol, and its implementation by Flink"),
    "entities": (2, "those to delete, and those of a request"),
    "epochs": (2, "of iterations, and of records: two words of the glossary"),
    "estimator": (2, "scikit-learn's and Flink ML's, as in the class names"),
    "evaluation": (2, "of an aggregate, and of a model"),
    "expiry": (2, "of records, and of snapshots with deleted rows"),
    "hosts": (2, "host names of a server, and functions that host the runtime in Flink"),
    "interaction": (2, "by definition, and of an application's own values"),
    "job": (2, "the job of the package that the module is in"),
    "jobs": (2, "one subject by layer: job control, and its part of a project"),
    "loading": (2, "of a preview's events, and of tensors"),
    "manifests": (2, "Paimon's, and Kubernetes'"),
    "memory": (2, "a wire, and what a feedback writer remembers"),
    "messages": (2, "texts of Redis failures, and HTTP messages"),
    "metrics": (3, "of models, of a server, and of Flink"),
    "network": (2, "Kubernetes' network policy, and a neural network"),
    "notes": (2, "on a model version, and those of libraries in training"),
    "online": (2, "one subject: its part of a project, and deletion from it"),
    "opening": (3, "each opens what its package is about: storage, store, inputs"),
    "ordered": (2, "texts in order, and the aggregates that they are for"),
    "partitioning": (2, "of tables by day, and of streams by key"),
    "predictions": (2, "one subject by layer: served, verified"),
    "protocol": (2, "HTTP, and the Model Context Protocol"),
    "queue": (2, "the contract, and its implementation in Redis"),
    "reading": (2, "of tile deltas, and of a data frame's columns"),
    "retries": (2, "of storage, and of a client's requests"),
    "rewrite": (2, "of expressions, and of a generation"),
    "server": (2, "HTTP's, and the one that forks Flink's Python workers"),
    "settings": (2, "of a deployment, and of the online store"),
    "sources": (2, "of Feast, whose registries record the module's name, and of iterations"),
    "sql": (2, "common SQL of expressions, and queries over a lake"),
    "store": (3, "the contract, its implementation in Redis, and the offline store"),
    "streams": (2, "of an iteration's program, and of tensors"),
    "supervisor": (2, "of a server's workers, and of a local cluster's processes"),
    "tables": (2, "their sizes in a status, and their maintenance"),
    "vectors": (2, "aggregates of vectors, and Flink ML's vectors"),
}
"""How many modules may have a name, and why no reader takes one for another."""


def test_every_module_has_a_name_of_its_own() -> None:
    # one step of two engines has one name: tiles/flink/tiling.py, tiles/local/tiling.py
    modules = {
        re.sub(r"/(flink|local)/(\w+\.py)$", r"/engine/\2", path.relative_to(ROOT).as_posix())
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if not path.stem.startswith("__")
    }
    names = Counter(
        module.rpartition("/")[2].removesuffix(".py")
        for module in modules
        if not module.startswith(OF_ONE_NAME_BY_RULE)
    )
    repeated = {name: count for name, count in names.items() if count > 1}
    assert repeated == {name: count for name, (count, _) in REPEATED.items()}
