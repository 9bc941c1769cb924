"""A bundle: definitions, generations and fitted transformers of a project in one document.

A host that only serves reads it instead of the definitions file, so that it runs no code of the
project. It is JSON: a first line with format, size and digest, and the content::

    {"paimon_features_bundle":1,"digest":"9f3c...","bytes":5211}
    {"project":"shop","published_at_ms":...,"generations":{...},"definitions":[...],"fitted":[...]}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paimon_features.definitions.collection import Definitions
from paimon_features.definitions.documents import from_documents, to_documents
from paimon_features.definitions.transformed import Fitted
from paimon_features.errors import DefinitionError, TransformError
from paimon_features.transformers.fitted_version import FittedVersion

FORMAT = 1
"""The format that is written; a later one is refused, and each of the earlier ones is read."""
MAX_BYTES = 16 << 20
"""The size of the largest bundle, most of which are categories of encoders."""
_MAX_HEADER = 256


@dataclass(frozen=True)
class Bundle:
    """What a project publishes for its serving hosts.

    ``generations`` is the active generation of each applied view, by name: for people, as the
    online store itself names the generation that it contains.
    """

    project: str
    definitions: Definitions
    published_at_ms: int
    generations: Mapping[str, int] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return the bundle's bytes, equal for equal content.

        Raises
        ------
        DefinitionError
            For definitions with code of the project (an aggregate of one's own), that do not read
            back as they are, or more than ``MAX_BYTES``.
        """
        transformed = self.definitions.transformed.values()
        versions = [self.definitions.transformation(each).fitted for each in transformed]
        content = {
            "project": self.project,
            "published_at_ms": self.published_at_ms,
            "generations": dict(self.generations),
            "definitions": to_documents(self.definitions),
            "fitted": [v.to_document() for v in {str(v): v for v in versions}.values()],
        }
        body = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
        header = {
            "paimon_features_bundle": FORMAT,
            "digest": hashlib.sha256(body).hexdigest(),
            "bytes": len(body),
        }
        data = json.dumps(header, separators=(",", ":")).encode() + b"\n" + body
        if len(data) > MAX_BYTES:
            raise DefinitionError(
                f"the bundle has {len(data):,} bytes; expected at most {MAX_BYTES:,}: serve these "
                "definitions from their file"
            )
        _check_equal(self.definitions, Bundle.from_bytes(data).definitions)
        return data

    @classmethod
    def from_bytes(cls, data: bytes, where: str = "the bundle") -> Bundle:
        """Read a bundle.

        Raises
        ------
        DefinitionError
            For bytes that are none, damaged, too many, or of a later format; the message says
            what to do.
        """
        body = _checked_body(data, where)
        try:
            content = json.loads(body)
            fitted = {}
            for document in content["fitted"]:
                version = FittedVersion.from_document(document)
                fitted[Fitted(version.name, version.version)] = version
            definitions = Definitions.of(from_documents(content["definitions"]), versions=fitted)
            generations = {str(view): int(n) for view, n in content["generations"].items()}
            return cls(
                str(content["project"]), definitions, int(content["published_at_ms"]), generations
            )
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            if isinstance(error, DefinitionError | TransformError):
                raise DefinitionError(f"{where}: {error}; publish it again: {_AGAIN}") from error
            raise DefinitionError(
                f"{where} is damaged ({type(error).__name__}: {str(error)[:200]}); publish it "
                f"again: {_AGAIN}"
            ) from error


_AGAIN = "'paimon-features bundle'"


def digest_of(data: bytes) -> str:
    """Return the digest in a bundle's first line, by which a change is noticed."""
    return str(_header(data, "the bundle")["digest"])


def _header(data: bytes, where: str) -> Mapping[str, Any]:
    line = data[:_MAX_HEADER].partition(b"\n")[0]
    try:
        header = json.loads(line)
        if type(header["paimon_features_bundle"]) is int and isinstance(header["digest"], str):
            return dict(header)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise DefinitionError(f"{where} is not a bundle of paimon-features; write one: {_AGAIN}")


def _checked_body(data: bytes, where: str) -> bytes:
    if len(data) > MAX_BYTES:
        raise DefinitionError(
            f"{where} has {len(data):,} bytes; a bundle has at most {MAX_BYTES:,}"
        )
    header = _header(data, where)
    found = header["paimon_features_bundle"]
    if found > FORMAT:
        raise DefinitionError(
            f"{where} has format {found}, and this version of paimon-features reads up to "
            f"{FORMAT}: upgrade this host (pip install --upgrade 'paimon-features[serve]'), or "
            f"publish it with the version that runs here: {_AGAIN}"
        )
    body = data.partition(b"\n")[2]
    if len(body) != header.get("bytes") or hashlib.sha256(body).hexdigest() != header["digest"]:
        raise DefinitionError(
            f"{where} is damaged: its content does not match the digest in its first line; "
            f"publish it again: {_AGAIN}"
        )
    return body


def _check_equal(written: Definitions, read: Definitions) -> None:
    """Raise DefinitionError unless the definitions read back as they are."""
    for kind, items in written.by_kind().items():
        if kind == "derived_view":
            continue
        for name, item in items.items():
            other = read.by_kind()[kind].get(name)
            if other is None or other.to_document() != item.to_document():
                raise DefinitionError(
                    f"{kind.replace('_', ' ')} {name!r} does not read back from a bundle as it is; "
                    "serve these definitions from their file"
                )
