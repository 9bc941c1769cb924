"""The saved state of runners: named fields in the code, plain tuples in savepoints."""

from __future__ import annotations

import pickle

import pytest

from paimon_features.iteration.operators.runner_states import (
    AllRoundState,
    HeadState,
    NodeState,
    PerRoundState,
    ReplayState,
    TailState,
)
from paimon_features.iteration.wires import ENTRY, Notice

CHANNELS = ((2, False), (-1, True))
ENTRY_7 = Notice(ENTRY, node=3, subtask=1, epoch=2, seq=7, records=1, payload=b"x")


@pytest.mark.parametrize(
    ("state", "packed"),
    [
        (NodeState(CHANNELS), CHANNELS),
        (HeadState(CHANNELS, emitted=4), (4, CHANNELS)),
        (AllRoundState(CHANNELS, terminated=True), (True, CHANNELS)),
        (PerRoundState(CHANNELS, epochs=(2, 3)), ((2, 3), CHANNELS)),
        (
            ReplayState(CHANNELS, decided=3, emitted=2, terminated=False, entries=5, size=600),
            ((3, 2, False, 5, 600), CHANNELS),
        ),
        (
            TailState(CHANNELS, next_seq=8, counts={3: 1}, closed={2: (4, None)}, small=(ENTRY_7,)),
            (8, {3: 1}, {2: (4, None)}, [(ENTRY, 3, 1, 2, 7, 1, b"x")], CHANNELS),
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, NodeState) else "",
)
def test_a_state_is_stored_as_plain_tuples_in_a_fixed_layout(
    state: NodeState, packed: object
) -> None:
    assert state.pack() == packed
    assert type(state).unpack(pickle.loads(pickle.dumps(packed))) == state
    assert b"paimon_features" not in pickle.dumps(state.pack())


def test_iteration_job_is_importable_from_the_engine_independent_package() -> None:
    pytest.importorskip("pyflink", reason="pip install 'paimon-features[flink]'")
    import paimon_features.iteration
    import paimon_features.iteration.flink

    assert paimon_features.iteration.IterationJob is paimon_features.iteration.flink.IterationJob
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = paimon_features.iteration.Nothing
