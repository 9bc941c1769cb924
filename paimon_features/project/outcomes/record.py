"""Predictions with their outcomes in the table ``outcomes_<model>``, each of them once.

A pass appends the mature predictions that the table does not have, in commits of some days each. A
pass that is killed leaves complete commits; the next one finds what is missing by comparing both
tables. So predictions that are committed late, from a server that was cut off, are found, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.configuration.project_config import SALT_VARIABLE
from paimon_features.core.errors import ConfigurationError, RequestError
from paimon_features.core.process.callbacks import OnMessage, ignore_message
from paimon_features.core.types.array_types import Ints
from paimon_features.core.types.schema import DataType, type_from_text
from paimon_features.core.windows import DAY_MS
from paimon_features.lake import append_arrow, read_arrow
from paimon_features.lake.ownership.lease import acquire
from paimon_features.lake.specs import (
    OUTCOMES_PREFIX,
    PREDICTIONS_PREFIX,
    SERVED_DAY,
    outcomes_spec,
)
from paimon_features.project import Project
from paimon_features.project.monitoring.time_ranges import TimeRange
from paimon_features.project.outcomes.join import OutcomeValues, join_outcomes
from paimon_features.project.outcomes.outcome_events import OutcomeEvents
from paimon_features.project.outcomes.rule import OutcomeRule
from paimon_features.serving.request_log.log_rows import EntityText, loads, plain

_IDENTITY = ("request_id", "worker", "served_at_ms", "number", "row", "version")
"""What identifies a prediction: ids may be used again by clients, numbers by workers."""
_READ = (*_IDENTITY, "as_of_ms", "entity", "role", "prediction", "status")
COMMIT_ROWS = 500_000
"""Days of about so many predictions are committed together."""


@dataclass
class OutcomeStats:
    """Counts of a pass: of ``predictions`` that had no outcome yet, ``written`` are in the table.

    ``with_outcome`` of these had one. ``immature`` ones wait for the end of their window,
    ``without_label`` have no outcome and the rule has no label for that, ``without_keys`` are
    written with null keys, since their entity is hashed and no outcome has shown it; ``other_salt``
    have entities hashed with another salt, and ``not_numbers`` no single number as prediction.
    ``known_until_ms`` is the time up to which outcomes are known, None if there are none.
    """

    predictions: int = 0
    written: int = 0
    with_outcome: int = 0
    immature: int = 0
    without_label: int = 0
    without_keys: int = 0
    other_salt: int = 0
    not_numbers: int = 0
    commits: int = 0
    known_until_ms: int | None = None


class OutcomeRecorder:
    """Joins the predictions of a model with outcomes.

    ``salt`` is that of the servers, if entities are hashed.

    Raises
    ------
    UnknownNameError
        If there is no such model, or the rule names what does not exist.
    RequestError
        If no prediction of the model was committed yet.
    """

    def __init__(
        self,
        project: Project,
        model: str,
        rule: OutcomeRule,
        *,
        salt: bytes | None = None,
        on_message: OnMessage = ignore_message,
    ) -> None:
        self._lake, self._rule, self._tell = project.lake, rule, on_message
        signature = project.models.manifest(model).signature
        self.keys: Mapping[str, DataType] = {
            key.name: type_from_text(key.type) for key in signature.entities
        }
        self._predictions = predictions_table(project, model)
        self.table = OUTCOMES_PREFIX + model
        self._events = OutcomeEvents(project, rule, self.keys)
        self._texts = [EntityText(None)] + ([EntityText(salt)] if salt else [])

    def run_once(self, since_ms: int, until_ms: int | None = None) -> OutcomeStats:
        """Record the outcomes of predictions that were served from ``since_ms`` on.

        ``until_ms`` is the time up to which outcomes are known, in place of the rule's.

        Raises
        ------
        OwnershipError
            If another process owns the table.
        """
        self._lake.create(outcomes_spec(self.table, self.keys))
        done = OutcomeStats()
        days, first_ms = self._days(since_ms)
        if not days:
            return done
        known_ms = self._events.watermark_ms(first_ms) if until_ms is None else until_ms
        done.known_until_ms = known_ms
        with acquire(self._lake, self.table, purpose="record outcomes"):
            for rows in self._pending(days, since_ms):
                self._record(rows, known_ms, done)
        return done

    def _days(self, since_ms: int) -> tuple[list[int], int]:
        """Return the days with predictions, and the earliest time that one is as of."""
        days = {SERVED_DAY: (since_ms // DAY_MS, None)}
        rows = read_arrow(self._lake, self._predictions, [SERVED_DAY, "as_of_ms"], partitions=days)
        served_days: list[int] = sorted(pc.unique(rows.column(SERVED_DAY)).to_pylist())
        return served_days, pc.min(rows.column("as_of_ms")).as_py() or 0

    def _pending(self, days: Sequence[int], since_ms: int) -> Iterator[pa.Table]:
        """Predictions without outcome, some days at a time."""
        held: list[pa.Table] = []
        for day in days:
            within = {SERVED_DAY: (day, day + 1)}
            rows = read_arrow(self._lake, self._predictions, list(_READ), partitions=within)
            rows = rows.filter(pc.greater_equal(rows.column("served_at_ms"), since_ms))
            recorded = read_arrow(self._lake, self.table, list(_IDENTITY), partitions=within)
            missing = pc.invert(pc.is_in(_identity(rows), _identity(recorded)))
            held.append(rows.filter(missing))
            if sum(part.num_rows for part in held) >= COMMIT_ROWS:
                yield pa.concat_tables(held)
                held = []
        if held:
            yield pa.concat_tables(held)

    def _record(self, rows: pa.Table, known_ms: int | None, done: OutcomeStats) -> None:
        done.predictions += rows.num_rows
        numbers = pc.is_valid(rows.column("prediction"))
        done.not_numbers += rows.num_rows - pc.sum(numbers).as_py() if rows.num_rows else 0
        rows = rows.filter(numbers)
        horizon = self._rule.within_ms
        before = known_ms - horizon if known_ms is not None else -(2**62)
        mature = pc.less_equal(rows.column("as_of_ms"), before)
        total = rows.num_rows
        rows = self._of_our_salts(rows.filter(mature), done)
        done.immature += total - (pc.sum(mature).as_py() or 0)
        if not rows.num_rows:
            return
        encoded = rows.column("entity").combine_chunks().dictionary_encode()
        times = rows.column("as_of_ms").to_numpy()
        codes: Ints = encoded.indices.to_numpy().astype(np.int64)
        entities: list[str] = encoded.dictionary.to_pylist()
        outcomes, keys = self._outcomes(entities, times)
        rule = self._rule
        labels = join_outcomes(codes, times, outcomes, horizon, rule.take, rule.default)
        labelled = ~np.isnan(labels.labels)
        done.without_label += int((~labelled).sum())
        has_outcome = labels.found[labelled]
        columns = {
            **self._key_columns(entities, keys, codes[labelled], done),
            "event_time_ms": pa.array(times[labelled]),
            "label": pa.array(labels.labels[labelled]),
            "outcome_time_ms": pa.array(labels.times[labelled], mask=~has_outcome),
            "matured_at_ms": pa.array(times[labelled] + horizon),
        }
        kept = rows.filter(pa.array(labelled))
        days = pc.divide(kept.column("served_at_ms"), DAY_MS).cast(pa.int32())
        copied = ("version", "role", "prediction", "entity", "request_id", "worker", "number",
                  "row", "served_at_ms", "status")  # fmt: skip
        table = pa.table(
            {SERVED_DAY: days, **columns, **{name: kept.column(name) for name in copied}}
        )
        append_arrow(self._lake, self.table, table)
        done.written += table.num_rows
        done.with_outcome += int(has_outcome.sum())
        done.commits += bool(table.num_rows)
        self._tell(f"{done.written:,} predictions with outcomes in {self.table}")

    def _of_our_salts(self, rows: pa.Table, done: OutcomeStats) -> pa.Table:
        """Return the rows whose entities can be compared with those of outcomes."""
        texts = rows.column("entity")
        hashed = pc.starts_with(texts, "blake2:")
        if pc.any(hashed).as_py() and len(self._texts) == 1:
            raise ConfigurationError(
                f"{self._predictions}: entities are hashed; set {SALT_VARIABLE} to the servers' "
                "salt"
            )
        ours = pc.invert(hashed)
        if len(self._texts) > 1:
            ours = pc.or_(ours, pc.starts_with(texts, self._texts[1].prefix))
        kept = rows.filter(ours)
        done.other_salt += rows.num_rows - kept.num_rows
        return kept

    def _outcomes(
        self, entities: Sequence[str], times: Ints
    ) -> tuple[OutcomeValues, dict[int, tuple[object, ...]]]:
        """Return the outcomes of these entities in all their windows, and the keys they have
        shown."""
        code_of = {text: code for code, text in enumerate(entities)}
        code_of_key: dict[tuple[object, ...], int] = {}
        keys: dict[int, tuple[object, ...]] = {}
        parts: list[tuple[Ints, Ints, np.ndarray[tuple[int], np.dtype[np.float64]]]] = []
        end = int(times.max()) + self._rule.within_ms
        for rows in self._events.within(TimeRange(int(times.min()), end)):
            columns = [
                plain(kind, rows.keys.column(name).to_pylist()) for name, kind in self.keys.items()
            ]
            codes = np.empty(len(rows.times), np.int64)
            for at, key in enumerate(zip(*columns, strict=True)):
                code = code_of_key.get(key)
                if code is None:
                    # of entities that were never predicted only the number is remembered
                    code = code_of_key[key] = self._code(key, code_of)
                codes[at] = code
                if code >= 0:
                    keys[code] = key
            ours = codes >= 0
            parts.append((codes[ours], rows.times[ours], rows.values[ours]))
        if not parts:
            nothing = np.zeros(0, np.int64)
            return OutcomeValues(nothing, nothing, np.zeros(0)), keys
        together = [np.concatenate(column) for column in zip(*parts, strict=True)]
        return OutcomeValues(*together), keys

    def _code(self, key: Sequence[object], code_of: Mapping[str, int]) -> int:
        for text in self._texts:
            code = code_of.get(text(key))
            if code is not None:
                return code
        return -1

    def _key_columns(
        self,
        entities: Sequence[str],
        shown: Mapping[int, tuple[object, ...]],
        codes: Ints,
        done: OutcomeStats,
    ) -> dict[str, pa.Array]:
        """Return the typed keys of each row: from its text, or as an outcome has shown them."""
        nothing = (None,) * len(self.keys)
        keys = [
            tuple(json.loads(text)) if text.startswith("[") else shown.get(code, nothing)
            for code, text in enumerate(entities)
        ]
        unknown = np.array([key == nothing for key in keys], np.bool_)
        done.without_keys += int(unknown[codes].sum())
        out = {}
        for place, (name, kind) in enumerate(self.keys.items()):
            values = [None if key[place] is None else loads(kind, key[place]) for key in keys]
            if kind.text == "date":
                column = pa.array(values, pa.int32()).view(pa.date32())
            else:
                column = pa.array(values, kind.arrow)
            out[name] = column.take(pa.array(codes))
        return out


def predictions_table(project: Project, model: str) -> str:
    """Return the table of a model's predictions; RequestError if there is none yet."""
    table = PREDICTIONS_PREFIX + model
    if not project.lake.exists(table):
        raise RequestError(
            f"no prediction of model {model!r} was committed yet: set [serve] prediction_log, "
            "and run 'paimon-features request-log' where its files are"
        )
    return table


def _identity(rows: pa.Table) -> pa.ChunkedArray:
    """Return a text for each row that identifies its prediction."""
    columns = [pc.fill_null(rows.column(name).cast(pa.string()), "") for name in _IDENTITY]
    return pc.binary_join_element_wise(*columns, " ")
