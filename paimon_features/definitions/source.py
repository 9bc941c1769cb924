"""Where events come from: a named, typed stream with an event time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paimon_features.core.errors import DefinitionError, unknown_name
from paimon_features.core.times.durations import option_ms, optional_ms
from paimon_features.core.times.partition_days import parse_partition_days
from paimon_features.core.types.schema import (
    Bool,
    DataType,
    Float64,
    Int32,
    Int64,
    String,
    Timestamp,
    check_name,
)
from paimon_features.core.windows import parse_duration
from paimon_features.definitions.checks import check_types
from paimon_features.definitions.metadata import check_metadata, metadata, shown
from paimon_features.definitions.request import RequestSource, is_input_type

ADDED_KINDS = ("+I", "+U")
RETRACTED_KINDS = ("-U", "-D")
ROW_KINDS = ADDED_KINDS + RETRACTED_KINDS
"""Kinds of a row in a change log: inserted, new after an update; old before it, deleted."""


@dataclass(frozen=True, eq=False)
class EventSource:
    """A stream of events, stored in the append table ``events_<name>``.

    ``event_time`` names the column with the time of the event: a Timestamp, or Int64 UTC
    milliseconds. Both are stored as Int64, which is its type in expressions. Events ahead of the
    clock by more than ``max_skew`` are held in ``rejected_<name>`` until they are due.

    ``retraction`` names the column that distinguishes an event from a retraction: a Bool (true:
    retracted), or a String with the row kind of a change log, ``+I`` and ``+U`` (an event), ``-U``
    and ``-D`` (a retraction). A retraction has the columns of its event, including its time.

    ``event_id`` names the column that identifies an event where a sender may repeat it: of the
    rows with one id that arrive within ``dedup_horizon``, the first is the event.

    ``partition_days`` is the number of days in a partition of the table: 1, 8, 64, 512 or
    ``"none"`` (one partition). By default the first ingest of files, or the first write of Python,
    chooses it by the density of its events; a stream begins with a day. A larger number applies to
    later events, and ``maintain`` merges the partitions of earlier ones.

    >>> from paimon_features.core.types.schema import Int64
    >>> clicks = EventSource("clicks", schema={"user_id": Int64, "t": Int64}, event_time="t")
    >>> clicks.table, clicks.rejected_table
    ('events_clicks', 'rejected_clicks')

    Raises
    ------
    DefinitionError
        For a column that does not exist or does not have the type that its role needs.
    """

    name: str
    schema: Mapping[str, DataType]
    event_time: str
    retraction: str | None = None
    max_skew: str = "5min"
    description: str = ""
    event_id: str | None = None
    dedup_horizon: str | None = None
    owner: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    partition_days: int | str | None = None

    def __post_init__(self) -> None:
        check_types(f"source {self.name!r}: schema", self.schema)
        check_metadata("source", self)
        for column in self.schema:
            check_name(f"source {self.name!r}: column", column)
            if column in ("event_day", "ingest_time_ms"):
                raise DefinitionError(
                    f"source {self.name!r}: the column name {column!r} is reserved by the events "
                    "table"
                )
        if self.event_time not in self.schema:
            message = unknown_name("column", self.event_time, self.schema)
            raise DefinitionError(f"source {self.name!r}: event_time: {message}")
        if self.schema[self.event_time] == Timestamp:
            # the same number, and every entrance converts times to it
            object.__setattr__(self, "schema", {**self.schema, self.event_time: Int64})
        if self.schema[self.event_time] != Int64:
            raise DefinitionError(
                f"source {self.name!r}: event_time {self.event_time!r} is "
                f"{self.schema[self.event_time]!r}; expected Timestamp or Int64, UTC milliseconds "
                "since 1970"
            )
        self._check_retraction()
        self._check_event_id()
        option_ms("max_skew", self.max_skew)
        parse_partition_days(f"source {self.name!r}", self.partition_days)

    def _check_retraction(self) -> None:
        if self.retraction is None:
            return
        kind = self._type_of("retraction", self.retraction)
        if kind not in (Bool, String):
            raise DefinitionError(
                f"source {self.name!r}: retraction {self.retraction!r} is {kind!r}; expected a "
                "Bool (true: retracted) or a String (+I, +U, -U, -D)"
            )

    def _check_event_id(self) -> None:
        if (self.event_id is None) != (self.dedup_horizon is None):
            raise DefinitionError(
                f"source {self.name!r}: event_id={self.event_id!r} and "
                f"dedup_horizon={self.dedup_horizon!r} belong together, for example "
                "event_id='order_id', dedup_horizon='1d'"
            )
        if self.event_id is None or self.dedup_horizon is None:
            return
        optional_ms("dedup_horizon", self.dedup_horizon)
        kind = self._type_of("event_id", self.event_id)
        if not kind.is_key:
            raise DefinitionError(
                f"source {self.name!r}: event_id {self.event_id!r} is {kind!r}; expected a type "
                "that can be a key: Int32, Int64, String, Bool or Date"
            )
        if self.retraction is not None and self.schema[self.retraction] == String:
            raise DefinitionError(
                f"source {self.name!r}: event_id and the row kinds of {self.retraction!r} exclude "
                "each other, because all changes of a row have its id; a change log that is read "
                "exactly once has no duplicates"
            )

    def _type_of(self, role: str, column: str) -> DataType:
        if column not in self.schema:
            message = unknown_name("column", column, self.schema)
            raise DefinitionError(f"source {self.name!r}: {role}: {message}")
        return self.schema[column]

    @property
    def withdrawal(self) -> str | None:
        """Expression: whether the event is a retraction. None if the source has none.

        >>> columns = {"op": String, "t": Int64}
        >>> orders = EventSource("orders", schema=columns, event_time="t", retraction="op")
        >>> print(orders.withdrawal)
        "op" IN ('-U', '-D')
        """
        if self.retraction is None:
            return None
        column = f'"{self.retraction}"'
        if self.schema[self.retraction] == Bool:
            return column
        return f"{column} IN ({', '.join(map(repr, RETRACTED_KINDS))})"

    @property
    def withdrawal_rule(self) -> str | None:
        """Expression: whether the retraction column has one of the allowed values."""
        if self.retraction is None:
            return None
        column = f'"{self.retraction}"'
        if self.schema[self.retraction] == Bool:
            return f"{column} IS NOT NULL"
        return f"{column} IN ({', '.join(map(repr, ROW_KINDS))})"

    @property
    def table(self) -> str:
        """Name of the table that stores the events."""
        return f"events_{self.name}"

    @property
    def rejected_table(self) -> str:
        """Name of the table that stores rejected rows, with the reason."""
        return f"rejected_{self.name}"

    @property
    def time_columns(self) -> frozenset[str]:
        """Int64 or Timestamp columns whose cells are times: texts of times are read in them."""
        return frozenset({self.event_time})

    @property
    def rounded_up(self) -> frozenset[str]:
        """Columns whose times are rounded up where they are finer than milliseconds."""
        return frozenset()

    @property
    def max_skew_ms(self) -> int:
        """How far an event may be ahead of the clock, in ms."""
        return parse_duration(self.max_skew)

    @property
    def horizon_ms(self) -> int | None:
        """How long an event's id is remembered, in ms; None if events are not deduplicated."""
        return None if self.dedup_horizon is None else parse_duration(self.dedup_horizon)

    def as_request(self) -> RequestSource:
        """Return the columns as request inputs, for interactions of a service with this request.

        >>> from paimon_features.core.types.schema import Float64
        >>> columns = {"card": Int64, "amount": Float64, "at": Int64}
        >>> payments = EventSource("payments", schema=columns, event_time="at")
        >>> list(payments.as_request().schema)
        ['card', 'amount', 'at']
        """
        return RequestSource(
            self.name,
            schema={
                name: kind
                for name, kind in self.schema.items()
                if is_input_type(kind) and name != "event_time_ms"
            },
            description=self.description,
            owner=self.owner,
            tags=self.tags,
        )

    def _repr_html_(self) -> str:
        from paimon_features.core.notebook.markup import card, facts, table

        roles = {self.event_time: "event time", self.retraction: "retraction",
                 self.event_id: "event id"}  # fmt: skip
        columns = table(
            ((name, kind.text, roles.get(name, "")) for name, kind in self.schema.items()),
            ("column", "type", ""),
        )
        about = {
            "table": self.table,
            "ahead of the clock by at most": self.max_skew,
            "an id is remembered for": self.dedup_horizon,
            **shown(self),
        }
        return card(
            f"{type(self).__name__} {self.name}", columns, facts(about), note=self.description
        )

    def to_document(self) -> dict[str, object]:
        """Return the canonical JSON form, as in the registry."""
        optional: dict[str, object] = {}
        if self.retraction is not None:
            optional["retraction"] = self.retraction
        if self.partition_days is not None:
            optional["partition_days"] = self.partition_days
        if self.event_id is not None:
            optional |= {"event_id": self.event_id, "dedup_horizon_ms": self.horizon_ms}
        return {
            "kind": "source",
            "name": self.name,
            "table": self.table,
            "schema": {name: kind.text for name, kind in self.schema.items()},
            "event_time": self.event_time,
            "max_skew_ms": self.max_skew_ms,
            **optional,
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
"""Columns of a feedback table after its sample keys."""


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
        """Name of the table that stores the feedback."""
        return f"feedback_{self.name}"
