"""Two definitions of one view: the store says which counts, before, during and after a switch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paimon_features.core.errors import RequestError, StoreNotReadyError, UnknownNameError
from paimon_features.core.types.schema import Int64, String
from paimon_features.definitions import CompiledView, Entity, FeatureRef, FeatureView, Selection
from paimon_features.definitions.aggregates import Count, Max, Sum
from paimon_features.online.materialize import Materializer
from paimon_features.online.store import MemoryStore
from paimon_features.serving.reading.fetcher import FeatureFetcher
from paimon_features.serving.reading.query import FeatureQuery
from paimon_features.serving.replies.response import OnlineResponse
from tests.serving.test_fetcher import NOW, SOURCE, FakeClock, click, refs, view_of
from tests.tile_lake import PROJECT, TileLake

OLD = view_of(Sum("x", windows=["1h"]), Count(windows=["1h"]))
NEW = view_of(Sum("x", windows=["1h", "1d"]), Max("x", windows=["1h"]))
BOTH, ONLY_OLD, ONLY_NEW = "sum_x_1h", "count_1h", "max_x_1h"


class Project:
    """A store, and tables of two definitions of one view."""

    def __init__(self, folder: Path, old: FeatureView = OLD, new: FeatureView = NEW) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(self.clock)
        self.lakes = {view: TileLake(folder / str(i), view) for i, view in enumerate((old, new))}
        self.lakes[old].commit([click(1, NOW - 1, 1.0, "a")])
        self.lakes[new].commit([click(1, NOW - 1, 2.0, "a")])

    def materialize(self, view: FeatureView) -> None:
        worker: Materializer = self.lakes[view].materializer(self.store, clock=self.clock)
        worker.rebuild()

    def fetcher(self, *views: CompiledView) -> FeatureFetcher:
        return FeatureFetcher(PROJECT, views, self.store, clock=self.clock)


def value(fetcher: FeatureFetcher, feature: str, **entities: Any) -> Any:
    got = fetcher.get([FeatureRef("v", feature)], entities or {"user": [1]}, NOW)
    return got.to_pydict()[feature][0]


@pytest.mark.parametrize("order", [(OLD, NEW), (NEW, OLD)])
def test_the_store_says_which_definition_counts(
    tmp_path: Path, order: tuple[FeatureView, FeatureView]
) -> None:
    project = Project(tmp_path)
    fetcher = project.fetcher(*(view.compiled for view in order))
    with pytest.raises(StoreNotReadyError, match="not in the online store yet"):
        value(fetcher, BOTH)
    project.materialize(OLD)
    assert (value(fetcher, BOTH), value(fetcher, ONLY_OLD)) == (1.0, 1)
    with pytest.raises(StoreNotReadyError, match="another definition, which.*max_x_1h"):
        value(fetcher, ONLY_NEW)
    project.materialize(NEW)
    assert (value(fetcher, BOTH), value(fetcher, ONLY_NEW)) == (2.0, 2.0)
    with pytest.raises(StoreNotReadyError, match="count_1h"):
        value(fetcher, ONLY_OLD)
    project.materialize(OLD)
    assert value(fetcher, ONLY_OLD) == 1
    with pytest.raises(UnknownNameError, match="v:min_x'; available: v:count_1h, v:max_x_1h"):
        value(fetcher, "min_x")


def test_a_reload_before_or_after_the_switch_loses_no_request(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.materialize(OLD)
    before, both = project.fetcher(OLD.compiled), project.fetcher(NEW.compiled, OLD.compiled)
    after = project.fetcher(NEW.compiled)
    assert value(before, BOTH) == value(both, BOTH) == 1.0
    project.materialize(NEW)
    assert value(both, BOTH) == value(after, BOTH) == 2.0


def test_a_switch_during_a_read_is_seen_and_answered_by_the_other_definition(
    tmp_path: Path,
) -> None:
    project = Project(tmp_path)
    project.materialize(OLD)
    fetcher = project.fetcher(OLD.compiled, NEW.compiled)
    value(fetcher, BOTH)

    def get_many(keys: Any) -> Any:
        del project.store.get_many  # type: ignore[method-assign]
        project.materialize(NEW)
        return project.store.get_many(keys)

    project.store.get_many = get_many  # type: ignore[method-assign]
    queries = [
        FeatureQuery(Selection.of([FeatureRef("v", name)]), {"user": [1]}, NOW)
        for name in (BOTH, ONLY_OLD, ONLY_NEW)
    ]
    both, old, new = fetcher.get_many(queries)
    assert isinstance(old, StoreNotReadyError)
    assert [both.to_pydict()[BOTH], new.to_pydict()[ONLY_NEW]] == [[2.0], [2.0]]  # type: ignore[union-attr]


def test_definitions_that_keep_the_same_records_complete_one_another(tmp_path: Path) -> None:
    # a mean of what is there already: the records stay, and nothing is rebuilt
    more = replace(OLD.compiled, max_staleness_ms=5, features=OLD.compiled.features[:1])
    assert more.online_fingerprint == OLD.compiled.online_fingerprint
    project = Project(tmp_path)
    project.materialize(OLD)
    fetcher = project.fetcher(more, OLD.compiled)
    project.clock.now_ms += 100
    for feature, status in ((BOTH, "STALE"), (ONLY_OLD, "PRESENT")):  # the first that has it
        got = fetcher.get([FeatureRef("v", feature)], {"user": [1]}, NOW)
        assert got.statuses.to_pylist() == [{feature: status}]


def test_other_entity_keys_are_requested_when_their_definition_counts(tmp_path: Path) -> None:
    word = Entity("word", keys={"word": String, "user": Int64})
    new = FeatureView("v", source=SOURCE, entity=word, features=[Sum("x", windows=["1h"])])
    project = Project(tmp_path, OLD, new)
    fetcher = project.fetcher(OLD.compiled, new.compiled)
    project.materialize(OLD)
    assert value(fetcher, BOTH) == 1.0
    project.materialize(new)
    assert value(fetcher, BOTH, user=[1], word=["a"]) == 2.0
    with pytest.raises(RequestError, match="missing entity key 'word'"):
        value(fetcher, BOTH, user=[1])


def test_renamed_entity_keys_need_no_reload_at_the_moment_of_the_switch(tmp_path: Path) -> None:
    word = Entity("word", keys={"word": String})
    new = FeatureView("v", source=SOURCE, entity=word, features=[Sum("x", windows=["1h"])])
    project = Project(tmp_path, OLD, new)
    fetcher = project.fetcher(OLD.compiled, new.compiled)
    selection = Selection.of([FeatureRef("v", BOTH)])
    queries = [
        FeatureQuery(selection, {"user": [1, 2]}, NOW),
        FeatureQuery(selection, {"word": ["a"]}, NOW),
    ]
    project.materialize(OLD)
    by_user, by_word = fetcher.get_many(queries)
    assert isinstance(by_user, OnlineResponse)
    assert by_user.to_pydict() == {"user": [1, 2], BOTH: [1.0, None]}
    assert isinstance(by_word, RequestError)
    project.materialize(new)
    by_user, by_word = fetcher.get_many(queries)
    assert isinstance(by_user, RequestError)
    assert isinstance(by_word, OnlineResponse)
    assert by_word.to_pydict() == {"word": ["a"], BOTH: [2.0]}


def test_a_request_names_its_views_in_one_generation_each(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.materialize(OLD)
    fetcher = project.fetcher(OLD.compiled, NEW.compiled)
    got = fetcher.get(refs(OLD), {"user": [1]}, NOW)
    assert list(got.batch.epochs) == ["v"]
    epoch = got.batch.epochs["v"]
    project.materialize(NEW)
    assert fetcher.get(refs(NEW), {"user": [1]}, NOW).batch.epochs["v"] != epoch
