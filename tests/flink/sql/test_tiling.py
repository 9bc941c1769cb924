"""The SQL of the tile job, without Flink."""

from __future__ import annotations

import random
from dataclasses import replace

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.expressions.flink_floors import floor_sql
from paimon_features.core.windows import DAY_MS, MAX_TIME_MS, MIN_TIME_MS, floor_ms
from paimon_features.definitions import FeatureView
from paimon_features.definitions.aggregates import Count, Max, Mean, Min, StdDev, Sum
from paimon_features.testing.sizes import seeds
from paimon_features.tiles.flink.tiling import (
    UNKNOWN_DAY,
    EventsScan,
    TileStatements,
    event_sql,
    tile_statements,
    verdict_sql,
)
from paimon_features.tiles.jobs.target import TileTarget
from tests.generators import random_view

STREAM = EventsScan(7, whole=True, consumer="tiles-spend-g1")


@given(
    st.integers(MIN_TIME_MS, MAX_TIME_MS) | st.integers(-5, 5),
    st.sampled_from([1, 60_000, 300_000, 3_600_000, DAY_MS]),
)
def test_the_floor_rounds_down_also_below_zero(time_ms: int, step_ms: int) -> None:
    # MOD of DuckDB truncates towards zero, like that of Flink
    text = floor_sql(f"CAST({time_ms} AS BIGINT)", step_ms).replace("MOD", "mod")
    assert duckdb.sql(f"SELECT {text}").fetchall() == [(floor_ms(time_ms, step_ms),)]


def test_both_statements_read_the_same_scan(target: TileTarget) -> None:
    statements = tile_statements(target.view, 1, STREAM, "user")
    tiles, skipped = (text[text.index("FROM (") : text.index("WHERE `__fate`")] for text in
                      (statements.tiles, statements.skipped))  # fmt: skip
    assert tiles == skipped


def test_the_columns_are_in_the_order_of_the_tile_table(target: TileTarget) -> None:
    text = tile_statements(target.view, 1, STREAM, "user").tiles
    select = text[text.index("SELECT") : text.index("\nFROM")]
    columns = [line.rstrip(",").rsplit("`", 2)[1] for line in select.splitlines()[1:]]
    assert columns == [f.name for f in target.lake.schema(target.tables[0])]


def test_a_row_that_breaks_no_rule_and_has_no_filter_enters(target: TileTarget) -> None:
    assert verdict_sql(target.view).endswith(" ELSE 1 END")
    assert verdict_sql(replace(target.view, where=None, skip_rules=())) == "1"


def test_the_scan_selects_only_columns_that_partials_use(target: TileTarget) -> None:
    rows = target.view.partial["p_rows"]
    alone = {"p_rows": target.view.expressions["p_rows"]}
    counting = replace(target.view, partials=(rows,), expressions=alone)
    text = tile_statements(counting, 1, STREAM, "user").skipped
    assert "SELECT `customer_id`, `at_ms`, CASE" in text


def test_the_job_does_not_depend_on_the_windows(target: TileTarget) -> None:
    aggregates = (Sum, Mean, Min, Max, StdDev)

    def job(windows: list[str]) -> TileStatements:
        view = FeatureView(
            "spend",
            source=target.view.source,
            entity=target.view.entity,
            features=[of("quantity", windows=windows) for of in aggregates]
            + [Count(windows=windows)],
        )
        return tile_statements(view.compiled, 1, STREAM, "user")

    assert job([f"{hours}h" for hours in range(1, 31)]) == job(["30h"])


def test_the_day_of_unknown_times_is_no_day_of_an_event() -> None:
    assert UNKNOWN_DAY < MIN_TIME_MS // DAY_MS


def test_a_stream_names_its_consumer_and_a_batch_has_none() -> None:
    assert STREAM.options()["consumer-id"] == "tiles-spend-g1"
    assert STREAM.options()["scan.mode"] == "from-snapshot-full"
    assert EventsScan(8, consumer="c").options()["scan.mode"] == "from-snapshot"
    assert EventsScan(8).options() == {"scan.snapshot-id": "8"}


@pytest.mark.parametrize("seed", seeds(20))
def test_internal_names_do_not_occur_in_the_sql(seed: int) -> None:
    view = random_view(random.Random(seed)).compiled
    for partial in view.partials:
        text = event_sql(view, view.expressions[partial.name])
        assert "__event_time" not in text
        assert "__tile_end" not in text
