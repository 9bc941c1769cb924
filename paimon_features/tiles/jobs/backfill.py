"""What a backfill records, whichever engine computes it."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.process.callbacks import OnMessage
from paimon_features.core.times.clock import now_ms
from paimon_features.lake import Lake, iter_batches, latest_snapshot
from paimon_features.lake.metadata import table_history
from paimon_features.lake.metadata.consumers import advance_consumer, register_consumer
from paimon_features.lake.metadata.snapshots import Snapshot
from paimon_features.lake.ownership.lease import ProcessHolder
from paimon_features.tiles.consumed import hold_position
from paimon_features.tiles.jobs.restart import decide_backfill
from paimon_features.tiles.jobs.target import TileTarget


@dataclass(frozen=True, slots=True)
class TileJobResult:
    """How a run of a tile job ended, or that it is still running.

    ``state`` is STOPPED, RUNNING (detached) or UNCHANGED (a bounded run without new events).
    ``resumed`` is the checkpoint it started from, ``checkpoint`` the one the next run resumes from,
    ``snapshot`` the newest snapshot of the tile table. ``events_read`` of a stream is Flink's
    count shortly before the end.
    """

    view: str
    generation: int
    state: str
    job_id: str | None = None
    resumed: str | None = None
    checkpoint: str | None = None
    events_read: int = 0
    snapshot: int | None = None

    def _repr_html_(self) -> str:
        from paimon_features.core.notebook.markup import card, facts

        about = {
            "state": self.state,
            "events": self.events_read,
            "tiles at snapshot": None if self.snapshot is None else str(self.snapshot),
            "job": self.job_id,
            "resumed from": self.resumed,
            "checkpoint": self.checkpoint,
        }
        return card(f"Tiles of {self.view}, generation {self.generation}", facts(about))


def local_backfill(target: TileTarget, holder: ProcessHolder) -> dict[str, Any]:
    """Return a backfill inside the process ``holder``, as the generation's record describes it."""
    return {
        "kind": "backfill",
        "engine": "local",
        "job_id": uuid.uuid4().hex,
        "events": target.events,
        "rest": None,
        "local": True,
        "process": asdict(holder),
        "since_ms": now_ms(),
        "branch": [],
    }


def begin_backfill(
    target: TileTarget, job: Mapping[str, Any], rebuild: bool, on_message: OnMessage
) -> Snapshot | None:
    """Record the job, and hold the events that follow the newest snapshot.

    Returns the snapshot of the events table to read, None if it has no events yet. The caller owns
    the tables; they are empty afterwards, what an unfinished backfill left is removed first.

    Raises
    ------
    GenerationError
        If the generation is not empty.
    """
    if rebuild or not decide_backfill(target.ledger()):
        target.empty(on_message)
    newest = latest_snapshot(target.lake, target.events)
    target.choose_partitions(on_message)
    number, events = (0, 0) if newest is None else (newest.id, newest.total_records)
    register_consumer(target.lake, target.events, target.consumer, max(number, 1))
    user = target.new_commit_user()
    target.update(
        job=job,
        commit_user=user,
        handover_snapshot=number,
        events_history=table_history.mark(target.lake, target.events),
        backfilled=False,
    )
    on_message(
        f"{target}: backfill of {events:,} events, {target.events} at snapshot {number}"
        if number
        else f"{target}: {target.events} has no events yet, so there are no tiles to compute"
    )
    return newest


def end_backfill(
    target: TileTarget, job: Mapping[str, Any], begun: Snapshot | None, on_message: OnMessage
) -> TileJobResult:
    """Record that everything is committed, and release the events that were read.

    Events that are in none of the view's features are reported, by rule.
    """
    number, events = (0, 0) if begun is None else (begun.id, begun.total_records)
    tiles = target.tiles_snapshot()
    # 'plan' estimates the duration of the next backfill from these
    seconds = max((now_ms() - job["since_ms"]) / 1000, 0.001)
    done = {**job, "state": "STOPPED", "events_read": events, "seconds": seconds}
    record = target.update(job=done, backfilled=True, backfill_snapshot=tiles)
    hold_position(target.lake, record)
    advance_consumer(target.lake, target.events, target.consumer, number + 1)
    skipped = skipped_counts(target.lake, target.tables[1])
    if skipped:
        rules = (f"{n:,} {reason} ({detail})" for (reason, detail), n in skipped.most_common())
        on_message(
            f"{target}: {skipped.total():,} of {events:,} events are in none of its "
            f"features: {', '.join(rules)}; table {target.tables[1]} contains their keys and times"
        )
    return TileJobResult(
        target.view.name,
        target.generation,
        "STOPPED",
        str(job["job_id"]),
        events_read=events,
        snapshot=tiles,
    )


def skipped_counts(lake: Lake, table: str) -> Counter[tuple[str, str]]:
    """Return how many events each rule excluded, by its reason and detail, from a skipped table."""
    counts: Counter[tuple[str, str]] = Counter()
    for batch in iter_batches(lake, table, ["reason", "detail", "p_rows"]):
        # behind the detail of the rule are the key and the time of each event
        detail = pc.replace_substring_regex(batch.column("detail"), r"(?s) \| .*", "")
        rules = pa.table({"reason": batch.column("reason"), "detail": detail})
        rules = rules.append_column("events", batch.column("p_rows"))
        by_rule = rules.group_by(["reason", "detail"]).aggregate([("events", "sum")])
        for row in by_rule.to_pylist():
            counts[row["reason"], row["detail"]] += row["events_sum"]
    return counts
