"""Claims: each number is of one owner, and only the newest one commits, whatever the schedule."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from paimon_features.core.errors import LeaseLostError, TableError
from paimon_features.lake.ownership.claims import Claim, Claims, FolderClaims
from paimon_features.lake.ownership.fence import Fence
from paimon_features.lake.storage.exclusive_folder import ExclusiveFolder
from paimon_features.testing.sizes import every_seed
from tests.lake.lease_model import World


@pytest.fixture
def claims(tmp_path: Path) -> FolderClaims:
    return FolderClaims(ExclusiveFolder(tmp_path / "lease"))


def fence(claims: Claims, claim: Claim) -> Fence:
    return Fence(
        "table 'tiles': the lease", claims, claim, lambda other: str(other.content["owner"])
    )


@pytest.mark.long
@pytest.mark.parametrize("objects", [False, True], ids=["folder", "objects"])
@every_seed(200)
def test_no_schedule_lets_two_owners_commit(seed: int, objects: bool) -> None:
    world = World(seed, objects=objects)
    world.run()
    world.check()


@pytest.mark.long
def test_the_schedules_contain_what_they_are_for() -> None:
    seen: Counter[str] = Counter()
    for seed in range(50):
        world = World(seed)
        world.run()
        seen.update(world.events)
        seen["commits"] += len(world.commits)
    events = ("commits", "refused", "taken over", "lost", "cut off", "killed")
    for event in (*events, "transferred", "unowned", "released"):
        assert seen[event] > 5, seen


@pytest.mark.long
def test_without_the_check_at_the_commit_the_schedules_find_two_owners(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Fence, "check", lambda _: None)
    found = 0
    for seed in range(60):
        world = World(seed)
        world.run()
        try:
            world.check()
        except AssertionError:
            found += 1
    assert found > 5


def test_one_of_two_claims_follows(claims: Claims) -> None:
    first = claims.follow(None, {"owner": "a"})
    assert first is not None
    assert first.number == 1
    assert claims.follow(None, {"owner": "b"}) is None
    second = claims.follow(first, {"owner": "b"})
    assert second is not None
    assert claims.follow(first, {"owner": "c"}) is None
    assert claims.newest() == second
    with pytest.raises(
        LeaseLostError,
        match="table 'tiles': the lease with number 1 is no longer held by a, .* 2 belongs to b",
    ):
        fence(claims, first).check()
    fence(claims, second).check()


def test_old_claims_are_deleted_and_their_numbers_not_used_again(
    claims: FolderClaims, tmp_path: Path
) -> None:
    made: list[Claim] = []
    for number in range(1, 11):
        claim = claims.follow(made[-1] if made else None, {"owner": str(number)})
        assert claim is not None
        claims.beat(claim, 1)
        claims.prune(claim)
        made.append(claim)
    assert {path.name for path in (tmp_path / "lease").iterdir()} == {
        "oldest",
        *(f"{what}-{number}" for what in ("claim", "beat") for number in range(7, 11)),
    }
    assert claims.newest() == made[-1]
    # a process that was paused since it saw no claim, or the third one
    assert FolderClaims(claims.files).follow(None, {"owner": "late"}) is None
    assert claims.follow(made[2], {"owner": "late"}) is None
    for old in made[:-1]:
        with pytest.raises(LeaseLostError, match="number .* belongs to "):
            fence(claims, old).check()
    assert claims.newest() == made[-1]


def test_a_number_that_is_used_again_after_a_loss_is_another_claim(
    claims: FolderClaims, tmp_path: Path
) -> None:
    first = claims.follow(None, {"owner": "a"})
    assert first is not None
    (tmp_path / "lease" / "claim-1").unlink()
    with pytest.raises(LeaseLostError, match="claim 1 does not exist any more"):
        fence(claims, first).check()
    claims.follow(None, {"owner": "b"})
    with pytest.raises(LeaseLostError):
        fence(claims, first).check()


def test_a_folder_without_its_newest_claims_is_refused(
    claims: FolderClaims, tmp_path: Path
) -> None:
    claim = None
    for _ in range(6):
        claim = claims.follow(claim, {})
        assert claim is not None
    claims.prune(claim)
    for path in (tmp_path / "lease").glob("claim-*"):
        path.unlink()
    with pytest.raises(TableError, match="has no claim from number 3 on"):
        claims.newest()


def test_a_heartbeat_is_watched_without_comparing_clocks(claims: Claims) -> None:
    claim = claims.follow(None, {"owner": "a", "beat_s": 5.0})
    assert claim is not None
    now = [0.0]

    def sleep(seconds: float, act_at_s: float, act: object = None) -> None:
        now[0] += seconds
        if act is not None and now[0] >= act_at_s:
            act()  # type: ignore[operator]

    def watch(act_at_s: float = 0.0, act: object = None, jump_s: float = 0.0) -> str:
        now[0] = 0.0
        return claims.watch(
            claim, sleep=lambda s: sleep(s, act_at_s, act), clock=lambda: now[0] + jump_s * now[0]
        )

    assert watch() == "silent"
    assert now[0] >= 30
    assert watch(act_at_s=29.0, act=lambda: claims.beat(claim, 1)) == "beating"
    assert now[0] < 31
    assert watch(jump_s=1000.0) == "silent"
    assert now[0] >= 29  # a clock that runs too fast does not end it early
    assert watch(act_at_s=3.0, act=lambda: claims.follow(claim, {})) == "followed"
