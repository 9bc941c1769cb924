"""Generation records are persistent, and switching generations is atomic."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from paimon_features.core.errors import GenerationError, TableError
from paimon_features.lake.catalog import Lake
from paimon_features.lake.side_folder import generations
from paimon_features.lake.side_folder.generations import GenerationRecord


def record(generation: int, **fields: object) -> GenerationRecord:
    base = GenerationRecord("spend", generation, f"tiles_spend_g{generation}", "abc", 4)
    return replace(base, **fields)  # type: ignore[arg-type]


def test_a_record_round_trips(lake: Lake) -> None:
    saved = record(
        1,
        job={"rest_url": "http://x", "job_id": "0af1"},
        commit_user="u",
        last_committed_identifier=7,
        checkpoint_folder="/c",
        resume_path="/c/chk-7",
        handover_snapshot=12,
        backfilled=True,
        incarnation=2,
    )
    generations.save(lake, saved)
    again = Lake.open(lake.warehouse, lake.database)
    assert generations.load(again, "spend") == [saved]
    assert generations.get(again, "spend", 1) == saved
    assert generations.views(again) == ["spend"]
    assert generations.load(again, "other") == []


def test_activating_a_generation_retires_the_previous_one(lake: Lake) -> None:
    for generation in (2, 1):
        generations.save(lake, record(generation))
    assert generations.active(lake, "spend") is None
    generations.activate(lake, "spend", 1)
    generations.activate(lake, "spend", 1)
    assert generations.active(lake, "spend") == record(1, state="active")
    generations.activate(lake, "spend", 2)
    assert [r.state for r in generations.load(lake, "spend")] == ["retired", "active"]


def test_two_active_generations_cannot_be_saved(lake: Lake) -> None:
    generations.save(lake, record(1, state="active"))
    with pytest.raises(GenerationError, match="switch with activate"):
        generations.save(lake, record(2, state="active"))


def test_an_unknown_generation_is_rejected_with_the_known_ones(lake: Lake) -> None:
    generations.save(lake, record(1))
    for call in (
        lambda: generations.get(lake, "spend", 3),
        lambda: generations.activate(lake, "spend", 3),
        lambda: generations.update(lake, "spend", 3, backfilled=True),
    ):
        with pytest.raises(GenerationError, match=r"unknown generation 3.*: 1"):
            call()


def test_concurrent_updates_of_different_fields_are_all_kept(lake: Lake) -> None:
    generations.save(lake, record(1))
    changes: list[dict[str, object]] = [
        {"backfilled": True}, {"commit_user": "u"}, {"resume_path": "/c"}, {"handover_snapshot": 3}
    ]  # fmt: skip
    threads = [
        threading.Thread(target=generations.update, args=(lake, "spend", 1), kwargs=change)
        for change in changes
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (found,) = generations.load(lake, "spend")
    for change in changes:
        for name, value in change.items():
            assert getattr(found, name) == value


def test_all_but_the_active_generation_can_be_removed(lake: Lake) -> None:
    for generation in (1, 2):
        generations.save(lake, record(generation))
    generations.activate(lake, "spend", 2)
    generations.remove(lake, "spend", 1)
    with pytest.raises(GenerationError, match="2 is the active one"):
        generations.remove(lake, "spend", 2)
    assert [r.generation for r in generations.load(lake, "spend")] == [2]


def test_a_corrupt_record_is_an_error(lake: Lake) -> None:
    generations.save(lake, record(1))
    path = lake.side_folder / "generations" / "features.spend.json"
    path.write_text(path.read_text()[:20])
    with pytest.raises(TableError, match=r"features\.spend\.json is not valid JSON"):
        generations.load(lake, "spend")
