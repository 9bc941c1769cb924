"""A simulation of processes that compete for one lease, with the real claims and ``Fence``.

Each process has two threads: one takes the lease and commits, the other beats. Only one thread of
all runs at a time, up to its next step: an operation on the storage, the lock or the clock. The
schedule, drawn from a seed, decides who runs next, pauses processes or starves their heartbeats for
long times, cuts them off from the storage, lets their clocks jump, and kills them, at any step.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from paimon_features.core.errors import LeaseLostError, OwnershipError
from paimon_features.lake.ownership.claims import (
    RELEASED,
    Claim,
    Claims,
    FolderClaims,
    ObjectClaims,
)
from paimon_features.lake.ownership.fence import Fence
from paimon_features.lake.storage.conditional import ConditionalStore, StoredObject
from paimon_features.lake.storage.exclusive_folder import ExclusiveFolder
from paimon_features.lake.storage.object_path import ObjectPath

BEAT_S = 5.0
NOBODY = "nobody"
"""The owner of commits while nobody owns the table."""


class KilledError(BaseException):
    """The process of this thread has ended."""


class World:
    """Storage, lock and schedule; ``run`` runs one schedule and records its commits."""

    def __init__(
        self, seed: int, processes: int = 3, steps: int = 1200, *, objects: bool = False
    ) -> None:
        self.objects = objects
        self.random = random.Random(seed)
        self.steps = steps
        self.now_s = 0.0
        self.files: dict[str, str] = {}
        self.locked_by: Process | None = None
        self.commits: list[tuple[str, Claim]] = []
        self.events: Counter[str] = Counter()
        self.errors: list[BaseException] = []
        self.processes = [Process(self, f"p{i}") for i in range(processes)]

    def run(self) -> None:
        for _ in range(self.steps):
            self._disturb()
            awake = [p for p in self.processes if p.paused_until <= self.now_s]
            ready = [thread for p in awake for thread in p.threads if thread.is_due()]
            if ready:
                self.random.choice(ready).step()
                self.now_s += self.random.choice((0.0, 0.01, 0.3))
            else:
                self.now_s += 1.0
        for process in self.processes:
            process.kill()

    def check(self) -> None:
        """Numbers of commits never decrease, and each number is of one owner."""
        if self.errors:
            raise self.errors[0]
        numbers = [claim.number for _, claim in self.commits]
        assert numbers == sorted(numbers), self.commits
        owners: dict[int, str] = {}
        for process, claim in self.commits:
            assert owners.setdefault(claim.number, process) == process, self.commits

    def _disturb(self) -> None:
        draw = self.random.random()
        process = self.random.choice(self.processes)
        long_s = self.random.choice((2.0, 40.0, 150.0))
        if draw < 0.012:
            process.paused_until = self.now_s + long_s
        elif draw < 0.020:
            process.starved_until = self.now_s + long_s
        elif draw < 0.023:
            process.cut_off_until = self.now_s + long_s
        elif draw < 0.03:
            process.clock_offset_s += self.random.choice((-1e5, -30.0, 30.0, 1e5))
        elif draw < 0.032:
            process.kill()
            self.events["killed"] += 1
            self.processes[self.processes.index(process)] = Process(self, f"{process.name}'")


class Process:
    """One process: it takes the lease, commits a few times, and releases it or not."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.killed = False
        self.paused_until = self.starved_until = self.cut_off_until = 0.0
        self.clock_offset_s = 0.0
        self.held: Fence | None = None
        self.claims: Claims = (
            ObjectClaims(ObjectPath(SimulatedStore(self), "claim"))
            if world.objects
            else FolderClaims(SimulatedFiles(self))
        )
        self.threads = [Step(self, self._work), Step(self, self._beat)]
        for thread in self.threads:
            thread.start()

    def kill(self) -> None:
        """End the process at its present step."""
        self.killed = True
        if self.world.locked_by is self:  # as the operating system does
            self.world.locked_by = None
        for thread in self.threads:
            thread.step()
            thread.join()

    # -- what it can do ----------------------------------------------------------------------

    def yield_(self, until: Callable[[], bool] = lambda: True) -> None:
        thread = threading.current_thread()
        assert isinstance(thread, Step)
        thread.wait_for_turn(until)

    def sleep(self, seconds: float) -> None:
        wake_s = self.world.now_s + seconds
        self.yield_(lambda: self.world.now_s >= wake_s)

    def clock(self) -> float:
        return self.world.now_s + self.clock_offset_s

    @contextmanager
    def lock(self) -> Iterator[None]:
        self.yield_(lambda: self.world.locked_by is None)
        self.world.locked_by = self
        try:
            yield
        finally:
            if self.world.locked_by is self:
                self.world.locked_by = None

    # -- its program -------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            try:
                draw = self.world.random.random()
                if draw < 0.15:
                    self._commit_unowned()
                elif draw < 0.18:
                    self._release_by_force()
                else:
                    self._own()
            except LeaseLostError:
                self.world.events["lost"] += 1
            except OwnershipError:
                self.world.events["refused"] += 1
                self.sleep(self.world.random.choice((1.0, 10.0)))
            except OSError:
                self.world.events["cut off"] += 1
                self.sleep(10.0)

    def _own(self) -> None:
        content = {"owner": self.name, "beat_s": BEAT_S}
        claim = self.claims.take(content, self._may_follow, self.lock)
        fence = self.held = Fence("t", self.claims, claim, lambda c: str(c.content.get("owner")))
        for _ in range(self.world.random.randrange(12)):
            if self.world.random.random() < 0.1:
                claim, fence = self._transfer(claim, fence)
            with self.lock():
                fence.check()
                self.yield_()  # pypaimon writes manifests
                self.world.commits.append((self.name, claim))
            self.sleep(self.world.random.choice((0.1, 2.0, 25.0)))
        end = self.world.random.random()
        self.held = None
        if end < 0.6:
            fence.check()
            self.claims.follow(claim, RELEASED)
        # otherwise it forgets the lease, as a process that is killed

    def _transfer(self, claim: Claim, fence: Fence) -> tuple[Claim, Fence]:
        """As ``Lease.transfer`` to a holder that this process beats for."""
        fence.check()
        made = self.claims.follow(claim, {"owner": self.name, "beat_s": BEAT_S})
        if made is None:
            fence.check()
        assert made is not None
        self.held = Fence("t", self.claims, made, lambda c: str(c.content.get("owner")))
        self.world.events["transferred"] += 1
        return made, self.held

    def _commit_unowned(self) -> None:
        """As ``lease.committing`` of a process without a lease."""
        newest = self.claims.newest()
        if newest is not None and "owner" in newest.content:
            if self._may_follow(newest):
                self.claims.follow(newest, RELEASED)
            return
        with self.lock():
            now = self.claims.newest()
            if now is not None and newest is not None and now.number == newest.number:
                self.yield_()
                self.world.commits.append((NOBODY, now))
                self.world.events["unowned"] += 1

    def _release_by_force(self) -> None:
        """As ``lease.release`` by an operator, who may be wrong about the owner."""
        newest = self.claims.newest()
        if newest is not None and "owner" in newest.content:
            self.claims.follow(newest, RELEASED)
            self.world.events["released"] += 1

    def _may_follow(self, newest: Claim) -> bool:
        if "owner" not in newest.content:
            return True
        seen = self.claims.watch(newest, sleep=self.sleep, clock=self.clock)
        if seen == "beating":
            raise OwnershipError(newest.content["owner"])
        if seen == "silent":
            self.world.events["taken over"] += 1
        return seen == "silent"

    def _beat(self) -> None:
        count = 0
        while True:
            self.sleep(BEAT_S)
            self.yield_(lambda: self.starved_until <= self.world.now_s)
            fence = self.held
            if fence is not None:
                count += 1
                try:
                    fence.check()
                    self.claims.beat(fence.claim, count)
                except (LeaseLostError, OSError):
                    pass


class Step(threading.Thread):
    """A thread that runs only between ``step`` and its next ``wait_for_turn``."""

    def __init__(self, process: Process, program: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self.process, self._program = process, program
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._until: Callable[[], bool] = lambda: True

    def run(self) -> None:
        self._go.acquire()
        try:
            if not self.process.killed:
                self._program()
        except KilledError:
            pass
        except BaseException as error:
            self.process.world.errors.append(error)
        self._until = lambda: False
        self._done.release()

    def is_due(self) -> bool:
        return self._until()

    def step(self) -> None:
        """Let it run up to its next step, or its end; called by the schedule."""
        self._go.release()
        if self.is_alive():
            self._done.acquire()

    def wait_for_turn(self, until: Callable[[], bool]) -> None:
        self._until = until
        self._done.release()
        self._go.acquire()
        self._until = lambda: True
        if self.process.killed:
            raise KilledError


class SimulatedFiles(ExclusiveFolder):
    """The files of the world as one process sees them: each operation is a step."""

    def __init__(self, process: Process) -> None:
        self._process, self._files = process, process.world.files

    def where(self, name: str) -> str:
        return name

    def read(self, name: str) -> str | None:
        self._step()
        return self._files.get(name)

    def create(self, name: str, text: str) -> bool:
        self._step()
        if name in self._files:
            return False
        self._files[name] = text
        self._lost_reply()
        return True

    def replace_if(self, name: str, text: str, version: object) -> bool:
        self._step()
        if self._files.get(name) != version:
            return False
        self._files[name] = text
        self._lost_reply()
        return True

    def replace(self, name: str, text: str) -> None:
        self._step()
        self._files[name] = text
        self._lost_reply()

    def delete(self, name: str) -> None:
        self._step()
        self._files.pop(name, None)

    def _step(self) -> None:
        self._process.yield_()
        if self._process.cut_off_until > self._process.world.now_s:
            raise OSError("the storage is not reachable")

    def _lost_reply(self) -> None:
        self._process.yield_()
        if self._process.cut_off_until > self._process.world.now_s:
            raise OSError("the reply was lost")


class SimulatedStore(ConditionalStore):
    """The objects of the world as one process sees them: each request is a step."""

    def __init__(self, process: Process) -> None:
        self.address = "s3://simulated"
        self._simulated = SimulatedFiles(process)

    def get(self, key: str) -> StoredObject | None:
        text = self._simulated.read(key)
        return None if text is None else StoredObject(text, text)

    def create(self, key: str, text: str) -> bool:
        return self._simulated.create(key, text)

    def replace_if(self, key: str, text: str, version: object) -> bool:
        return self._simulated.replace_if(key, text, version)

    def put(self, key: str, text: str) -> None:
        self._simulated.replace(key, text)
