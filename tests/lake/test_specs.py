"""Table specs as Flink SQL and as pypaimon schemas."""

from __future__ import annotations

import pytest

from paimon_features.core.errors import DefinitionError
from paimon_features.core.types.schema import (
    Decimal,
    Float64,
    Int32,
    Int64,
    List,
    String,
    Timestamp,
)
from paimon_features.lake.ddl import arrow_schema
from paimon_features.lake.specs import (
    TableSpec,
    events_spec,
    feedback_spec,
    registry_spec,
    rejected_spec,
    skipped_spec,
    tiles_spec,
    training_spec,
)
from tests.lake.spec_forms import create_table_sql


def test_the_statement_of_a_tile_table_is_golden() -> None:
    spec = tiles_spec(
        "tiles_spend_g1",
        {"customer_id": Int64, "year": String},
        [("p_n", Int64, "sum"), ("last", Float64, "max")],
        buckets=4,
    )
    assert (
        create_table_sql(spec, "features")
        == """\
CREATE TABLE IF NOT EXISTS `features`.`tiles_spend_g1` (
  `tile_day` INT NOT NULL,
  `customer_id` BIGINT NOT NULL,
  `year` STRING NOT NULL,
  `tile_start` BIGINT NOT NULL,
  `p_n` BIGINT,
  `last` DOUBLE,
  PRIMARY KEY (`tile_day`, `customer_id`, `year`, `tile_start`) NOT ENFORCED
) PARTITIONED BY (`tile_day`) WITH (
  'file.format' = 'parquet',
  'snapshot.time-retained' = '2 h',
  'snapshot.num-retained.min' = '20',
  'snapshot.num-retained.max' = '2147483647',
  'parquet.page.verify-checksum.enabled' = 'true',
  'tag.automatic-creation' = 'process-time',
  'tag.creation-period' = 'hourly',
  'tag.num-retained-max' = '48',
  'merge-engine' = 'aggregation',
  'fields.p_n.aggregate-function' = 'sum',
  'fields.last.aggregate-function' = 'max',
  'bucket' = '4',
  'bucket-key' = 'customer_id,year',
  'changelog-producer' = 'none',
  'local-merge-buffer-size' = '64 mb',
  'parquet.enable.dictionary' = 'false',
  'num-sorted-run.compaction-trigger' = '10'
)"""
    )


def test_an_events_table_has_the_source_columns_and_its_own_two() -> None:
    spec = events_spec("events_retail", {"amount": Decimal(10, 2), "time": Timestamp})
    assert list(spec.columns) == ["amount", "time", "event_day", "ingest_time_ms"]
    assert spec.partition_by == ("event_day",)
    assert spec.primary_key == ()


def test_key_columns_are_not_nullable_and_all_others_are() -> None:
    spec = skipped_spec("skipped_spend_g1")
    nullable = {f.name: f.nullable for f in arrow_schema(spec)}
    assert nullable == {"tile_day": False, "reason": False, "detail": False, "p_rows": True}


def test_option_values_are_quoted_as_sql_text() -> None:
    spec = training_spec("training_churn", {"x": Int64}, {"paimon-features.label": "it's"})
    assert "'paimon-features.label' = 'it''s'" in create_table_sql(spec, "features", "lake")
    assert "`lake`.`features`.`training_churn`" in create_table_sql(spec, "features", "lake")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tiles_spec("t", {"k": Int64}, [("p", Int64, "avg")], 1), "merged by 'avg'"),
        (lambda: tiles_spec("t", {"k": Float64}, [], 1), "the key 'k' cannot be Float64"),
        (lambda: tiles_spec("t", {"k": Int64}, [], 0), "0 buckets"),
        (lambda: tiles_spec("t", {"tile_day": Int32}, [], 1), "'tile_day' is reserved"),
        (lambda: events_spec("t", {"event_day": Int32}), "'event_day' is reserved"),
        (lambda: feedback_spec("t", {"loss": Float64}), "'loss' is reserved"),
        (lambda: TableSpec("t", {"a": Int64}, ("b",)), "the primary key names b"),
        (lambda: TableSpec("Bad Name", {"a": Int64}), "lower-case"),
    ],
)
def test_an_invalid_spec_is_rejected_with_the_reason(make: object, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        make()  # type: ignore[operator]


def test_all_other_specs_are_append_tables() -> None:
    specs = [
        rejected_spec("rejected_retail"),
        registry_spec(),
        feedback_spec("feedback_x", {"row": Int64}, {"weights": List(Float64, 3)}),
    ]
    assert [spec.primary_key for spec in specs] == [(), (), ()]
    assert "weights" in specs[2].columns
