"""Published documents: a first line with format, size and digest, and the content.

::

    {"paimon_features_bundle":1,"digest":"9f3c...","bytes":5211}
    {...}
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paimon_features.core.documents.unambiguous_json import parse_unambiguous_json
from paimon_features.core.errors import PaimonFeaturesError

MAX_HEADER = 256


@dataclass(frozen=True, slots=True)
class DocumentKind:
    """A kind of published documents.

    ``key`` names it and its format in the first line, ``what`` in errors. ``format`` is the one
    that is written: a later one is refused, and earlier ones are read. ``again`` is the command
    that publishes one, ``error`` what is raised for bytes that are none.
    """

    key: str
    what: str
    format: int
    max_bytes: int
    again: str
    error: type[PaimonFeaturesError]

    def to_bytes(self, content: Mapping[str, Any]) -> bytes:
        """Return the bytes of a document; raises ``error`` for more than ``max_bytes``."""
        body = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
        digest = hashlib.sha256(body).hexdigest()
        header = {self.key: self.format, "digest": digest, "bytes": len(body)}
        data = json.dumps(header, separators=(",", ":")).encode() + b"\n" + body
        if len(data) > self.max_bytes:
            raise self.error(
                f"the {self.what} has {len(data):,} bytes; expected at most {self.max_bytes:,}"
            )
        return data

    def body_of(self, data: bytes, where: str) -> bytes:
        """Return the content of a document, which is JSON.

        Raises ``error`` for bytes that are none, damaged, too many, or of a later format.
        """
        if len(data) > self.max_bytes:
            raise self.error(
                f"{where} has {len(data):,} bytes; a {self.what} has at most {self.max_bytes:,}"
            )
        header = self._header(data, where)
        written_format = header[self.key]
        if written_format > self.format:
            raise self.error(
                f"{where} has format {written_format}, and this version of paimon-features reads "
                f"up to {self.format}: upgrade this host (pip install --upgrade "
                "'paimon-features[serve]'), or publish it with the version that runs here: "
                f"{self.again}"
            )
        body = data.partition(b"\n")[2]
        if len(body) != header.get("bytes") or hashlib.sha256(body).hexdigest() != header["digest"]:
            raise self.error(
                f"{where} is damaged: its content does not match the digest in its first line; "
                f"publish it again: {self.again}"
            )
        return body

    def digest_of(self, data: bytes) -> str:
        """Return the digest in the first line, by which a change is noticed."""
        return str(self._header(data, f"the {self.what}")["digest"])

    def _header(self, data: bytes, where: str) -> Mapping[str, Any]:
        line = data[:MAX_HEADER].partition(b"\n")[0]
        try:
            header = parse_unambiguous_json(line)
            if type(header[self.key]) is int and isinstance(header["digest"], str):
                return dict(header)
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        raise self.error(
            f"{where} is not a {self.what} of paimon-features; write one: {self.again}"
        )


def document_digest(document: object) -> str:
    """Return the SHA-256 of a document's canonical JSON (hexadecimal): keys sorted, no blanks."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
