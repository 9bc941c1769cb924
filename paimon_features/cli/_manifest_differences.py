"""``models compare --manifests``: what differs between two versions of a model."""

from __future__ import annotations

import difflib
import json
from dataclasses import asdict
from typing import Any

import click

from paimon_features.models import ModelManifest
from paimon_features.project import Project


def show_differences(project: Project, name: str, versions: tuple[int, int], as_json: bool) -> None:
    """Show what differs between two versions: inputs, training, metrics and configuration."""
    manifests = [project.models.manifest(name, number) for number in versions]
    first, second = (_flat(_comparable(project, manifest)) for manifest in manifests)
    changes = [
        (key, first.get(key), second.get(key))
        for key in sorted(first.keys() | second.keys())
        if first.get(key) != second.get(key)
    ]
    if as_json:
        click.echo(json.dumps({key: [old, new] for key, old, new in changes}, indent=2))
        return
    if not changes:
        click.echo(f"{manifests[0]} and {manifests[1]} differ only in their time")
    for key, old, new in changes:
        if key == "card":
            before, after = [(text or "").splitlines() for text in (old, new)]
            for line in difflib.unified_diff(before, after, "card", "card", lineterm="", n=1):
                click.echo(line)
            continue
        click.echo(f"{key}: {_shown(old)} -> {_shown(new)}")


def _comparable(project: Project, manifest: ModelManifest) -> dict[str, Any]:
    document = asdict(manifest)
    for name in ("name", "version", "created_at_ms"):
        document.pop(name)
    inputs = {column["of"]: column for column in document["signature"].pop("inputs")}
    document["inputs"] = inputs
    document["input order"] = list(inputs)
    if "config.json" in manifest.files:
        document["configuration"] = json.loads(project.models.file(manifest, "config.json"))
        document["files"].pop("config.json")
    if document["training"]:
        for name in ("started_at_ms", "finished_at_ms"):
            document["training"].pop(name)
    return document


def _flat(document: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(document, dict):
        return {
            key: value
            for name, part in document.items()
            for key, value in _flat(part, f"{prefix}.{name}" if prefix else str(name)).items()
        }
    return {prefix: document}


def _shown(value: Any) -> str:
    return "-" if value is None else str(value)
