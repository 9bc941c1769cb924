"""The result of comparing the request log with the lake."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paimon_features.project.verification.request_log.sampled_rows import LoggedRow, RequestKey

ReadKey = tuple[RequestKey, int, str]
"""A request, the position of an entity in it, and a view; "" for computed features."""


@dataclass(frozen=True, slots=True)
class LogDifference:
    """A served value that differs from the lake's.

    ``feature`` is the name of a value, or of a column of the log. ``by`` is the evidence:
    ``tiles``, ``events``, ``features`` (of an interaction) or ``snapshots``.
    """

    request_id: str
    served_at_ms: int
    view: str
    entity: str
    feature: str
    served: str
    truth: str
    by: str

    def __str__(self) -> str:
        return (
            f"request {self.request_id} at {self.served_at_ms}, entity {self.entity}, "
            f"{self.view + ':' if self.view else ''}{self.feature}: served {self.served}, "
            f"by {self.by} {self.truth}"
        )


@dataclass
class LogReport:
    """The result of a comparison.

    ``values`` of ``rows`` rows of ``requests`` requests were compared; ``by_events`` of the rows
    with the oracle over raw events, too. ``tiles_only`` says why the others were not, and
    ``unchecked`` why rows could not be compared at all, both with numbers of rows.
    """

    requests: int = 0
    rows: int = 0
    values: int = 0
    by_events: int = 0
    tiles_only: Counter[str] = field(default_factory=Counter)
    unchecked: Counter[str] = field(default_factory=Counter)
    differences: list[LogDifference] = field(default_factory=list)
    truths: dict[ReadKey, Mapping[str, Any]] = field(default_factory=dict)
    """The values that should have been served, by what was read."""

    @property
    def ok(self) -> bool:
        """Whether something was compared, and nothing differed."""
        return self.values > 0 and not self.differences


def log_difference(row: LoggedRow, feature: str, served: Any, truth: Any, by: str) -> LogDifference:
    """Return a difference in one value of a row."""

    def text(value: Any) -> str:
        return value if isinstance(value, str) and by != "features" else repr(value)

    return LogDifference(
        row.request_id, row.served_at_ms, row.view, row.entity, feature,
        text(served), text(truth), by,
    )  # fmt: skip
