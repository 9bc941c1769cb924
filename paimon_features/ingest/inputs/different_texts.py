"""The different texts of a column of a sample, with how many rows have each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MOST_WRONG = 0.02
"""The share of rows whose text is no value of a column's type, at most: those are rejected."""


@dataclass(frozen=True, slots=True)
class DifferentTexts:
    """``bare`` has each text once, without surrounding blanks and without empty ones."""

    bare: pa.Array
    counts: Any

    @classmethod
    def of(cls, column: pa.ChunkedArray, without: tuple[str, ...] = ()) -> DifferentTexts:
        """Return all texts of a column but those ``without`` a value."""
        bare = pc.utf8_trim_whitespace(column.cast(pa.string()).drop_null())
        counted = pc.value_counts(bare.combine_chunks())
        values, counts = counted.field("values"), counted.field("counts").to_numpy()
        kept = pc.not_equal(values, "")
        if without:
            kept = pc.and_(kept, pc.invert(pc.is_in(values, pa.array(without))))
        return cls(values.filter(kept), counts[np.asarray(kept)])

    def share(self, flags: Any) -> float:
        """Return the share of rows whose text has a flag; 0 without rows."""
        total = int(self.counts.sum())
        return float(self.counts[np.asarray(flags)].sum()) / total if total else 0.0

    def match(self, pattern: str) -> pa.Array:
        return pc.match_substring_regex(self.bare, pattern)

    def are_all(self, pattern: str) -> bool:
        return bool(pc.all(self.match(pattern)).as_py())

    def are_mostly(self, flags: Any) -> bool:
        """Return True if all but a few rows, and at least two texts or all, have a flag."""
        flagged = int(np.asarray(flags).sum())
        enough = flagged >= min(2, len(self.bare)) and flagged > 0
        return enough and self.share(flags) >= 1 - MOST_WRONG
