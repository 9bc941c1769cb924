"""The report of ``monitor``: statistics per column in a range, and their drift."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum, auto
from typing import Any

from paimon_features.project.monitoring.drift import Drift, drift_of, ks_of_values, quantile
from paimon_features.project.monitoring.no_change import holm
from paimon_features.project.monitoring.time_ranges import TimeRange
from paimon_features.project.monitoring.value_statistics import ColumnValues, compare
from paimon_features.transformers.column_statistics import (
    MAX_CONDITION,
    ColumnStatistics,
)

SHARES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""The reported quantiles."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary statistics of one column in one range; None for unknown values.

    ``quantiles`` are those of ``SHARES``, from tiles within the width of their bin. ``status`` is
    ``ILL_CONDITIONED`` if rounding errors dominate the deviation, which is None then.
    """

    rows: int
    count: int | None
    null_share: float | None
    mean: float | None = None
    deviation: float | None = None
    low: float | None = None
    high: float | None = None
    quantiles: tuple[float | None, ...] | None = None
    status: str = "OK"

    @classmethod
    def of(cls, column: ColumnStatistics) -> Summary:
        """Return the summary of a column's statistics."""
        share = None if column.nulls is None or not column.rows else column.nulls / column.rows
        moments, mean, deviation, status = column.moments, None, None, "OK"
        if moments is not None and moments.count:
            mean = moments.mean
            if moments.condition > MAX_CONDITION:
                status = "ILL_CONDITIONED"
            else:
                deviation = math.sqrt(moments.squares / moments.count)
        quantiles: tuple[float | None, ...] | None = None
        if column.quantiles is not None:
            quantiles = tuple(map(column.quantiles.get, SHARES))
        elif column.bins is not None and column.edges is not None:
            edges, bins = column.edges, column.bins
            quantiles = tuple(quantile(edges, bins, share) for share in SHARES)
        count = column.count
        if count is None and moments is not None:
            count = moments.count
        return cls(
            column.rows, count, share, mean, deviation, column.low, column.high, quantiles, status
        )


@dataclass(frozen=True)
class ColumnReport:
    """One column in one range, optionally compared with a reference."""

    column: str
    current: ColumnStatistics
    reference: ColumnStatistics | None
    drift: Drift | None

    @classmethod
    def of(
        cls,
        current: ColumnStatistics,
        reference: ColumnStatistics | None,
        distance: float | None = None,
    ) -> ColumnReport:
        """Return the report from statistics in the same bins; ``distance`` is the exact KS."""
        drift = None
        if reference is not None:
            here, before = counts(current), counts(reference)
            if here is None or before is None:
                drift = Drift(
                    current.column,
                    current.count or 0,
                    reference.count or 0,
                    current.nulls or 0,
                    reference.nulls or 0,
                )
            else:
                nulls = current.nulls or 0, reference.nulls or 0
                ordered = current.bins is not None
                drift = drift_of(current.column, here, before, ordered, nulls, distance)
        return cls(current.column, current, reference, drift)

    @classmethod
    def of_values(cls, current: ColumnValues, reference: ColumnValues | None) -> ColumnReport:
        """Return the report from all values of both sides."""
        here, before = compare(current, reference, SHARES)
        distance = None
        if reference is not None and current.is_number and reference.is_number:
            distance = ks_of_values(current.values, reference.values)
        return cls.of(here, before, distance)

    def to_document(self) -> dict[str, Any]:
        """Return the document in JSON values."""
        return {
            "column": self.column,
            "current": _document(self.current),
            "reference": None if self.reference is None else _document(self.reference),
            "drift": None if self.drift is None else asdict(self.drift),
        }


@dataclass(frozen=True, slots=True)
class AlarmLimits:
    """When a column raises an alarm: if its PSI exceeds ``psi`` and is statistically significant.

    It is significant if its p-value, corrected for the number of columns, is at most
    ``false_alarms``: the probability that a report raises any alarm though nothing has changed. A
    column of fewer than ``min_count`` rows in one of the ranges raises none.
    """

    psi: float
    false_alarms: float = 0.01
    min_count: int = 100


class ColumnStatus(StrEnum):
    """The result of the limits for a column."""

    DRIFT = auto()
    NO_DRIFT = auto()
    CHANCE = auto()
    """The PSI exceeds its limit, but such a PSI is to be expected without a change."""
    TOO_FEW_ROWS = auto()
    UNKNOWN = auto()
    """There are no bins, or no rows in one of the ranges."""


@dataclass(frozen=True, slots=True)
class ColumnVerdict:
    """The result of the limits for a column; ``p_value`` is corrected for all columns."""

    column: str
    status: ColumnStatus
    p_value: float | None
    message: str

    @property
    def is_alarm(self) -> bool:
        """Whether the column drifted, or could not be checked at all."""
        return self.status in (ColumnStatus.DRIFT, ColumnStatus.UNKNOWN)


@dataclass(frozen=True)
class MonitoringReport:
    """All columns of a view (or table) in a range, compared with another range.

    ``origin`` is what was read: ``tiles``, ``events``, ``features`` or ``rows``.
    """

    name: str
    origin: str
    within: TimeRange
    against: TimeRange | None
    columns: Sequence[ColumnReport]

    def verdicts(self, limits: AlarmLimits) -> list[ColumnVerdict]:
        """Return the result of the limits for each column, in their order."""
        enough = [
            column.drift
            for column in self.columns
            if column.drift is not None
            and column.drift.psi_p_value is not None
            and column.drift.fewer_rows >= limits.min_count
        ]
        corrected = holm([drift.psi_p_value or 0.0 for drift in enough])
        p_values = {id(drift): p for drift, p in zip(enough, corrected, strict=True)}
        return [
            _verdict(column, p_values.get(id(column.drift)), len(enough), limits)
            for column in self.columns
        ]

    def to_document(self) -> dict[str, Any]:
        """Return the document in JSON values."""
        return {
            "name": self.name,
            "from": self.origin,
            "range": asdict(self.within),
            "against": None if self.against is None else asdict(self.against),
            "columns": [column.to_document() for column in self.columns],
        }


def _verdict(
    column: ColumnReport, p_value: float | None, columns: int, limits: AlarmLimits
) -> ColumnVerdict:
    name, drift = column.column, column.drift
    if drift is None or drift.psi is None or drift.expected_psi is None:
        return ColumnVerdict(name, ColumnStatus.UNKNOWN, None, f"{name}: PSI is unknown")
    if p_value is None:
        text = f"{name}: too few rows: {drift.counts}; expected {limits.min_count:,} or more"
        return ColumnVerdict(name, ColumnStatus.TOO_FEW_ROWS, None, text)
    over, chance = drift.psi > limits.psi, p_value > limits.false_alarms
    status = ColumnStatus.NO_DRIFT
    if over:
        status = ColumnStatus.CHANCE if chance else ColumnStatus.DRIFT
    text = (
        f"{name}: PSI {drift.psi:.4f} {'>' if over else '<='} {limits.psi:g} "
        f"(without a change {drift.expected_psi:.2g}), p {p_value:.3g} "
        f"{'>' if chance else '<='} {limits.false_alarms:g}"
    )
    if columns > 1:
        text += f" corrected for {columns} columns"
    return ColumnVerdict(name, status, p_value, f"{text}, {drift.counts}")


def counts(column: ColumnStatistics) -> list[int] | None:
    """Return the counts of a column by bin, or by category with all others last."""
    if column.bins is not None:
        return list(column.bins)
    if column.categories is not None:
        return [*column.categories.values(), column.other]
    return None


def _document(column: ColumnStatistics) -> dict[str, Any]:
    document = asdict(Summary.of(column))
    document["quantiles"] = (
        None
        if document["quantiles"] is None
        else {
            f"p{share * 100:g}": v for share, v in zip(SHARES, document["quantiles"], strict=True)
        }
    )
    document["edges"] = None if column.edges is None else list(column.edges)
    document["bins"] = counts(column)
    document["categories"] = None if column.categories is None else [*column.categories]
    return document
