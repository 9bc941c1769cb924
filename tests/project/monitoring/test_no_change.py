"""PSI without a change: next to all divisions, to the known law, and as alarms of reports."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.project.monitoring.drift import drift_of, psi
from paimon_features.project.monitoring.monitoring_report import (
    AlarmLimits,
    ColumnReport,
    ColumnStatus,
    MonitoringReport,
)
from paimon_features.project.monitoring.no_change import holm, psi_without_change
from paimon_features.project.monitoring.time_ranges import TimeRange
from paimon_features.testing.sizes import cases, every_seed, many
from tests.project.monitoring.unchanged import KINDS, random_column
from tests.reference.monitoring import reference_psi_p_value

SEEDS = st.integers(0, 2**32)


def report_of(*columns: ColumnReport) -> MonitoringReport:
    return MonitoringReport("r", "rows", TimeRange(0, 1), TimeRange(1, 2), columns)


@cases(40)
@given(SEEDS)
def test_p_values_are_those_of_all_divisions(seed: int) -> None:
    rng = random.Random(seed)
    here, there = ([rng.randrange(5) for _ in range(4)] for _ in range(2))
    here[0] += 1
    there[1] += 1
    exact = reference_psi_p_value(here, there)
    _, found = psi_without_change(here, there)
    assert found == psi_without_change(here, there)[1] == psi_without_change(there, here)[1]
    # 2,000 draws: five standard deviations
    assert found == pytest.approx(exact, abs=5 * math.sqrt(exact * (1 - exact) / 2000) + 1e-3)


def test_many_rows_follow_the_chi_square_law() -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(3)
    for n, m, bins in ((40_000, 90_000, 10), (2 * 10**9, 3 * 10**9, 6)):
        scale = 1 / n + 1 / m
        for wanted in (0.5, 0.05, 0.01):
            there = rng.multinomial(m, np.full(bins, 1 / bins))
            # move rows between two bins until PSI is the quantile of the law
            target = stats.chi2.isf(wanted, bins - 1) * scale
            shift = math.sqrt(target / (2 * bins))
            shares = there / m
            shares[0] += shift
            shares[1] -= shift
            here = np.round(shares * n).astype(np.int64)
            mean, p_value = psi_without_change(here.tolist(), there.tolist())
            expected = stats.chi2.sf(psi(here, there) / scale, bins - 1)
            assert mean == pytest.approx((bins - 1) * scale, rel=0.05)
            assert p_value == pytest.approx(expected, rel=0.25)


@pytest.mark.parametrize("bins", [2, 10, 50])
def test_p_values_beyond_the_draws_are_near_the_law_and_not_below_it(bins: int) -> None:
    stats = pytest.importorskip("scipy.stats")
    there = np.full(bins, 10**6)
    for moved in (3_000, 4_000, 5_000, 8_000):
        here = there.copy()
        here[0] += moved
        here[1] -= moved
        law = stats.chi2.sf(psi(here, there) / (2 / there.sum()), bins - 1)
        _, p_value = psi_without_change(here.tolist(), there.tolist())
        assert law / 3 < p_value
        assert law > 1e-4 or p_value < 1e-3


@given(st.lists(st.floats(0, 1), max_size=8))
def test_corrected_p_values_are_those_of_the_definition(p_values: list[float]) -> None:
    found = holm(p_values)
    order = sorted(p_values)
    for p, corrected in zip(p_values, found, strict=True):
        rank = order.index(p)
        steps = [min(1.0, (len(order) - i) * order[i]) for i in range(rank + 1)]
        assert corrected == max(steps)


@pytest.mark.long
@every_seed(1)
def test_reports_without_a_change_raise_as_many_alarms_as_stated(seed: int) -> None:
    # PSI has no limit here: the p-values alone decide
    limits, reports = AlarmLimits(0.0, false_alarms=0.05, min_count=1), 60
    rng = np.random.default_rng(seed)
    alarms: Counter[str] = Counter()
    for _ in range(reports):
        columns = {kind: random_column(rng, kind) for kind in KINDS}
        verdicts = report_of(*columns.values()).verdicts(limits)
        alarms["report"] += any(verdict.is_alarm for verdict in verdicts)
        for kind, column in columns.items():
            alarms[kind] += report_of(column).verdicts(limits)[0].is_alarm
    # 3 are expected; more than 14 have a probability of 3e-7
    assert max(alarms.values()) <= 14, alarms
    # nor are they too rare: of the kinds together 21 are expected
    assert sum(alarms[kind] for kind in KINDS if kind != "rare") > 3, alarms


@every_seed(1)
def test_a_real_change_is_found(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for kind in ("normal", "lognormal", "steps", "categories"):
        columns = [random_column(rng, kind, sizes=(400, 1500), shift=0.6)]
        columns += [random_column(rng, "normal", sizes=(400, 1500)) for _ in range(4)]
        changed, *same = report_of(*columns).verdicts(AlarmLimits(0.1))
        assert changed.status == ColumnStatus.DRIFT, (kind, changed)
        assert all(verdict.status == ColumnStatus.NO_DRIFT for verdict in same)


def test_fifteen_values_against_fifteen_are_no_drift() -> None:
    rng = np.random.default_rng(1)
    found = [random_column(rng, "normal", sizes=(15, 15)) for _ in range(many(20))]
    psis = [column.drift.psi for column in found if column.drift and column.drift.psi]
    assert np.mean(psis) > 0.25  # which is much drift by the usual reading
    few = report_of(*found).verdicts(AlarmLimits(0.2))
    assert {verdict.status for verdict in few} == {ColumnStatus.TOO_FEW_ROWS}
    assert "too few rows: 15 values against 15; expected 100 or more" in few[0].message
    checked = report_of(*found).verdicts(AlarmLimits(0.2, min_count=15))
    assert {v.status for v in checked} <= {ColumnStatus.CHANCE, ColumnStatus.NO_DRIFT}
    assert not any(verdict.is_alarm for verdict in few + checked)


def test_a_column_that_is_null_everywhere_raises_an_alarm() -> None:
    drift = drift_of("x", [0, 0], [5000, 5000], True, (800, 0))
    column = random_column(np.random.default_rng(0), "normal")
    report = report_of(ColumnReport("x", column.current, column.reference, drift))
    (verdict,) = report.verdicts(AlarmLimits(0.2))
    assert verdict.status == ColumnStatus.DRIFT
    assert verdict.p_value is not None
    assert verdict.p_value < 1e-6
    assert "0 values against 10,000, nulls 800 against 0 (p " in verdict.message


def test_the_number_of_columns_raises_the_bar() -> None:
    rng = np.random.default_rng(2)
    alone = [
        column
        for column in (random_column(rng, "normal", sizes=(200, 200)) for _ in range(300))
        if column.drift and column.drift.psi_p_value and 0.001 < column.drift.psi_p_value < 0.01
    ]
    assert alone
    limits = AlarmLimits(0.0)
    assert report_of(alone[0]).verdicts(limits)[0].status == ColumnStatus.DRIFT
    others = [random_column(rng, "normal", sizes=(200, 200)) for _ in range(40)]
    among = report_of(alone[0], *others).verdicts(limits)[0]
    assert among.status == ColumnStatus.CHANCE
    assert "corrected for 41 columns" in among.message
