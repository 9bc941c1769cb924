"""The registry keeps every version, and reports which one is applied."""

from __future__ import annotations

from paimon_features.lake import Lake
from paimon_features.lake.side_folder.registry import applied, record, versions

KEY = ("service", "model")


def test_nothing_is_applied_before_the_first_row(lake: Lake) -> None:
    assert applied(lake) == versions(lake) == {}


def test_a_changed_document_is_a_new_version_and_an_equal_one_is_none(lake: Lake) -> None:
    assert [v.number for v in record(lake, {KEY: {"a": 1, "b": 2}}, 10)] == [1]
    assert record(lake, {KEY: {"b": 2, "a": 1}}, 20) == []
    assert [v.number for v in record(lake, {KEY: {"a": 2}}, 30)] == [2]
    assert [(v.number, v.applied_at_ms, v.document) for v in versions(lake)[KEY]] == [
        (1, 10, {"a": 1, "b": 2}),
        (2, 30, {"a": 2}),
    ]


def test_what_was_dropped_is_not_applied_and_can_come_back(lake: Lake) -> None:
    record(lake, {KEY: {"a": 1}}, 10)
    record(lake, {KEY: None}, 20)
    assert applied(lake) == {}
    assert record(lake, {KEY: None}, 30) == []
    record(lake, {KEY: {"a": 1}}, 40)
    assert applied(lake)[KEY].number == 3
