"""State by name behaves as Python's own containers do, whatever is flushed and restored."""

from __future__ import annotations

import random
from typing import Any

import pytest

from paimon_features.core.errors import JobError
from paimon_features.iteration.operators.context import NO_KEY, FunctionContext
from paimon_features.iteration.state_backend import MemoryState, StateCache, decode_key, encode_key
from paimon_features.testing.sizes import every_seed


def context(cache: StateCache, keyed: bool = True, epoch: int | None = None) -> FunctionContext:
    scope = ("all", 7) if epoch is None else ("round", 7, epoch)
    return FunctionContext("counter", 0, 1, cache, scope, keyed)


@pytest.mark.parametrize("limit", [2, 100_000])
@every_seed(30)
def test_states_agree_with_python_containers_over_flushes_and_restores(
    seed: int, limit: int
) -> None:
    rng = random.Random(seed)
    backend = MemoryState()
    ctx = context(StateCache(backend, limit))
    values: dict[Any, Any] = {}
    lists: dict[Any, list[Any]] = {}
    maps: dict[Any, dict[Any, Any]] = {}
    for step in range(400):
        key = ctx.current = rng.choice([1, "a", ("a", 2), None, b"x"])
        value, items, entries = ctx.state.value("v"), ctx.state.list("l"), ctx.state.map("m")
        held, name = maps.setdefault(key, {}), rng.randrange(40)
        match rng.randrange(10):
            case 0:
                value.update(step)
                values[key] = step
            case 1:
                value.clear()
                values.pop(key, None)
            case 2:
                items.add(step)
                lists.setdefault(key, []).append(step)
            case 3:
                items.update(range(step % 5))
                lists[key] = [*range(step % 5)]
            case 4:
                items.clear()
                lists.pop(key, None)
            case 5 | 6:
                entries.put(name, step)
                held[name] = step
            case 7:
                entries.remove(name)
                held.pop(name, None)
            case 8 if rng.random() < 0.1:
                entries.clear()
                held.clear()
            case _:
                ctx.current = NO_KEY
                if rng.random() < 0.3:
                    ctx = flushed(ctx, backend, limit)
                elif rng.random() < 0.3:
                    backend = MemoryState(flushed_entries(ctx, backend))
                    ctx = context(StateCache(backend, limit))
        ctx.current = key
        assert ctx.state.value("v").value("none") == values.get(key, "none")
        assert ctx.state.list("l").get() == lists.get(key, [])
        assert ctx.state.map("m").items() == [*held.items()]
        assert ctx.state.map("m").get(name) == held.get(name)
        assert len(ctx.state.map("m")) == len(held)


def flushed(ctx: FunctionContext, backend: MemoryState, limit: int) -> FunctionContext:
    cache_of(ctx).flush()
    return ctx


def flushed_entries(ctx: FunctionContext, backend: MemoryState) -> dict[bytes, bytes]:
    cache_of(ctx).flush()
    return backend.snapshot()


def cache_of(ctx: FunctionContext) -> StateCache:
    return ctx.state._cache


def test_nothing_is_left_of_a_map_whose_keys_come_and_go() -> None:
    backend = MemoryState()
    cache = StateCache(backend)
    held = context(cache, keyed=False).state.map("held")
    for epoch in range(1000):
        held.put(epoch, "x")
        held.remove(epoch - 3)
        cache.flush()
    assert held.keys() == [997, 998, 999]
    assert len(backend.snapshot()) == 4
    assert cache.get(("all", 7, "m", "held")) < 64


def test_all_state_of_a_round_is_deleted_and_other_rounds_keep_theirs() -> None:
    backend = MemoryState()
    cache = StateCache(backend)
    for epoch in (0, 1):
        ctx = context(cache, epoch=epoch)
        for ctx.current in ("a", "b"):
            ctx.state.value("v").update(epoch)
            ctx.state.list("l").add(epoch)
            ctx.state.map("m").put("name", epoch)
        ctx.state.broadcast("b").put("name", epoch)
    cache.flush()
    restored = StateCache(backend := MemoryState(backend.snapshot()))
    restored.drop_round(7, 0)
    restored.flush()
    assert {key[2] for key, _ in backend.scan("round")} == {1}
    again = context(restored, epoch=0)
    again.current = "a"
    assert again.state.value("v").value() is None
    assert again.state.map("m").is_empty()


def test_keyed_state_without_a_key_is_an_error_that_names_the_function() -> None:
    ctx = context(StateCache(MemoryState()))
    with pytest.raises(JobError, match="keyed state of 'counter'.*without a current key"):
        ctx.state.value("v").value()
    ctx.state.broadcast("b").put("name", 1)
    assert ctx.state.union_list("u").get() == []


def test_equal_keys_share_their_state() -> None:
    np = pytest.importorskip("numpy")
    ctx = context(StateCache(MemoryState()))
    ctx.current = 1
    ctx.state.value("v").update("one")
    for ctx.current in (1.0, True, np.int64(1), np.float32(1)):
        assert ctx.state.value("v").value() == "one"
    for ctx.current in ("1", (1,), 2):
        assert ctx.state.value("v").value() is None


@pytest.mark.parametrize("key", [(1, "a"), ("\ud800", b"\0'"), (None, -1.5, float("inf")), ()])
def test_bytes_of_a_key_give_the_key_again(key: tuple[Any, ...]) -> None:
    assert decode_key(encode_key(key)) == key
