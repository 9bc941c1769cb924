"""``monitor``, as a user and as cron run it: columns, features, training sets, pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.project import Project
from tests.commands import run
from tests.project.monitoring.shop import COUNTRIES, START, Shop, open_shop, random_rows
from tests.reference.monitoring import reference_ks

MIDDLE = START + 2 * DAY_MS
RANGES = ("--range", f"{MIDDLE}..", "--against", f"..{MIDDLE}")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """Two days of a shop, and a third on which prices are other ones."""
    folder = tmp_path_factory.mktemp("shop")
    shop = open_shop(folder)
    shop.commit(random_rows(11, 800, days=2))
    dear = random_rows(12, 400, days=1, shift=1.0)
    shop.commit([{**row, "t": row["t"] + 2 * DAY_MS} for row in dear])
    shop.tile()
    return shop


@pytest.fixture
def shop(made: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.chdir(made.project.root)
    monkeypatch.setenv("COLUMNS", "200")
    return made


def columns_of(*arguments: str, code: int = 0) -> dict[str, Any]:
    document = json.loads(run("monitor", *arguments, "--json", code=code).stdout)
    return {column["column"]: column for column in document["columns"]} | {"": document}


def test_tiles_and_events_tell_the_same_of_both_ranges(shop: Shop) -> None:
    names = "price,amount,country,gift"
    found = columns_of("kept", "--columns", names, *RANGES)
    events = columns_of("kept", "--columns", names, *RANGES, "--from", "events")
    assert (found[""]["from"], events[""]["from"]) == ("tiles", "events")
    members = {"current": shop.members(MIDDLE), "reference": shop.members(until=MIDDLE)}
    values = {
        side: np.array([r["price"] for r in rows if r["price"] is not None])
        for side, rows in members.items()
    }
    for side, rows in members.items():
        for reported in (found["price"][side], events["price"][side]):
            assert reported["rows"] == len(rows)
            assert reported["count"] == len(values[side])
            assert reported["null_share"] == pytest.approx(1 - len(values[side]) / len(rows))
            assert reported["mean"] == pytest.approx(values[side].mean(), rel=1e-12)
            assert reported["deviation"] == pytest.approx(values[side].std(), rel=1e-12)
            assert (reported["low"], reported["high"]) == (values[side].min(), values[side].max())
        assert events["price"][side]["quantiles"]["p50"] == np.median(values[side])
        # from tiles within the bin of the median, which is one of 1 to 10
        assert abs(found["price"][side]["quantiles"]["p50"] - np.median(values[side])) <= 5
        expected = [sum(row["country"] == country for row in rows) for country in COUNTRIES]
        assert found["country"][side]["bins"] == [*expected, 0]
    exact = reference_ks(values["current"].tolist(), values["reference"].tolist())
    assert events["price"]["drift"]["ks"] == pytest.approx(exact, abs=1e-12)
    assert found["price"]["drift"]["ks"] <= exact + 1e-12
    for reported in (found, events):
        assert reported["price"]["drift"]["psi"] > 0.1 > reported["gift"]["drift"]["psi"]
        assert reported["price"]["drift"]["expected_psi"] < 0.1
        assert (
            reported["price"]["drift"]["psi_p_value"]
            < 1e-4
            < reported["gift"]["drift"]["psi_p_value"]
        )


def test_without_more_said_the_newest_week_is_compared_with_the_four_before(shop: Shop) -> None:
    found = columns_of("kept")
    newest = max(row["t"] for row in shop.members())
    document = found.pop("")
    assert document["range"] == {"since_ms": newest + 1 - 7 * DAY_MS, "until_ms": newest + 1}
    assert document["against"] == {
        "since_ms": newest + 1 - 35 * DAY_MS, "until_ms": newest + 1 - 7 * DAY_MS,
    }  # fmt: skip
    assert [*found] == ["price", "items", "amount", "noise", "country", "gift"]
    assert found["price"]["current"]["rows"] == len(shop.members())
    assert found["price"]["reference"]["rows"] == 0
    alone = columns_of("kept", "--columns", "price", "--range", f"{MIDDLE}..")
    assert alone[""]["against"] == {"since_ms": None, "until_ms": MIDDLE}
    nothing = columns_of("kept", "--columns", "price", "--against", "nothing")
    assert nothing["price"]["drift"] is None


def test_features_are_those_of_all_known_entities_at_the_end_of_each_range(shop: Shop) -> None:
    ends = MIDDLE, START + 3 * DAY_MS
    arguments = ("spend", "--range", f"..{ends[1]}", "--against", f"..{ends[0]}")
    found = columns_of(*arguments)
    assert found[""]["from"] == "features"
    project = Project.open(".")
    for side, at in (("reference", ends[0]), ("current", ends[1])):
        customers = sorted({r["customer_id"] for r in shop.members(until=at)} - {None})
        rows = pa.table({"customer_id": customers, "event_time_ms": [at] * len(customers)})
        table = project.get_historical_features("spend", rows)
        sums = table["sum_amount_30d"].to_numpy()
        assert found["sum_amount_30d"][side]["rows"] == len(customers)
        assert found["sum_amount_30d"][side]["mean"] == pytest.approx(sums.mean())
        assert found["sum_amount_30d"][side]["quantiles"]["p50"] == np.median(sums)
    assert {"last_country_30d", "stddev_price_1d"} <= found.keys()
    rows = pa.table(
        {"customer_id": [1, 2, 3], "event_time_ms": [ends[0] - 1, ends[1] - 1, ends[1]]}
    )
    project.build_training_set("people", "spend", rows, replace=True)
    requested = columns_of("spend", "--features", "count_7d", "--rows", "training_people@1",
                       "--range", f"{ends[0]}..", "--against", f"..{ends[0]}")  # fmt: skip
    assert (
        requested["count_7d"]["current"]["rows"],
        requested["count_7d"]["reference"]["rows"],
    ) == (2, 1)


def test_a_training_set_is_compared_by_the_times_of_its_rows(shop: Shop) -> None:
    project = Project.open(".")
    times = [START + DAY_MS, START + DAY_MS, START + 3 * DAY_MS]
    rows = pa.table({"customer_id": [1, 2, 1], "event_time_ms": times})
    built = project.build_training_set("people", "spend", rows, replace=True)
    table = project.get_historical_features("spend", rows)
    found = columns_of(built.table, *RANGES)
    assert found["count_7d"]["current"]["mean"] == table["count_7d"].to_pylist()[2]
    assert found["count_7d"]["reference"]["rows"] == 2
    assert "--range is needed" in run("monitor", built.table, code=2).output
    assert "unknown column 'x' of table 'training_people'" in run(
        "monitor", built.table, "--columns", "x", *RANGES, code=2
    ).output  # fmt: skip


def test_cron_learns_of_drift_by_the_exit_status(shop: Shop) -> None:
    calm = ("monitor", "kept", "--columns", "gift,country", *RANGES)
    run(*calm, "--fail-over", "0.1")
    over = run("monitor", "kept", "--columns", "price,gift", *RANGES, "--fail-over", "0.1", code=1)
    assert "over 0.1: price: PSI" in over.output
    assert "<= 0.01 corrected for 2 columns, " in over.output
    assert "over 0.1: gift" not in over.output
    # an unknown PSI does not pass
    unknown = run("monitor", "kept", "--columns", "noise", *RANGES, "--from", "tiles",
                  "--fail-over", "0.1", code=1)  # fmt: skip
    assert "noise: PSI is unknown" in unknown.output
    # the last one of an option that is given twice counts
    empty = run(*calm, "--range", f"{START + 9 * DAY_MS}..", "--fail-over", "0.1", code=1)
    assert "gift: PSI is unknown" in empty.output
    assert "--fail-over needs something to compare with" in run(
        "monitor", "kept", "--against", "nothing", "--fail-over", "0.1", code=2
    ).output  # fmt: skip


def test_a_psi_by_chance_and_too_few_rows_pass_and_are_reported(shop: Shop) -> None:
    # the same distribution twice, of an hour each
    ranges = ("--range", f"{START + DAY_MS}..{START + DAY_MS + HOUR_MS}",
              "--against", f"{START}..{START + HOUR_MS}")  # fmt: skip
    command = ("monitor", "kept", "--columns", "price,amount", *ranges, "--fail-over", "0.2")
    few = run(*command).output
    assert "not checked: price: too few rows: " in few
    assert "; expected 100 or more" in few
    chance = run(*command, "--min-count", "5").output
    assert "no alarm: price: PSI" in chance
    assert "> 0.2 (without a change" in chance
    assert "> 0.01 corrected for 2 columns" in chance
    document = json.loads(run(*command, "--min-count", "5", "--json").stdout)
    assert document["limits"] == {"psi": 0.2, "false_alarms": 0.01, "min_count": 5}
    assert document["failed"] == []
    verdict = document["verdicts"][0]
    assert (verdict["column"], verdict["status"]) == ("price", "chance")
    assert verdict["p_value"] >= document["columns"][0]["drift"]["psi_p_value"] > 0.01
    assert "--false-alarms" in run(*command, "--false-alarms", "0", code=2).output


def test_the_table_shows_both_ranges_and_files_are_written(shop: Shop, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    page = tmp_path / "report.html"
    reported = run("monitor", "kept", "--columns", "price,country", *RANGES, "--out", str(page))
    lines = reported.stdout.splitlines()
    assert lines[0].startswith("kept, from tiles: 2011-01-28T00:00:00 to the end (UTC, end exclus")
    assert lines[1].split() == [
        "column", "rows", "null", "mean", "deviation", "min", "p5", "p25", "p50", "p75", "p95",
        "max", "PSI", "by", "chance", "p", "KS",
    ]  # fmt: skip
    assert lines[2].split()[0] == "price"
    assert lines[3].split()[0] == "reference"
    assert "price: PSI" in reported.output
    text = page.read_text()
    assert "<td>price</td>" in text
    assert "data:image/png;base64," in text
    for suffix, start in ((".png", b"\x89PNG"), (".svg", b"<?xml")):
        path = tmp_path / f"picture{suffix}"
        run("monitor", "kept", "--columns", "price,country", *RANGES, "--out", str(path))
        assert path.read_bytes().startswith(start)
    gauges = tmp_path / "drift.prom"
    run("monitor", "kept", "--columns", "price,country", *RANGES, "--out", str(gauges))
    written = gauges.read_text()
    assert 'paimon_features_monitor_psi{view="kept",column="price"} 0.' in written
    assert 'paimon_features_monitor_psi_p_value{view="kept",column="country"} 0.' in written
    assert "# TYPE paimon_features_monitor_null_share gauge" in written
    assert "expected a file that ends with .html" in run(
        "monitor", "kept", "--out", "report.pdf", code=2
    ).output  # fmt: skip


def test_wrong_use_is_rejected(shop: Shop) -> None:
    assert "unknown feature view or table 'keep'" in run("monitor", "keep", code=2).output
    assert "--range 5: expected A..B" in run("monitor", "kept", "--range", "5", code=2).output
    assert "is empty; its end is exclusive" in run(
        "monitor", "kept", "--range", f"{MIDDLE}..{MIDDLE}", code=2
    ).output  # fmt: skip
    assert "not both" in run("monitor", "kept", "--columns", "a", "--features", "b", code=2).output
    assert "unknown column 'cost' of view 'kept'" in run(
        "monitor", "kept", "--columns", "cost", code=2
    ).output  # fmt: skip
    assert "has no keys" in run("monitor", "kept", "--features", "count_price", code=2).output
