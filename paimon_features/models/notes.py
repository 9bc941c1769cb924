"""Notes: what was decided about a version, when and why, with the figures that decided it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from paimon_features.core.documents.typed_json import typed
from paimon_features.core.documents.unambiguous_json import parse_unambiguous_json
from paimon_features.core.errors import ModelError, shortened

MAX_NOTE_BYTES = 1 << 16


@dataclass(frozen=True)
class VersionNote:
    """A decision about a version, made at ``at_ms`` (UTC ms).

    ``action`` names it, such as ``promoted`` or ``rolled_back``; ``text`` is for people, and
    ``figures`` are JSON values by name.

    >>> note = VersionNote(3, 0, "rejected", "not better than churn@2", {"rows": 500})
    >>> VersionNote.from_text(note.to_text()) == note
    True

    Raises
    ------
    ModelError
        For a note of more than ``MAX_NOTE_BYTES``.
    """

    version: int
    at_ms: int
    action: str
    text: str
    figures: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        size = len(self.to_text().encode())
        if size > MAX_NOTE_BYTES:
            raise ModelError(
                f"a note about version {self.version} has {size:,} bytes; expected at most "
                f"{MAX_NOTE_BYTES:,}"
            )

    def to_text(self) -> str:
        """Return the note as JSON."""
        return json.dumps(asdict(self), sort_keys=True, allow_nan=False)

    @classmethod
    def from_text(cls, text: str) -> VersionNote:
        """Return the note of a JSON text; ModelError for one that is none."""
        try:
            note: VersionNote = typed(cls, parse_unambiguous_json(text))
        except ModelError:
            raise
        except ValueError as error:
            raise ModelError(f"{shortened(text)} is no note about a version: {error}") from error
        return note
