"""The registry: which version of each definition is applied, and which ones were before.

An append table with one row per applied version of a definition: its canonical JSON, the hash
of that, and when. The newest row per (kind, name) is what is applied; a row without a document
says that the definition was dropped.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from paimon_features.core.documents.published_document import document_digest
from paimon_features.lake import Lake, append_arrow, read_arrow
from paimon_features.lake.specs import registry_spec

REGISTRY = "registry"
"""Name of the table."""

Document = Mapping[str, Any]
Key = tuple[str, str]
"""Kind and name of a definition."""


@dataclass(frozen=True, slots=True)
class Version:
    """One applied version of a definition; ``document`` is None where it was dropped."""

    kind: str
    name: str
    number: int
    applied_at_ms: int
    document: Document | None


def versions(lake: Lake) -> dict[Key, list[Version]]:
    """Return every version of every definition, oldest first; empty before the first ``apply``."""
    if not lake.exists(REGISTRY):
        return {}
    by_definition: dict[Key, list[Version]] = {}
    columns = ["applied_at_ms", "kind", "name", "version", "document"]
    rows = read_arrow(lake, REGISTRY, columns=columns).to_pylist()
    for row in sorted(rows, key=lambda row: row["version"]):
        version = Version(
            row["kind"], row["name"], row["version"], row["applied_at_ms"],
            json.loads(row["document"]) or None,
        )  # fmt: skip
        by_definition.setdefault((version.kind, version.name), []).append(version)
    return by_definition


def applied(lake: Lake) -> dict[Key, Version]:
    """Return what is applied now: the newest version of each definition that was not dropped."""
    newest = {key: history[-1] for key, history in versions(lake).items()}
    return {key: version for key, version in newest.items() if version.document is not None}


def record(lake: Lake, documents: Mapping[Key, Document | None], now_ms: int) -> list[Version]:
    """Write these documents (None: dropped) as new versions, where they differ from the newest.

    Repeating it is harmless: what is applied already makes no version.
    """
    history = versions(lake)
    new = []
    for (kind, name), document in documents.items():
        past = history.get((kind, name), [])
        if hash_of(past[-1].document if past else None) != hash_of(document):
            new.append(Version(kind, name, len(past) + 1, now_ms, document))
    if new:
        _write(lake, new)
    return new


def differs(old: Document, new: Document) -> bool:
    """Return True if two documents mean different definitions."""
    return hash_of(old) != hash_of(new)


def _write(lake: Lake, new: Iterable[Version]) -> None:
    spec = registry_spec(REGISTRY)
    lake.create(spec)
    rows = [
        (v.applied_at_ms, v.kind, v.name, v.number, hash_of(v.document), _canonical(v.document))
        for v in new
    ]
    columns = [pa.array(list(column)) for column in zip(*rows, strict=True)]
    append_arrow(lake, REGISTRY, pa.table(columns, names=list(spec.columns)))


def _canonical(document: Document | None) -> str:
    return json.dumps(dict(document or {}), sort_keys=True, separators=(",", ":"))


def hash_of(document: Document | None) -> str:
    """Return a hash that is equal for documents that mean the same."""
    return document_digest(dict(document or {}))[:16]
