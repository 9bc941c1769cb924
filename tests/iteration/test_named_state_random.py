"""State of functions behaves like plain lists and dictionaries, whatever the cache forgets."""

from __future__ import annotations

import random
from typing import Any

import pytest

from paimon_features.iteration.operators.context import NO_KEY, FunctionContext
from paimon_features.iteration.state_backend import MemoryState, StateCache
from paimon_features.testing.sizes import every_seed

KEYS = (NO_KEY, "a", 1, (2, "b"))
NAMES = range(6)


class Naive:
    """A list, a dictionary and a value for each key, kept as they are."""

    def __init__(self) -> None:
        self.lists: dict[Any, list[int]] = {}
        self.maps: dict[Any, dict[int, int]] = {}
        self.values: dict[Any, int | None] = {}


def one_step(rng: random.Random, ctx: FunctionContext, naive: Naive, key: Any) -> None:
    """The same on both."""
    ctx.current = key
    value, some, of_map = ctx.state.value("v"), ctx.state.list("l"), ctx.state.map("m")
    values = naive.lists.setdefault(key, [])
    entries = naive.maps.setdefault(key, {})
    name, number = rng.choice(NAMES), rng.randrange(1000)
    match rng.randrange(9):
        case 0:
            value.update(number)
            naive.values[key] = number
        case 1:
            value.clear()
            naive.values[key] = None
        case 2:
            some.add(number)
            values.append(number)
        case 3:
            some.update([number, name])
            values[:] = [number, name]
        case 4:
            some.clear()
            values.clear()
        case 5 | 6:
            of_map.put(name, number)
            entries[name] = number
        case 7:
            of_map.remove(name)
            entries.pop(name, None)
        case 8 if rng.random() < 0.3:
            of_map.clear()
            entries.clear()
    if rng.random() < 0.5:  # a look is a use, which the cache remembers
        assert value.value() == naive.values.get(key)
        assert [*some.get()] == values
        assert dict(of_map.items()) == entries
        assert of_map.get(name) == entries.get(name)


@pytest.mark.parametrize("family", ["all", "round"])
@every_seed(20)
def test_states_are_as_plain_collections(seed: int, family: str) -> None:
    """With a cache of few values, flushes at any time, and restores."""
    rng = random.Random(seed)
    backend, naive = MemoryState(), Naive()
    limit = rng.choice([1, 3, 10, 1000])
    scope = ("round", 5, 0) if family == "round" else ("all", 5)

    def context() -> FunctionContext:
        return FunctionContext("f", 0, 1, StateCache(backend, limit), scope, keyed=True)

    ctx = context()
    for _ in range(300):
        one_step(rng, ctx, naive, rng.choice(KEYS[1:]))
        if rng.random() < 0.3:
            ctx.state._cache.flush()
            if rng.random() < 0.1:
                backend = MemoryState(backend.snapshot())
                ctx = context()
    for key in KEYS[1:]:
        ctx.current = key
        assert ctx.state.value("v").value() == naive.values.get(key)
        assert [*ctx.state.list("l").get()] == naive.lists.get(key, [])
        assert dict(ctx.state.map("m").items()) == naive.maps.get(key, {})
