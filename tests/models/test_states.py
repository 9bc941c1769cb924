"""States of versions: one version in production, and a split that moves nobody needlessly."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace

import pytest

from paimon_features.core.errors import ModelError, RequestError, UnknownNameError
from paimon_features.models import SHARES, STATES, ModelStates
from paimon_features.testing.sizes import every_seed

ENTITIES = [f"customer {number}" for number in range(4_000)]


def states(count: int) -> ModelStates:
    made = ModelStates.new("churn", 1)
    for version in range(1, count + 1):
        made = made.with_version(version, f"{version:064x}", version)
    return made


def answers(of: ModelStates) -> dict[str, int | None]:
    return {entity: of.version_of(entity) for entity in ENTITIES}


def test_promotion_archives_and_rollback_returns_step_by_step() -> None:
    made = states(3)
    assert made.production is None
    assert made.version_of("x") is None
    for version in (1, 2, 3):
        made = made.changed(version, "production", 9)
    assert [each.state for each in made.versions] == ["archived", "archived", "production"]
    assert made.previous == (1, 2)
    made = made.rolled_back(10)
    assert [each.state for each in made.versions] == ["archived", "production", "archived"]
    made = made.rolled_back(11)
    assert made.production is not None
    assert (made.production.version, made.serial) == (1, 8)
    with pytest.raises(RequestError, match="no version was in production before"):
        made.rolled_back(12)


def test_what_is_taken_out_of_production_can_be_returned_to() -> None:
    made = states(1).changed(1, "production", 2).changed(1, "archived", 3)
    assert made.production is None
    back = made.rolled_back(4).production
    assert back is not None
    assert back.version == 1


def test_a_challenger_answers_its_share_and_an_entity_keeps_its_version() -> None:
    made = states(3).changed(1, "production", 2).changed(2, "challenger", 3, traffic=1_000)
    found = answers(made)
    counts = Counter(found.values())
    # of 4,000: 400 expected, standard deviation 19
    assert 300 < counts[2] < 500
    assert counts[1] == len(ENTITIES) - counts[2]
    assert answers(made) == found
    # another salt splits differently
    assert answers(replace(made, salt="another")) != found


def test_growing_and_shrinking_moves_only_those_that_the_share_needs() -> None:
    made = states(3).changed(1, "production", 2).changed(2, "challenger", 3, traffic=1_000)
    made = made.changed(3, "challenger", 4, traffic=500)
    before = answers(made)
    grown = answers(made.changed(2, "challenger", 5, traffic=2_000))
    assert {(before[e], grown[e]) for e in ENTITIES if before[e] != grown[e]} == {(1, 2)}
    shrunk = answers(made.changed(2, "challenger", 5, traffic=300))
    assert {(before[e], shrunk[e]) for e in ENTITIES if before[e] != shrunk[e]} == {(2, 1)}
    promoted = answers(made.changed(2, "production", 6))
    assert {(before[e], promoted[e]) for e in ENTITIES if before[e] != promoted[e]} == {(1, 2)}


@pytest.mark.parametrize(
    ("version", "state", "traffic", "message"),
    [
        (9, "production", 0, "has no version 9; it has: 1, 2, 3"),
        (2, "challenger", 0, "a challenger has traffic"),
        (2, "shadow", 5, "a shadow has no traffic"),
        (1, "challenger", 5, "another version in production"),
        (3, "challenger", 9_500, "other challengers have 10 %"),
        (2, "famous", 0, "expected one of"),
    ],
)
def test_a_change_that_cannot_be_is_refused(
    version: int, state: str, traffic: int, message: str
) -> None:
    made = states(3).changed(1, "production", 2).changed(2, "challenger", 3, traffic=1_000)
    with pytest.raises((RequestError, UnknownNameError), match=message):
        made.changed(version, state, 4, traffic=traffic)  # type: ignore[arg-type]


@every_seed(30)
def test_random_changes_keep_the_rules_and_read_back(seed: int) -> None:
    dice = random.Random(seed)
    made = states(4)
    for step in range(40):
        state = dice.choice(STATES)
        traffic = dice.randrange(1, SHARES) if state == "challenger" else 0
        try:
            made = made.changed(dice.randrange(1, 5), state, step, traffic=traffic)
        except RequestError:
            continue
        # the constructor checks the rules
        assert ModelStates.from_document(_parsed(made)) == made
        slots = Counter(made.version_of(f"{dice.random()}") for _ in range(50))
        assert set(slots) <= {each.version for each in made.serving} | {None}
        if made.production:
            assert sum(each.traffic for each in made.versions) == SHARES


def _parsed(made: ModelStates) -> dict[str, object]:
    document: dict[str, object] = json.loads(json.dumps(made.to_document()))
    return document


def test_documents_that_break_the_rules_are_refused() -> None:
    made = states(3).changed(1, "production", 2).changed(2, "challenger", 3, traffic=1_000)
    document = _parsed(made)
    versions: list[dict[str, object]] = document["versions"]  # type: ignore[assignment]
    for field, value in [
        ("state", "production"), ("slots", [[0, 5_000], [4_000, 6_000]]), ("slots", [[5, 5]]),
        ("slots", [[-5, 5]]), ("slots", [[0, 20_000]]), ("traffic", 7), ("manifest", "../x"),
        ("version", 1), ("version", -1), ("slots", "all"),
    ]:  # fmt: skip
        broken = [versions[0], {**versions[1], field: value}, versions[2]]
        with pytest.raises(ModelError):
            ModelStates.from_document({**document, "versions": broken})
