"""Where events come from: a named, typed stream with an event time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paimon_features.definitions.metadata import check_metadata, metadata
from paimon_features.errors import DefinitionError
from paimon_features.schema import Bool, DataType, Float64, Int32, Int64, String, check_name
from paimon_features.windows import parse_duration


@dataclass(frozen=True, eq=False)
class EventSource:
    """A stream of events that is kept in the append table ``events_<name>``.

    ``event_time`` names an Int64 column of UTC milliseconds. Events later than the clock by
    more than ``max_skew`` do not enter (they are kept in ``rejected_<name>``).

    >>> from paimon_features.schema import Int64
    >>> clicks = EventSource("clicks", schema={"user_id": Int64, "t": Int64}, event_time="t")
    >>> clicks.table, clicks.rejected_table
    ('events_clicks', 'rejected_clicks')
    """

    name: str
    schema: Mapping[str, DataType]
    event_time: str
    retraction: str | None = None
    max_skew: str = "5min"
    description: str = ""
    owner: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name("source", self.name)
        check_metadata("source", self)
        for column in self.schema:
            check_name(f"source {self.name!r}: column", column)
            if column in ("event_day", "ingest_time_ms"):
                raise DefinitionError(
                    f"source {self.name!r}: the column name {column!r} is taken by the events table"
                )
        if self.event_time not in self.schema:
            raise DefinitionError(
                f"source {self.name!r}: event_time={self.event_time!r} is not a column; "
                f"the columns are: {', '.join(self.schema)}"
            )
        if self.schema[self.event_time] != Int64:
            raise DefinitionError(
                f"source {self.name!r}: event_time {self.event_time!r} is "
                f"{self.schema[self.event_time]!r}; expected Int64, UTC milliseconds since 1970"
            )
        if self.retraction is not None:
            raise DefinitionError(
                f"source {self.name!r}: retraction={self.retraction!r} is not supported yet; "
                "leave it out, and let a withdrawn event be an event of its own"
            )
        parse_duration(self.max_skew)

    @property
    def table(self) -> str:
        """Name of the table that keeps the events."""
        return f"events_{self.name}"

    @property
    def rejected_table(self) -> str:
        """Name of the table that keeps what could not become an event, with the reason."""
        return f"rejected_{self.name}"

    @property
    def max_skew_ms(self) -> int:
        """How far an event may lie ahead of the clock, in ms."""
        return parse_duration(self.max_skew)

    def to_document(self) -> dict[str, object]:
        """Canonical JSON form, as it stands in the registry."""
        return {
            "kind": "source",
            "name": self.name,
            "table": self.table,
            "schema": {name: kind.text for name, kind in self.schema.items()},
            "event_time": self.event_time,
            "max_skew_ms": self.max_skew_ms,
            **metadata(self),
        }


FEEDBACK_COLUMNS: Mapping[str, DataType] = {
    "run_id": String,
    "rank": Int32,
    "seq": Int64,
    "step": Int64,
    "loss": Float64,
    "event_time_ms": Int64,
    "model_version": String,
    "correct": Bool,
    "forgot": Bool,
}
"""Columns of a feedback table behind its sample keys."""


class FeedbackSource(EventSource):
    """The feedback that trainers write for one loop: losses per sample, as events.

    >>> loop = FeedbackSource("churn", sample_keys={"customer_id": Int64})
    >>> loop.table, loop.event_time
    ('feedback_churn', 'event_time_ms')
    """

    def __init__(self, name: str, sample_keys: Mapping[str, DataType]) -> None:
        super().__init__(
            name, schema={**sample_keys, **FEEDBACK_COLUMNS}, event_time="event_time_ms"
        )
        object.__setattr__(self, "sample_keys", dict(sample_keys))

    sample_keys: Mapping[str, DataType]

    @property
    def table(self) -> str:
        """Name of the table that keeps the feedback."""
        return f"feedback_{self.name}"
