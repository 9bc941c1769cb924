"""The whole under faults: every reply is right as of some snapshot, or a refusal.

A sample in the suite; ``make chaos`` lets worlds of random faults run, each with its seed, which
``PAIMON_FEATURES_SEED`` begins with. ``pytest -s`` shows what each came to.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.serving.chaos import faults
from tests.serving.chaos.scene import GROWTH_MB, Scene

pytestmark = pytest.mark.redis

WORLDS = int(os.environ.get("PAIMON_FEATURES_WORLDS", "0"))
FAULTS = int(os.environ.get("PAIMON_FEATURES_FAULTS", "12"))
"""In one world."""
FIRST_SEED = int(os.environ.get("PAIMON_FEATURES_SEED", random.randrange(10**9)) if WORLDS else 0)
KINDS = ("direct", "proxied", "sentinel")


def run(folder: Path, seed: int, kind: str, script: Sequence[Sequence[faults.Fault]]) -> Scene:
    with Scene(folder, seed, kind) as scene:
        before = scene.memory()
        for together in script:
            scene.suffer(*together)
        after = scene.memory()
        scene.check_end()
    print("\n" + scene.verdict())
    grown = {pid: round(after[pid] - mb, 1) for pid, mb in before.items() if pid in after}
    print(f"  workers grew by {grown} MB, from {before}")
    assert all(mb < GROWTH_MB for mb in grown.values()), grown
    return scene


@pytest.mark.long
def test_nothing_is_answered_wrong_while_the_store_and_the_others_fail(tmp_path: Path) -> None:
    script = [
        [faults.killed_and_empty], [faults.worker_killed, faults.paused],
        [faults.generation_switched, faults.connections_reset], [faults.killed_and_older],
    ]  # fmt: skip
    run(tmp_path, 1, "proxied", script)


@pytest.mark.long
def test_nothing_is_answered_wrong_while_a_primary_is_replaced(tmp_path: Path) -> None:
    run(tmp_path, 2, "sentinel", [[faults.primary_killed]])


@pytest.mark.skipif(not WORLDS, reason="random worlds take long: make chaos")
@pytest.mark.parametrize("world", range(FIRST_SEED, FIRST_SEED + max(1, WORLDS)))
def test_random_faults(tmp_path: Path, world: int) -> None:
    rng = random.Random(world)
    kind = rng.choice(KINDS)
    own = faults.OF_SENTINELS if kind == "sentinel" else faults.OF_ONE_SERVER
    script = [
        [rng.choice(rng.choice((own, faults.OF_EVERYTHING))) for _ in range(rng.choice((1, 1, 2)))]
        for _ in range(FAULTS)
    ]
    run(tmp_path, world, kind, script)
