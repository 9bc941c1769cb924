"""A fitted transformer with a name and a version: one document, in the lake and as a file.

A service pins the version that its model was trained with, so a version never changes: its digest
covers the complete document, and a document that does not match its digest is rejected.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from paimon_features.core.documents.unambiguous_json import parse_unambiguous_json
from paimon_features.core.errors import DefinitionError, TransformError
from paimon_features.core.types.schema import check_name
from paimon_features.transformers.base import FeatureTransformer, StoredTransformer

FOLDER = "fitted"
"""The folder of exported versions, next to the definitions file."""


@dataclass(frozen=True)
class FittedVersion:
    """A fitted transformer with name and version; ``fitted_on`` describes the training data."""

    name: str
    version: int
    transformer: StoredTransformer
    fitted_at_ms: int
    fitted_on: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name("fitted transformer", self.name)

    def _repr_html_(self) -> str:
        from paimon_features.core.notebook.markup import card, facts, text, utc

        about = {
            "transformer": repr(self.transformer),
            "fitted": f"{utc(self.fitted_at_ms)} UTC",
            "on": ", ".join(f"{name}: {text(value)}" for name, value in self.fitted_on.items()),
        }
        return card(f"Fitted {self}", facts(about))

    def __str__(self) -> str:
        return f"{self.name} v{self.version}"

    @property
    def kind(self) -> str:
        """The kind of the transformer."""
        return self.transformer.kind

    @cached_property
    def params(self) -> str:
        """The parameters as canonical JSON."""
        return canonical(self.transformer.to_params())

    @cached_property
    def digest(self) -> str:
        """A hash of the complete document."""
        return _digest(self._document())

    def to_document(self) -> dict[str, Any]:
        """Return the document in JSON values, with its digest."""
        return {**self._document(), "digest": self.digest}

    def to_text(self) -> str:
        """Return the document as the text of its file, formatted to be read and compared."""
        return json.dumps(self.to_document(), indent=2, sort_keys=True, allow_nan=False) + "\n"

    def _document(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "version": self.version,
            "transformer": self.transformer.to_params(),
            "fitted_at_ms": self.fitted_at_ms,
            "fitted_on": dict(self.fitted_on),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> FittedVersion:
        """Return the version of a document.

        Raises
        ------
        TransformError
            For an incomplete document, or one that does not match its digest.
        """
        rest = {key: value for key, value in document.items() if key != "digest"}
        try:
            stored, digest = document["digest"], _digest(rest)
            if stored != digest:
                raise TransformError(
                    f"its content has the digest {digest}, but it states {stored}: "
                    "it was changed or damaged after it was written"
                )
            transformer = FeatureTransformer.from_params(rest["transformer"])
            assert isinstance(transformer, StoredTransformer)
            version = cls(
                rest["name"], rest["version"], transformer, rest["fitted_at_ms"], rest["fitted_on"]
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise TransformError(
                f"it is not a document of a fitted transformer: {type(error).__name__}: {error}"
            ) from error
        if version.digest != stored:
            raise TransformError(
                "it was written by another version of paimon-features, with parameters of a "
                f"{version.kind} that this one does not know"
            )
        return version


def path_of(folder: Path, name: str, version: int) -> Path:
    """Return the file of a version in the folder of exported versions."""
    return folder / name / f"v{version}.json"


def read_version(folder: Path, name: str, version: int) -> FittedVersion:
    """Read an exported version.

    Raises
    ------
    DefinitionError
        If the file is missing, invalid, changed, or of another version; the message names it and
        the command that writes it.
    """
    path = path_of(folder, name, version)
    command = f"'paimon-features fitted {name} {version} --export'"
    try:
        text = path.read_text("utf-8")
    except FileNotFoundError:
        versions = sorted(p.stem for p in path.parent.glob("v*.json"))
        raise DefinitionError(
            f"fitted transformer {name!r} version {version}: no such file: {path} "
            f"(available: {', '.join(versions) or 'none'}); {command} writes it from the lake"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise DefinitionError(f"{path} cannot be read: {error}") from error
    try:
        document = parse_unambiguous_json(text)
        if not isinstance(document, dict):
            raise TransformError("it is not a JSON object")
        fitted = FittedVersion.from_document(document)
        if (fitted.name, fitted.version) != (name, version):
            raise TransformError(f"it contains {fitted}")
    except (TransformError, DefinitionError, ValueError, RecursionError) as error:
        raise DefinitionError(
            f"{path}: {error}; restore it, or delete it and export it again: {command}"
        ) from error
    return fitted


def write_version(folder: Path, version: FittedVersion) -> Path:
    """Export a version into a folder, atomically; idempotent.

    Raises
    ------
    DefinitionError
        If its file exists with another content.
    """
    path, text = path_of(folder, version.name, version.version), version.to_text()
    if path.exists():
        if path.read_bytes() != text.encode():
            raise DefinitionError(
                f"{path} exists and differs from {version} in the lake; delete it to export it "
                "again, or save the transformer as the next version"
            )
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    temporary.write_text(text, "utf-8", newline="\n")
    os.replace(temporary, path)
    return path


def canonical(value: object) -> str:
    """Return JSON with sorted keys and no spaces; floats in the shortest exact form."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _digest(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(document).encode()).hexdigest()[:16]
