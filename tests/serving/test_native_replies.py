"""Times and numbers of replies by the native core: the bytes of the reference implementation."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paimon_features.core.native import CORE
from paimon_features.core.types.array_types import Array
from paimon_features.core.windows import MAX_TIME_MS, MIN_TIME_MS
from paimon_features.definitions.aggregates.fold import NEVER_MS
from paimon_features.serving.replies import json_reply
from paimon_features.testing.sizes import cases

EDGES = (MIN_TIME_MS, MAX_TIME_MS, NEVER_MS, 0, -1, 999, 1_000, 951_782_400_000, -2_203_891_200_001)


@pytest.mark.skipif(CORE is None, reason="the native core is not built (make test)")
@given(st.lists(st.sampled_from(EDGES) | st.integers(MIN_TIME_MS, MAX_TIME_MS), max_size=20))
@cases(200)
def test_times_have_one_text(times_ms: list[int]) -> None:
    times = np.array(times_ms, np.int64)
    with pytest.MonkeyPatch.context() as patch:
        got = json_reply.times_json(times)
        patch.setattr(json_reply, "CORE", None)
        assert got == json_reply.times_json(times)


@pytest.mark.parametrize("time_ms", [MIN_TIME_MS - 1, MAX_TIME_MS + 1, 2**63 - 1, -(2**63)])
def test_a_time_outside_the_calendar_is_no_buffer_overrun(time_ms: int) -> None:
    if CORE is None:
        pytest.skip("the native core is not built (make test)")
    with pytest.raises(ValueError, match="outside the years"):
        CORE.times_json(np.array([0, time_ms]))


def _floats() -> st.SearchStrategy[float]:
    """Any, those with few decimals, and the neighbours of powers of two and ten."""
    powers = st.sampled_from([2.0**n for n in range(-14, 51)] + [10.0**n for n in range(-5, 17)])
    near = st.tuples(powers, st.integers(-3, 3)).map(_neighbour)
    decimal = st.builds(lambda n, d: n / 10**d, st.integers(-(10**16), 10**16), st.integers(0, 9))
    return st.floats() | decimal | near | near.map(lambda x: -x)


def _neighbour(of: tuple[float, int]) -> float:
    value, steps = of
    return float((np.array([value]).view(np.int64) + steps).view(np.float64)[0])


@pytest.mark.skipif(CORE is None, reason="the native core is not built (make test)")
@given(st.lists(_floats(), max_size=20))
@example([0.0, -0.0, 5e-324, 1e15, 9007199254740993.0, 0.1 + 0.2])
@cases(200)
def test_floats_have_one_text(floats: list[float]) -> None:
    """The shortest that is read back as the same, where the core writes it at all."""
    got = _numbers(np.array(floats, np.float64), 1)
    if got is None:
        assert not all(x == 0 or 1e-4 <= abs(x) < 1e15 for x in floats)
    else:
        assert got == msgspec.json.encode(floats)


@pytest.mark.skipif(CORE is None, reason="the native core is not built (make test)")
@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20))
@cases(100)
def test_integers_have_one_text(integers: list[int]) -> None:
    assert _numbers(np.array(integers, np.int64), 0) == msgspec.json.encode(integers)


def _numbers(values: Array, content: int) -> bytes | None:
    assert CORE is not None
    rows = len(values)
    text = CORE.reply_json(
        b"", (values,), (None,), bytes([content]), (b"",), b"\0", 0, rows
    )  # fmt: skip
    return None if text is None else text.removeprefix(b'},{"values":').removesuffix(b"}]}")
