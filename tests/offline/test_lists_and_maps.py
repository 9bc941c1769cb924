"""Lists and maps as features: in answers, in training sets, and in what a table keeps."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from paimon_features.core.types.schema import (
    Date,
    Float32,
    Float64,
    Int64,
    List,
    String,
    arrow_schema,
)
from paimon_features.definitions import Entity, EventSource, FeatureView
from paimon_features.definitions import aggregates as agg
from paimon_features.lake import read_arrow
from paimon_features.offline.training_set import build_training_set
from tests.offline.lake_of_views import LakeOfViews

SOURCE = EventSource(
    "clicks",
    schema={"user": Int64, "t": Int64, "x": Float64, "word": String, "day": Date,
            "vec": List(Float32, 2)},
    event_time="t",
)  # fmt: skip
VIEW = FeatureView(
    "shapes",
    source=SOURCE,
    entity=Entity("user", keys={"user": Int64}),
    features=[
        agg.LastN("word", n=2),
        agg.TopK("day", by="x", n=1),
        agg.CountBy("word", values=["a"]),
        agg.SumBy("x", by="word", values=["a"], other=None),
        agg.TopCategories("word", n=1),
        agg.VectorSum("vec"),
        agg.VectorMean("vec"),
        agg.Histogram("x", edges=[1.0]),
    ],
)
EVENTS = [
    {"user": 1, "t": 10, "x": 0.5, "word": "a", "day": 1, "vec": [1.0, 2.0]},
    {"user": 1, "t": 20, "x": 1.5, "word": "b", "day": 2, "vec": [0.5, 0.0]},
    {"user": 1, "t": 30, "x": 1.0, "word": "a", "day": None, "vec": None},
    {"user": 2, "t": 10, "x": None, "word": None, "day": None, "vec": None},
]
ROWS = pa.table({"user": [1, 1, 2, 3], "event_time_ms": [31, 11, 40, 40]})


@pytest.fixture
def lake(tmp_path: Path) -> LakeOfViews:
    lake = LakeOfViews(tmp_path, VIEW)
    for event in EVENTS:
        lake.commit(pa.Table.from_pylist([event], schema=arrow_schema(SOURCE.schema)))
    return lake


def test_answers_are_lists_and_maps_and_null_where_there_is_nothing(lake: LakeOfViews) -> None:
    found = lake.store.get_historical_features(lake.refs("shapes"), ROWS)
    days = found["top_k_day_by_x_1"].cast(pa.list_(pa.int32()))
    assert days.to_pylist() == [[2], [1], None, None]
    assert found.drop_columns([*ROWS.column_names, "top_k_day_by_x_1"]).to_pylist() == [
        {
            "last_n_word_2": ["a", "b"],
            "count_by_word": [("a", 2), ("other", 1)],
            "sum_x_by_word": [("a", 1.5)],
            "top_categories_word_1": [("a", 2)],
            "vector_sum_vec": [1.5, 2.0],
            "vector_mean_vec": [0.75, 1.0],
            "histogram_x": [1, 2],
        },
        {
            "last_n_word_2": ["a"],
            "count_by_word": [("a", 1), ("other", 0)],
            "sum_x_by_word": [("a", 0.5)],
            "top_categories_word_1": [("a", 1)],
            "vector_sum_vec": [1.0, 2.0],
            "vector_mean_vec": [1.0, 2.0],
            "histogram_x": [1, 0],
        },
        {
            "last_n_word_2": None,
            "count_by_word": [("a", 0), ("other", 0)],
            "sum_x_by_word": [("a", 0.0)],
            "top_categories_word_1": None,
            "vector_sum_vec": [0.0, 0.0],
            "vector_mean_vec": None,
            "histogram_x": [0, 0],
        },
        dict.fromkeys(found.column_names[2:3] + found.column_names[4:]),
    ]


def test_a_training_set_keeps_them(lake: LakeOfViews) -> None:
    build_training_set(lake.store, "shapes", lake.refs("shapes"), ROWS)
    expected = lake.store.get_historical_features(lake.refs("shapes"), ROWS)
    assert read_arrow(lake.lake, "training_shapes").to_pylist() == expected.to_pylist()
