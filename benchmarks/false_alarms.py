"""How often ``monitor --fail-over`` raises an alarm without a change, and with one.

Random columns of nine kinds of two ranges; the figures of docs/how-to/data/monitoring.md.

    python -m benchmarks.false_alarms --reports 2000
"""

from __future__ import annotations

import argparse
from collections import Counter

import numpy as np

from paimon_features.project.monitoring.drift import Drift
from paimon_features.project.monitoring.monitoring_report import (
    AlarmLimits,
    ColumnReport,
    MonitoringReport,
)
from paimon_features.project.monitoring.time_ranges import TimeRange
from tests.project.monitoring.unchanged import KINDS, random_column

SIZES = ((15, 15), (100, 100), (300, 2_000), (5_000, 20_000))
LEVELS = (0.05, 0.01)


def report_of(columns: list[ColumnReport]) -> MonitoringReport:
    """A report of these columns."""
    return MonitoringReport("r", "rows", TimeRange(0, 1), TimeRange(1, 2), columns)


def raised(columns: list[ColumnReport], limits: AlarmLimits) -> bool:
    """Whether a report of these columns raises an alarm."""
    return any(verdict.is_alarm for verdict in report_of(columns).verdicts(limits))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--reports", type=int, default=200)
    given = parser.parse_args()
    rng = np.random.default_rng(0)
    print("without a change: share of columns, and of reports of all kinds")
    for sizes in SIZES:
        of: Counter[str] = Counter()
        for _ in range(given.reports):
            columns = [random_column(rng, kind, sizes) for kind in KINDS]
            drifts = [column.drift for column in columns if column.drift is not None]
            _count(of, drifts)
            of["reports over 0.2 alone"] += any((drift.psi or 0) > 0.2 for drift in drifts)
            of["alarms at 0.2"] += raised(columns, AlarmLimits(0.2, min_count=1))
            for level in LEVELS:
                of[f"alarms at 0, {level}"] += raised(columns, AlarmLimits(0.0, level, 1))
        per_column = given.reports * len(KINDS)
        print(f"{sizes[0]:>6,} rows against {sizes[1]:,}")
        for name, count in of.items():
            total = given.reports if "alarms" in name or "reports" in name else per_column
            total = of["KS"] if name.startswith("KS") else total
            if name != "KS":
                print(f"    {name:24} {count / total:8.4f}  ({count:,} of {total:,})")
    print("with a change of one of ten columns: share of reports with an alarm at 0.1")
    for sizes in SIZES[1:]:
        for shift in (0.2, 0.5, 1.0):
            found = 0
            for _ in range(max(given.reports // 10, 1)):
                columns = [random_column(rng, "normal", sizes) for _ in range(9)]
                columns.append(random_column(rng, "normal", sizes, shift))
                found += raised(columns, AlarmLimits(0.1))
            share = found / max(given.reports // 10, 1)
            print(
                f"    {sizes[0]:,} against {sizes[1]:,}, moved by {shift} deviations: {share:.3f}"
            )


def _count(of: Counter[str], drifts: list[Drift]) -> None:
    for drift in drifts:
        of["PSI over 0.2"] += (drift.psi or 0) > 0.2
        of["KS"] += drift.ks_p_value is not None
        for level in LEVELS:
            of[f"PSI p <= {level}"] += (drift.psi_p_value or 0) <= level
            of[f"KS p <= {level}"] += drift.ks_p_value is not None and drift.ks_p_value <= level


if __name__ == "__main__":
    main()
