"""The tile job as SQL text: one event becomes one row of partials, without state.

Two statements read the events table once. The first inserts ``(tile_day, keys, tile_start,
partials)`` of each member event into the tile table, where the lake merges rows with the same
key; the second counts, per day and reason, the members that may not enter a tile. The job's only
state is its position in the source, so it may run at any parallelism, and an event that is months
late adds to its tile like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from paimon_features.core.expressions import Expression, to_flink
from paimon_features.core.expressions.flink_floors import first_day_sql, floor_sql
from paimon_features.core.windows import MAX_TIME_MS, MIN_TIME_MS
from paimon_features.definitions import CompiledView
from paimon_features.definitions.aggregates import EVENT_TIME, TILE_END
from paimon_features.definitions.compiled import SkipRule
from paimon_features.lake.ddl import literal, quote
from paimon_features.lake.specs import TILE_DAY, TILE_START, UNKNOWN_DAY
from paimon_features.tiles.flink.common_expressions import shared_steps

DISCOVERY_MS = 100
"""Interval at which a stream checks for new snapshots; Flink's default is 10 s. A check costs one
file lookup; half of the interval, on average, adds to a feature's freshness."""
REMOTE_DISCOVERY_MS = 1_000
"""The same for an object store, where each check is paid for."""

PLANNER_OPTIONS: Mapping[str, str] = {
    # both statements select from one step of the job. Otherwise each would have its own copy: the
    # scans would have different conditions and read every event twice, and the verdict on an
    # event would be computed wherever it is used (which made planning take 3 times as long)
    "table.optimizer.reuse-optimize-block-with-digest-enabled": "true",
}
"""Options for planning the two statements."""

_NOT_A_MEMBER, _ENTERS, _FIRST_RULE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class TileStatements:
    """The two INSERT statements of one generation, for one statement set."""

    tiles: str
    skipped: str


@dataclass(frozen=True, slots=True)
class EventsScan:
    """The part of the events table that a run reads.

    A stream (with a ``consumer``) reads the additions of snapshot ``from_snapshot`` and all that
    follow, with ``whole`` also everything before. The consumer prevents the expiry of unread
    snapshots. A batch (without a consumer) reads everything in ``from_snapshot``, and ends.
    ``discovery_ms`` is the interval at which a stream looks for a new snapshot.
    """

    from_snapshot: int
    whole: bool = False
    consumer: str | None = None
    discovery_ms: int = DISCOVERY_MS

    def options(self) -> dict[str, str]:
        """Options of the scan, for a hint."""
        snapshot = {"scan.snapshot-id": str(self.from_snapshot)}
        if self.consumer is None:
            return snapshot
        return {
            "scan.mode": "from-snapshot-full" if self.whole else "from-snapshot",
            **snapshot,
            "continuous.discovery-interval": f"{self.discovery_ms} ms",
            "consumer-id": self.consumer,
            # required by the scan; expiry follows the table's own option, which is unset
            "consumer.expiration-time": "36500 d",
            # a run starts at from_snapshot or at its checkpoint; the consumer only prevents expiry
            "consumer.ignore-progress": "true",
            # in exactly-once mode a checkpoint waits until all files in flight have been read;
            # that an event counts once is ensured by Flink's checkpoint, not by the consumer
            "consumer.mode": "at-least-once",
            "source.operator-uid.suffix": "events",
        }


def tile_statements(
    view: CompiledView,
    generation: int,
    scan: EventsScan,
    commit_user: str,
    partition_days: int = 1,
) -> TileStatements:
    """Return the statements of the tile job, for tables of the current Paimon database.

    ``partition_days`` are those of the tile table.
    ``commit_user`` is the prefix of the commit user in the snapshots of this run. Source and
    sinks have fixed ids, so that a checkpoint can be restored at another parallelism.
    """
    day, start = quote(TILE_DAY), quote(TILE_START)
    steps, partials = shared_steps(view.expressions)
    tiles = [
        f"{first_day_sql(quote(view.source.event_time), partition_days)} AS {day}",
        *map(quote, view.keys),
        f"{tile_start_sql(view)} AS {start}",
        *(f"{event_sql(view, partials[p.name])} AS {quote(p.name)}" for p in view.partials),
    ]
    skipped = [
        f"{_day_or_unknown_sql(view)} AS {day}",
        f"{_of_rule_sql(view, lambda rule: literal(rule.reason))} AS `reason`",
        f"{_of_rule_sql(view, lambda rule: _detail_sql(view, rule))} AS `detail`",
        "CAST(1 AS BIGINT) AS `p_rows`",
    ]
    common = {"commit.user-prefix": commit_user}
    return TileStatements(
        tiles=_insert_sql(
            view.table(generation),
            {**common, "sink.operator-uid.suffix": "tiles", "write-buffer-size": "128 mb"},
            tiles,
            _judged_sql(view, scan, steps),
            f"`__fate` = {_ENTERS}",
        ),
        skipped=_insert_sql(
            view.skipped_table(generation),
            {
                **common,
                "sink.operator-uid.suffix": "skipped",
                "sink.parallelism": "1",
                "write-buffer-size": "16 mb",
            },
            skipped,
            _judged_sql(view, scan, steps),
            f"`__fate` >= {_FIRST_RULE}",
        ),
    )


def tile_start_sql(view: CompiledView) -> str:
    """Return SQL of the first millisecond of the event's tile."""
    return floor_sql(quote(view.source.event_time), view.tile_ms)


def event_sql(view: CompiledView, expression: Expression) -> str:
    """Return SQL of an expression over an event, its time, and the end of its tile."""
    internal = {
        EVENT_TIME: quote(view.source.event_time),
        TILE_END: f"({tile_start_sql(view)} + {view.tile_ms})",
    }
    return to_flink(expression, lambda column: internal.get(column) or quote(column))


def verdict_sql(view: CompiledView) -> str:
    """Return SQL of the verdict on an event: 0 not a member, 1 enters, 2 + i rule i is broken
    first.

    One number for both statements, computed once (``PLANNER_OPTIONS``).
    """
    cases = []
    if view.where is not None:
        cases.append(f"WHEN ({to_flink(view.where)}) IS NOT TRUE THEN {_NOT_A_MEMBER}")
    for number, rule in enumerate(view.skip_rules, _FIRST_RULE):
        cases.append(f"WHEN ({to_flink(rule.condition)}) IS NOT TRUE THEN {number}")
    return f"CASE {' '.join(cases)} ELSE {_ENTERS} END" if cases else str(_ENTERS)


def _judged_sql(view: CompiledView, scan: EventsScan, steps: Mapping[str, Expression]) -> str:
    used = {view.source.event_time, *view.keys}
    used.update(*(expression.columns for expression in view.expressions.values()))
    columns = ", ".join(quote(column) for column in view.source.schema if column in used)
    source = f"{quote(view.source.table)} {hint_sql(scan.options())}"
    shared = "".join(f", {event_sql(view, step)} AS {quote(name)}" for name, step in steps.items())
    return f"(\n  SELECT {columns}, {verdict_sql(view)} AS `__fate`{shared}\n  FROM {source}\n)"


def _day_or_unknown_sql(view: CompiledView) -> str:
    time = quote(view.source.event_time)
    in_range = f"{time} >= {MIN_TIME_MS} AND {time} <= {MAX_TIME_MS}"
    return f"CASE WHEN {in_range} THEN {first_day_sql(time)} ELSE {UNKNOWN_DAY} END"


def _of_rule_sql(view: CompiledView, sql: Callable[[SkipRule], str]) -> str:
    cases = [
        f"WHEN {number} THEN {sql(rule)}"
        for number, rule in enumerate(view.skip_rules, _FIRST_RULE)
    ]
    return f"CASE `__fate` {' '.join(cases)} ELSE '' END"


def _detail_sql(view: CompiledView, rule: SkipRule) -> str:
    if rule.reason == "null_key":
        return literal(rule.detail)
    # key and time identify the row
    parts = [literal(f"{rule.detail} |")]
    for name in (*view.keys, view.source.event_time):
        parts += [literal(f" {name}="), f"COALESCE(CAST({quote(name)} AS STRING), 'null')"]
    return f"CONCAT({', '.join(parts)})"


def _insert_sql(
    table: str, options: Mapping[str, str], columns: Sequence[str], source: str, condition: str
) -> str:
    lines = ",\n  ".join(columns)
    return (
        f"INSERT INTO {quote(table)} {hint_sql(options)}\n"
        f"SELECT\n  {lines}\nFROM {source}\nWHERE {condition}"
    )


def hint_sql(options: Mapping[str, str]) -> str:
    """Return SQL of the options of one table in one statement."""
    pairs = ", ".join(f"{literal(key)} = {literal(value)}" for key, value in options.items())
    return f"/*+ OPTIONS({pairs}) */"
