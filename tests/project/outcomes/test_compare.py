"""The comparison of two versions: what counts, who wins, what is printed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("onnx", reason="networks for tests")


from functools import partial

from paimon_features.core.errors import RequestError
from paimon_features.core.types.schema import Int64
from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.lake import append_arrow
from paimon_features.lake.specs import OUTCOMES_PREFIX, outcomes_spec, predictions_spec
from paimon_features.project.outcomes.compare import (
    VersionComparison,
    compare_versions,
)
from paimon_features.project.outcomes.comparison_report import comparison_lines
from paimon_features.project.outcomes.looks import look_rows
from paimon_features.serving.request_log.prediction_rows import prediction_schema
from tests.commands import invoke
from tests.equal_versions import equal_versions
from tests.project.outcomes.served_shop import ServedShop
from tests.reference import outcomes as oracle

NOW = 1_760_000_000_000 // DAY_MS * DAY_MS
ROWS = 3_000
CASES = ("better", "equal", "split", "again", "late", "nothing", "lost")
"""Each has a year of its own in the table of outcomes."""
YEAR_MS = 365 * DAY_MS


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> ServedShop:
    """Models of two versions: 1 is in production, 2 a shadow or challenger."""
    shop = ServedShop(tmp_path_factory.mktemp("shop"))
    for bias in (0.0, 1.0):
        shop.register([0.25, -0.5], bias)
    shop.project.models.promote("churn", 1, publish=False)
    shop.project.models.promote("churn", 2, "shadow", publish=False)
    return shop


def rows_of(
    version: int, role: str, entities: Any, times: Any, predictions: Any, labels: Any, **more: Any
) -> dict[str, Any]:
    count = len(times)
    return {
        "served_day": pa.array(np.asarray(times) // DAY_MS, pa.int32()),
        "user": pa.array(entities, pa.int64()),
        "event_time_ms": pa.array(times, pa.int64()),
        "label": pa.array(labels, pa.float64()),
        "matured_at_ms": pa.array(np.asarray(times) + HOUR_MS, pa.int64()),
        "version": pa.array([version] * count, pa.int32()),
        "role": [role] * count,
        "prediction": pa.array(predictions, pa.float64()),
        "entity": [f"[{entity}]" for entity in entities],
        "request_id": more.get("ids", [f"r{n}" for n in range(count)]),
        "worker": ["w"] * count,
        "number": pa.array(range(count), pa.int64()),
        "row": pa.array([0] * count, pa.int32()),
        "served_at_ms": pa.array(times, pa.int64()),
        "status": ["PRESENT"] * count,
    }


def record(shop: ServedShop, *parts: Mapping[str, Any]) -> None:
    table = OUTCOMES_PREFIX + "churn"
    shop.lake.create(outcomes_spec(table, {"user": Int64}))
    append_arrow(shop.lake, table, pa.concat_tables([pa.table(dict(part)) for part in parts]))


def start_of(case: str) -> int:
    return NOW + CASES.index(case) * YEAR_MS


def times(case: str, rows: int = ROWS, days: int = 3) -> Any:
    return start_of(case) + np.arange(rows) * (days * DAY_MS // rows)


def compared(shop: ServedShop, case: str, **options: Any) -> VersionComparison:
    start = start_of(case)
    own = {"since_ms": start - YEAR_MS // 2, "until_ms": start + YEAR_MS // 2}
    return compare_versions(shop.project, "churn", **{**own, **options})


def test_a_better_shadow_wins_by_pairs(shop: ServedShop, tmp_path: Path) -> None:
    dice = np.random.default_rng(1)
    chances = dice.beta(1, 4, ROWS)
    labels = (dice.random(ROWS) < chances).astype(float)
    people, at = np.arange(ROWS), times("better")
    mean = np.full(ROWS, 0.2)
    record(
        shop,
        rows_of(1, "production", people, at, mean, labels),
        rows_of(2, "shadow", people, at, chances, labels),
        # of a version that a client named itself
        rows_of(2, "requested", people[:9], at[:9], mean[:9], 1 - labels[:9],
                ids=[f"x{n}" for n in range(9)]),
    )  # fmt: skip
    found = compared(shop, "better")
    assert (found.first, found.second, found.design) == (1, 2, "pairs")
    assert (found.winner, found.first_rows, found.second_rows) == (2, ROWS, ROWS)
    brier, log_loss = found.losses
    assert (brier.metric, log_loss.metric) == ("brier", "log_loss")
    differences = (mean - labels) ** 2 - (chances - labels) ** 2
    assert brier.low is not None
    assert brier.high is not None
    assert 0 < brier.low < differences.mean() < brier.high
    assert [rows for rows, _, _ in brier.path] == look_rows(ROWS)
    assert brier.difference == pytest.approx(differences.mean())
    assert brier.lift == pytest.approx(differences.mean() / ((mean - labels) ** 2).mean())
    assert brier.decided_after is not None
    assert brier.decided_after < ROWS
    # the same rows in the other order
    other = compared(shop, "better", first=2, second=1)
    assert other.winner == 2
    assert other.losses[0].difference == pytest.approx(-differences.mean())
    assert found.auc[2].value > 0.6
    assert found.auc[1].value == 0.5
    assert [(day.version, day.rows) for day in found.days] == [
        (1, ROWS // 3)] * 3 + [(2, ROWS // 3)] * 3  # fmt: skip
    assert found.days[3].observed == pytest.approx(labels[: ROWS // 3].mean())
    # a second look at the same rows says the same, and an earlier look saw less
    earlier = compared(shop, "better", until_ms=int(at[500]))
    assert earlier.first_rows == 500


def test_equal_versions_stay_undecided(shop: ServedShop) -> None:
    labels, first, second = equal_versions(np.random.default_rng(2), ROWS)
    people, at = np.arange(ROWS), times("equal")
    record(
        shop, rows_of(1, "production", people, at, first, labels),
        rows_of(2, "shadow", people, at, second, labels),
    )  # fmt: skip
    found = compared(shop, "equal", metric="log_loss")
    assert found.winner is None
    assert found.losses[0].metric == "log_loss"
    low, high = found.losses[0].low, found.losses[0].high
    assert low is not None
    assert high is not None
    assert low < 0 < high
    assert found.losses[0].decided_after is None


def test_split_traffic_is_compared_as_two_streams(shop: ServedShop) -> None:
    dice = np.random.default_rng(3)
    chances = dice.beta(0.5, 1.0, ROWS)
    labels = (dice.random(ROWS) < chances).astype(float)
    people, at = np.arange(ROWS), times("split")
    ours = people % 2 == 0
    # before and after the split, version 1 answered alone
    early, late = at[ours] - 10 * DAY_MS, at[ours] + 10 * DAY_MS
    ids = [[f"{name}{n}" for n in range(len(early))] for name in ("early", "late")]
    record(
        shop,
        rows_of(1, "production", people[ours], at[ours], np.full(ours.sum(), 0.3), labels[ours],
                ids=[f"a{n}" for n in range(ours.sum())]),
        rows_of(2, "challenger", people[~ours], at[~ours], chances[~ours], labels[~ours]),
        rows_of(1, "production", people[ours], early, np.ones(ours.sum()), 1 - labels[ours],
                ids=ids[0]),
        rows_of(1, "production", people[ours], late, np.ones(ours.sum()), 1 - labels[ours],
                ids=ids[1]),
    )  # fmt: skip
    found = compared(shop, "split")
    assert (found.design, found.winner) == ("split", 2)
    assert (found.second_rows, found.repeated) == (ROWS // 2, 0)
    # the first and the last prediction of version 1 may be just outside
    assert found.first_rows + found.outside == 3 * (ROWS // 2)
    assert found.first_rows >= ROWS // 2 - 2
    brier = found.losses[0]
    losses = (np.where(ours, 0.3, chances) - labels) ** 2
    assert brier.low is not None
    assert brier.high is not None
    difference = losses[ours].mean() - losses[~ours].mean()
    assert brier.low < difference < brier.high
    # version 2 is no challenger: its share is not known
    assert found.sample_ratio is None


def test_a_split_that_lost_entities_of_a_version_has_no_winner(shop: ServedShop) -> None:
    shop.project.models.promote("churn", 2, "challenger", traffic=5_000, publish=False)
    try:
        dice = np.random.default_rng(6)
        chances = dice.beta(0.5, 1.0, ROWS)
        labels = (dice.random(ROWS) < chances).astype(float)
        people, at = np.arange(ROWS), times("lost")
        # one row in four of version 2 is missing, those of which it was sure
        second = people % 2 == 0
        lost = second & (chances > 0.6)
        parts = [(1, "production", ~second, np.full(ROWS, 0.3)),
                 (2, "challenger", second & ~lost, chances)]  # fmt: skip
        record(shop, *(
            rows_of(version, role, people[own], at[own], predicted[own], labels[own])
            for version, role, own, predicted in parts
        ))  # fmt: skip
        found = compared(shop, "lost")
        ratio = found.sample_ratio
        assert ratio is not None
        assert (ratio.share, ratio.is_mismatch, found.winner) == (0.5, True, None)
        assert found.losses[0].low is not None
        assert found.losses[0].low > 0  # it would have been a winner
        text = "\n".join(comparison_lines(found, []))
        assert "SAMPLE RATIO MISMATCH: no winner is named" in text
    finally:
        shop.project.models.promote("churn", 2, "shadow", publish=False)


def test_an_outcome_of_an_entity_counts_once(shop: ServedShop) -> None:
    dice = np.random.default_rng(4)
    people = dice.integers(0, 3, 200)
    at = start_of("again") + np.sort(dice.integers(0, 10 * HOUR_MS, 200))
    labels = dice.integers(0, 2, 200).astype(float)
    record(
        shop, rows_of(1, "production", people, at, np.full(200, 0.5), labels),
        rows_of(2, "shadow", people, at, np.full(200, 0.4), labels),
    )  # fmt: skip
    found = compared(shop, "again")
    counts = oracle.counted_once(
        [(str(p), int(t)) for p, t in zip(people, at, strict=True)], HOUR_MS
    )
    assert found.first_rows == found.second_rows == sum(counts) < 40
    assert found.repeated == 200 - sum(counts)


LATE = (
    "--since", str(start_of("late") - DAY_MS), "--until", str(start_of("late") + 9 * DAY_MS),
)  # fmt: skip
run_compare = partial(invoke, "models", "compare")


def test_what_is_printed_and_written(shop: ServedShop, tmp_path: Path) -> None:
    dice = np.random.default_rng(5)
    labels = (dice.random(ROWS) < 0.2).astype(float)
    people, at = np.arange(ROWS), times("late")
    parts = [
        rows_of(1, "production", people, at, np.full(ROWS, 0.6), labels),
        rows_of(2, "shadow", people, at, np.full(ROWS, 0.2), labels),
    ]
    record(shop, *parts)
    schema = prediction_schema()
    logged = []
    for part, version in zip(parts, (1, 2), strict=True):
        # on the last day one of the features is another one
        shift = np.asarray(at) // DAY_MS == (start_of("late") // DAY_MS) + 2
        reads = [
            json.dumps([{"view": "clicks", "feature_values": json.dumps(
                {"n": int(n), "m": int(n) % 7, "word": "ab"[int(moved)], "list": [1]})}])
            for n, moved in zip(dice.integers(0, 50, ROWS) + 60 * shift, shift, strict=True)
        ]  # fmt: skip
        logged.append(
            pa.table(
                {
                    "served_day": part["served_day"],
                    **{
                        name: part.get(name, pa.nulls(ROWS, schema.field(name).type))
                        for name in schema.names
                        if name != "reads"
                    },
                    "reads": reads if version == 1 else pa.nulls(ROWS, pa.string()),
                }
            )
        )
    shop.lake.create(predictions_spec("predictions_churn"))
    append_arrow(shop.lake, "predictions_churn", pa.concat_tables(logged))
    page = tmp_path / "compare.html"
    done = run_compare("churn@1", "churn@2", *LATE, "--out", str(page), project=shop.project.root)
    assert done.exit_code == 0, done.output
    assert "churn@2 is better by brier at 95 %, whenever you look" in done.output
    assert "3,000 pairs of predictions" in done.output
    assert "clicks:n: PSI" in done.output
    assert "clicks:word: PSI" in done.output
    assert "clicks:m: PSI" not in done.output
    assert "auc            churn@2: 0.5000 (95 %: " in (done.output)
    text = page.read_text()
    assert text.count("<svg") == 6
    assert "churn@2 is better" in text
    document = json.loads(run_compare("churn", *LATE, "--json", project=shop.project.root).stdout)
    assert (document["winner"], document["losses"][0]["metric"]) == (2, "brier")
    for out, message in (("compare.txt", "a file that ends with .html"),
                         ("none/compare.html", "no such folder: none")):  # fmt: skip
        refused = run_compare("churn", *LATE, "--out", out, project=shop.project.root)
        assert (refused.exit_code, message in refused.output) == (2, True), refused.output
    assert {each["day"] for each in document["drift"]} == {"2029-10-09", "2029-10-10"}


def test_a_comparison_without_outcomes_says_what_to_do(shop: ServedShop) -> None:
    labels = np.zeros(3)
    with pytest.raises(RequestError, match="no outcomes of version 1"):
        compared(shop, "nothing")
    record(shop, rows_of(1, "production", [1, 2, 3], times("nothing", 3), labels, labels))
    with pytest.raises(RequestError, match="no outcomes of version 2"):
        compared(shop, "nothing")
    with pytest.raises(RequestError, match="unknown metric '.*'; available: brier, log_loss"):
        compared(shop, "nothing", metric="auc")
    with pytest.raises(RequestError, match="name two versions"):
        compared(shop, "nothing", first=1, second=1)
    later = times("nothing", 2) + 9 * DAY_MS
    record(shop, rows_of(2, "challenger", [4, 5], later, labels[:2], labels[:2]))
    with pytest.raises(RequestError, match="no time in common"):
        compared(shop, "nothing")
    assert run_compare("other", project=shop.project.root).exit_code == 2
