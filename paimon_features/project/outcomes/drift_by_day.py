"""Drift of predictions and of the features behind them, day by day, from logged predictions."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.errors import RequestError
from paimon_features.core.windows import DAY_MS
from paimon_features.lake import iter_batches
from paimon_features.lake.specs import SERVED_DAY
from paimon_features.project import Project
from paimon_features.project.monitoring.monitoring_report import ColumnReport
from paimon_features.project.monitoring.value_statistics import ColumnValues
from paimon_features.project.outcomes.record import predictions_table

MOST_READS = 5_000
"""Of so many rows of a day the features are compared, spread over the day: they are JSON."""


@dataclass(frozen=True)
class DayDrift:
    """The drift of a column on a day (UTC) against the first day.

    ``column`` is ``prediction of MODEL@VERSION``, or a feature. ``psi`` is None where a side has no
    values; ``expected_psi`` is its mean without a change, ``p_value`` the probability of at least
    it then.
    """

    day: str
    column: str
    rows: int
    reference_rows: int
    psi: float | None
    expected_psi: float | None
    p_value: float | None


def drift_by_day(
    project: Project, model: str, versions: Sequence[int], since_ms: int, until_ms: int
) -> list[DayDrift]:
    """Return the drift on each day with predictions but the first, in the order of columns and
    days.

    Raises
    ------
    RequestError
        If no prediction was committed yet.
    """
    days = _values(project, model, versions, since_ms, until_ms)
    if not days:
        return []
    first, *others = sorted(days)
    out = []
    for column, reference in days[first].items():
        for day in others:
            current = days[day].get(column)
            if current is None:
                continue
            drift = ColumnReport.of_values(current, reference).drift
            text = str(np.datetime64(day, "D"))
            if drift is None:
                out.append(DayDrift(text, column, current.rows, reference.rows, None, None, None))
                continue
            out.append(
                DayDrift(
                    text, column, current.rows, reference.rows, drift.psi, drift.expected_psi,
                    drift.psi_p_value,
                )
            )  # fmt: skip
    return out


def _values(
    project: Project, model: str, versions: Sequence[int], since_ms: int, until_ms: int
) -> Mapping[int, dict[str, ColumnValues]]:
    """By day and column the values of the predictions and features."""
    table = predictions_table(project, model)
    within = {SERVED_DAY: (since_ms // DAY_MS, min(until_ms // DAY_MS + 1, 2**31 - 1))}
    by_day: dict[int, dict[str, ColumnValues]] = defaultdict(dict)
    reads: dict[int, int] = defaultdict(int)
    columns = [SERVED_DAY, "served_at_ms", "version", "prediction", "reads"]
    for batch in iter_batches(project.lake, table, columns, partitions=within):
        at = batch.column("served_at_ms")
        mask = pc.and_(pc.greater_equal(at, since_ms), pc.less(at, until_ms))
        mask = pc.and_(mask, pc.is_in(batch.column("version"), pa.array(versions, pa.int32())))
        rows = pa.Table.from_batches([batch.filter(mask)])
        for day in pc.unique(rows.column(SERVED_DAY)).to_pylist():
            day_rows = rows.filter(pc.equal(rows.column(SERVED_DAY), day))
            for version in versions:
                of = day_rows.filter(pc.equal(day_rows.column("version"), version)).column(
                    "prediction"
                )
                if len(of):
                    _add(by_day[day], f"prediction of {model}@{version}", of)
            texts = day_rows.column("reads").drop_null()
            # a batch is a part of the day; more than that would be the day's beginning alone
            texts = texts.take(_spread(len(texts), MOST_READS - reads[day]))
            reads[day] += len(texts)
            for name, values in _features(texts.to_pylist()).items():
                _add(by_day[day], name, values)
    return by_day


def _spread(rows: int, most: int) -> pa.Array:
    chosen = np.arange(rows) if rows <= most else np.arange(max(most, 0)) * rows // max(most, 1)
    return pa.array(chosen, pa.int64())


def _features(texts: Sequence[str]) -> dict[str, pa.ChunkedArray]:
    """Return the values of numbers, texts and truth values by feature."""
    values: dict[str, list[Any]] = defaultdict(list)
    for text in texts:
        for read in json.loads(text):
            prefix = f"{read['view']}:" if read["view"] else ""
            for name, value in json.loads(read["feature_values"]).items():
                values[prefix + name].append(value)
    out = {}
    for name, numbers in values.items():
        try:
            out[name] = pa.chunked_array([pa.array(numbers)])
        except pa.ArrowException:  # not of one type
            continue
    return out


def _add(columns: dict[str, ColumnValues], name: str, values: pa.ChunkedArray) -> None:
    if pa.types.is_null(values.type):
        values = values.cast(pa.float64())
    collected = columns.get(name) or ColumnValues(name)
    try:
        collected.add(values)
    except RequestError:  # lists, which have no drift of this kind
        return
    columns[name] = collected
