"""Event times of replies by the native core: the bytes of the reference implementation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.aggregates.fold import NEVER_MS
from paimon_features.native import CORE
from paimon_features.serving import json_reply
from paimon_features.testing.sizes import cases
from paimon_features.windows import MAX_TIME_MS, MIN_TIME_MS

EDGES = (MIN_TIME_MS, MAX_TIME_MS, NEVER_MS, 0, -1, 999, 1_000, 951_782_400_000, -2_203_891_200_001)


@pytest.mark.skipif(CORE is None, reason="the native core is not built")
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
        pytest.skip("the native core is not built")
    with pytest.raises(ValueError, match="outside the years"):
        CORE.times_json(np.array([0, time_ms]))
