"""The identity of a run: what its rows and commits have in common, whichever engine made them."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class IngestRun:
    """The common properties of the rows of one run.

    ``time_ms`` is written as ``ingest_time_ms`` and is the clock that event times are compared
    with; None reads the clock at each row (a stream). ``id`` is written to the rejected rows and
    is the prefix of the commit user of both tables.
    """

    id: str
    time_ms: int | None

    @property
    def commit_user_prefix(self) -> str:
        return f"ingest-{self.id}"

    def made(self, commit_user: str) -> bool:
        """Return True if a commit user belongs to the run.

        >>> IngestRun("kafka-clicks-a", None).made(
        ...     "ingest-kafka-clicks-a_031d3960-b4ef-4ff2-aa65-bc6a5403d210"
        ... )
        True
        """
        # Paimon appends a UUID to the prefix
        return (
            re.fullmatch(re.escape(self.commit_user_prefix) + "_[0-9a-f-]{36}", commit_user)
            is not None
        )
