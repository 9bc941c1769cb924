"""``verify --from-log``: compare served values with those that the lake had at that time.

Each row of the log names the snapshot of the tile table that its values are from, so nothing has to
settle and nothing is guessed: the same features are computed again from that snapshot, as of the
time of the read. ``lake_values`` describes the two ways to do that, and
docs/how-to/serving/request-log.md what cannot be checked and why.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from paimon_features.core.errors import SnapshotExpiredError, UnknownNameError
from paimon_features.core.process.callbacks import OnMessage, ignore_message
from paimon_features.core.types.statuses import Status
from paimon_features.definitions.served import definition_of
from paimon_features.lake import iter_batches
from paimon_features.lake.metadata.snapshots import Snapshot, latest_snapshot, ref_of, snapshot
from paimon_features.lake.side_folder.generations import GenerationRecord, load
from paimon_features.project import Project
from paimon_features.project.verification.request_log.computed_values import check_computed
from paimon_features.project.verification.request_log.lake_values import (
    EventsBehindTiles,
    EventsOfTiles,
    ExpectedFromTiles,
    Key,
    entities_of,
    event_of_row,
    rounds,
    same,
)
from paimon_features.project.verification.request_log.log_report import (
    LogDifference,
    LogReport,
    log_difference,
)
from paimon_features.project.verification.request_log.sampled_rows import LoggedRow, sampled_rows
from paimon_features.serving.request_log.log_rows import EntityText, loads
from paimon_features.testing.reference.compare import differences
from paimon_features.testing.reference.features import Answer, Event, answer
from paimon_features.testing.reference.tiler import event_rows

CLOCKS_MS = 60_000
"""The largest accepted difference between the clocks of hosts."""
NOTED_MS = 5_000
"""How long after its read a response may be logged."""


def check_log(
    project: Project,
    *,
    since_ms: int,
    until_ms: int,
    service: str | None = None,
    sample: int = 200,
    seed: int = 0,
    salt: bytes | None = None,
    on_message: OnMessage = ignore_message,
) -> LogReport:
    """Compare ``sample`` logged requests with the lake.

    Raises
    ------
    VerificationError
        If there is no request log, or nothing in it of that time.
    """
    raw = sampled_rows(
        project.lake,
        project.name,
        since_ms=since_ms,
        until_ms=until_ms,
        service=service,
        sample=sample,
        seed=seed,
    )
    report = LogReport()
    rows = []
    for one in raw:
        try:
            rows.append(LoggedRow.of(one))
        except (ValueError, TypeError) as error:
            report.unchecked[f"not readable: {error}"] += 1
    report.requests = len({row.request for row in rows})
    check_rows(project, rows, report, salt=salt, on_message=on_message)
    return report


def check_rows(
    project: Project,
    rows: Sequence[LoggedRow],
    report: LogReport,
    *,
    salt: bytes | None,
    on_message: OnMessage = ignore_message,
) -> None:
    """Compare logged rows with the lake; all results go to the report."""
    by_view: dict[str, list[LoggedRow]] = {}
    for row in rows:
        by_view.setdefault(row.view, []).append(row)
    computed = by_view.pop("", [])
    for name, view_rows in sorted(by_view.items()):
        _LoggedViewCheck(project, name, EntityText(salt), salt is not None, report).check(view_rows)
        on_message(f"{name}: {len(view_rows):,} rows, {len(report.differences)} differences so far")
    if computed:
        check_computed(project, computed, rows, report)
        count = len(report.differences)
        on_message(f"computed features: {len(computed):,} rows, {count} differences so far")


class _LoggedViewCheck:
    """The comparison of the logged rows of one view."""

    def __init__(
        self, project: Project, name: str, text: EntityText, salted: bool, report: LogReport
    ) -> None:
        self.project, self.lake, self.report = project, project.lake, report
        self.name, self.text, self.salted = name, text, salted
        self._tables: dict[tuple[int, int], str] = {}
        self._snapshots: dict[tuple[str, int], Snapshot | None] = {}

    def check(self, rows: Sequence[LoggedRow]) -> None:
        """Compare rows; all results go to the report."""
        views = self.project.definitions.views
        if self.name not in views:
            self._unchecked(rows, f"feature view {self.name!r} is not defined any more")
            return
        self.view = views[self.name].compiled
        self.definition = views[self.name]
        generations = {record.generation: record for record in load(self.lake, self.name)}
        groups: dict[tuple[str, int], list[LoggedRow]] = {}
        for row in rows:
            why = self._why_not(row, generations.get(row.generation))
            if why:
                self._unchecked([row], why)
            elif self._times_fit(row, table := generations[row.generation].table):
                groups.setdefault((table, row.snapshot), []).append(row)
        if groups:
            self._check_groups(groups)

    def _why_not(self, row: LoggedRow, record: GenerationRecord | None) -> str:
        """Why a row cannot be compared; "" if it can."""
        try:
            definitions = [self._definition(row, with_event) for with_event in (False, True)]
        except UnknownNameError:
            definitions = []
        if row.definition not in definitions:
            return f"the definition of {self.name!r} has changed since"
        if record is None or not self.lake.exists(record.table):
            return f"generation {row.generation} of {self.name!r} is gone"
        if record.fingerprint != self.view.fingerprint:
            return f"generation {row.generation} of {self.name!r} contains other tiles"
        if record.incarnation != row.incarnation:
            return f"generation {row.generation} of {self.name!r} was rolled back since"
        if row.entity.startswith("["):
            return ""
        if not self.salted:
            return "entities are hashed, and no salt is given"
        if not row.entity.startswith(self.text.prefix):
            return "entities are hashed by another salt"
        return ""

    def _definition(self, row: LoggedRow, with_event: bool) -> str:
        return definition_of(self.view, list(row.values), with_event=with_event)

    def _times_fit(self, row: LoggedRow, table: str) -> bool:
        """Return True if the snapshots of a row match its times, as far as they still exist."""
        newest = latest_snapshot(self.lake, table)
        if row.snapshot > (0 if newest is None else newest.id):
            newest_text = "none" if newest is None else f"{newest.id} is the newest"
            self.report.differences.append(
                log_difference(row, "applied_snapshot", row.snapshot, newest_text, "snapshots")
            )
            return False
        applied = self._snapshot(table, row.applied_snapshot)
        if applied is not None and applied.time_ms != row.commit_time_ms:
            truth = f"{applied.time_ms} is when snapshot {applied.id} was committed"
            self.report.differences.append(
                log_difference(row, "commit_time_ms", row.commit_time_ms, truth, "snapshots")
            )
            return False
        of_values = self._snapshot(table, row.snapshot)
        if row.snapshot == 0:
            return True
        if of_values is None:
            self._unchecked([row], "the snapshot has expired")
            return False
        if of_values.time_ms > row.served_at_ms + CLOCKS_MS:
            truth = f"it was committed later, at {of_values.time_ms}"
            self.report.differences.append(
                log_difference(row, "applied_snapshot", row.snapshot, truth, "snapshots")
            )
            return False
        return True

    def _snapshot(self, table: str, number: int) -> Snapshot | None:
        if (table, number) not in self._snapshots:
            try:
                existing = snapshot(self.lake, table, number) if number else None
            except SnapshotExpiredError:
                existing = None
            self._snapshots[table, number] = existing
        return self._snapshots[table, number]

    def _check_groups(self, groups: Mapping[tuple[str, int], Sequence[LoggedRow]]) -> None:
        entities = self._entities(groups)
        clear = {entity for entity in entities.values() if entity and None not in entity}
        events = EventsBehindTiles(self.lake, self.definition, clear)
        for (table, number), rows in sorted(groups.items()):
            identified = [row for row in rows if entities[row.entity] is not None]
            keys = {e for row in identified if (e := entities[row.entity]) and None not in e}
            try:
                tiles = ExpectedFromTiles(
                    self.lake, self.view, table, number, keys, min(row.as_of_ms for row in rows)
                )
            except SnapshotExpiredError:
                self._unchecked(rows, "the snapshot has expired")
                continue
            for row in rows:
                # no entity of the table has this hash, so the table has no such entity
                entity = entities[row.entity]
                self._check(row, tiles, events, entity)

    def _entities(
        self, groups: Mapping[tuple[str, int], Sequence[LoggedRow]]
    ) -> dict[str, Key | None]:
        """Return the keys of each entity of the log.

        None for a hash that no entity of the table has.
        """
        texts = {row.entity for rows in groups.values() for row in rows}
        keys: dict[str, Key | None] = {
            text: tuple(json.loads(text)) if text.startswith("[") else None for text in texts
        }
        hashed = {text for text in texts if not text.startswith("[")}
        of_tables: dict[str, set[int]] = {}
        for table, number in groups:
            of_tables.setdefault(table, set()).add(number)
        for table, numbers in of_tables.items() if hashed else ():
            # what is in neither the oldest nor the newest of them is in none: tiles only add
            for number in sorted({min(numbers), max(numbers)} - {0}):
                ref = ref_of(self.lake, table, number)
                for batch in iter_batches(self.lake, table, list(self.view.keys), ref):
                    for entity in set(entities_of(pa.Table.from_batches([batch]), self.view.keys)):
                        if (text := self.text(entity)) in hashed:
                            keys[text] = entity
        return keys

    # -- one row ---------------------------------------------------------------------------

    def _check(
        self,
        row: LoggedRow,
        tiles: ExpectedFromTiles,
        events: EventsBehindTiles,
        entity: Key | None,
    ) -> None:
        names = list(row.values)
        event: pa.Table | None = None
        types = {f.name: f.type for f in self.view.features}
        try:
            served = {name: loads(types[name], row.values[name]) for name in names}
        except (ValueError, TypeError, ArithmeticError) as error:
            self._unchecked([row], f"not readable: {error}")
            return
        statuses = {name: self._fresh(row, name) for name in names}
        if entity is not None and None in entity:
            entity = (
                None  # the event of a request has a null key: no entity, and no row of the view
            )
        elif row.definition != self._definition(row, with_event=False):
            if entity is None:
                self._unchecked([row], "events of entities that are hashed, and that no tile has")
                return
            try:
                event = event_of_row(self.view, entity, row.as_of_ms, row.inputs)
            except KeyError as error:
                self._unchecked([row], f"events of which the log lacks {error}")
                return
        if entity is None:
            values: Mapping[str, Any] = dict.fromkeys(names)
            truth: Mapping[str, str] = dict.fromkeys(names, "MISSING")
        else:
            values, truth = tiles.answer(entity, names, row.as_of_ms, event)
        self.report.rows += 1
        self.report.values += len(names)
        self.report.truths[row.request, row.row, row.view] = values
        differences: dict[str, LogDifference] = {}
        only_rounded = set()
        for name in names:
            if statuses[name] != truth[name]:
                differences[name] = log_difference(
                    row, name, row.statuses[name], truth[name], "tiles"
                )
            elif not same(served[name], values[name], near=rounds(self.view, name)):
                differences[name] = log_difference(row, name, served[name], values[name], "tiles")
                if served[name] is not None and rounds(self.view, name):
                    only_rounded.add(name)
        if entity is not None:
            chosen = events.of_tiles(entity, tiles.counts.get(entity, {}))
            if isinstance(chosen, EventsOfTiles):
                own_event = None if event is None else event_rows(event)[0]
                self._ask_events(
                    row, chosen, own_event, served, statuses, differences, only_rounded
                )
            else:
                self.report.tiles_only[chosen] += 1
        else:
            self.report.tiles_only["entities that no tile has"] += 1
        self.report.differences += differences.values()

    def _ask_events(
        self,
        row: LoggedRow,
        chosen: EventsOfTiles,
        own_event: Event | None,
        served: Mapping[str, Any],
        statuses: Mapping[str, str],
        found: dict[str, LogDifference],
        only_rounded: Iterable[str],
    ) -> None:
        """Add differences from the events, and remove those that are only rounding."""
        expected = answer(
            self.definition, chosen.events, row.as_of_ms, online=True, own_event=own_event
        )
        texts = self._differing(chosen, row.as_of_ms, expected, served, statuses, own_event)
        if texts and not chosen.all_of_them:
            # which events the tiles contain was a guess, by the order in which they arrived
            self.report.tiles_only["tiles that have grown since"] += 1
            return
        self.report.by_events += 1
        for name in only_rounded:
            if name not in texts:
                del found[name]
        for name, text in texts.items():
            if name not in found:
                found[name] = log_difference(row, name, served[name], text, "events")

    def _differing(
        self,
        chosen: EventsOfTiles,
        as_of_ms: int,
        expected: Answer,
        served: Mapping[str, Any],
        statuses: Mapping[str, str],
        own_event: Event | None,
    ) -> dict[str, str]:
        every = {**expected.values, **served}
        all_statuses = {
            f.name: "ILL_CONDITIONED"
            if f.name in expected.ill_conditioned
            else "PRESENT"
            if f.name in expected.counting
            else expected.status
            for f in self.view.features
        }
        texts = differences(
            self.definition,
            chosen.events,
            as_of_ms,
            expected,
            every,
            {**all_statuses, **statuses},
            online=True,
            own_event=own_event,
        )
        return dict(text.split(": ", 1) for text in texts)

    def _fresh(self, row: LoggedRow, name: str) -> str:
        """Return the status without staleness: STALE as PRESENT, where the row's freshness permits
        it."""
        status, limit_ms = row.statuses[name], self.view.max_staleness_ms
        if status == Status.STALE.name:
            may_be = limit_ms is not None and row.freshness_ms > limit_ms
            return Status.PRESENT.name if may_be else status
        if status == Status.PRESENT.name and limit_ms is not None:
            return status if row.freshness_ms <= limit_ms + NOTED_MS else "PRESENT though stale"
        return status

    def _unchecked(self, rows: Sequence[LoggedRow], reason: str) -> None:
        self.report.unchecked[reason] += len(rows)
