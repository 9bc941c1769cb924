"""Programs of every kind for the failure matrix, and functions that fail once."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path
from typing import Any

from paimon_features.iteration import IterationListener, IterationStream
from tests.iteration.programs import Node, Program, Source

POINTS = ("record", "watermark", "replay", "end")
"""Where a function may fail: handling a record of a round, at a round's end, at the very end."""

_VARIABLE = Source("variable", tuple(range(20, 90, 4)), 2)
_REPLAY = Source("replay", tuple(range(10, 40, 3)), 2)
_ONCE = Source("once", tuple(range(50, 60)), 1)

PROGRAMS = {
    # variables 0, 1; data after them; every program ends where its loop runs dry or is cut, so
    # that its result is exact
    "all-round, synchronous": Program(
        sources=(_VARIABLE, _REPLAY, _ONCE),
        nodes=(
            Node("hold", (0,), 1, 4),
            Node("union", (3, 1, 2), 1, 3),
            Node("sum", (4,), 5, 4),
            Node("count", (3,), 3, 4),
        ),
        feedback=(3,),
        outputs=(5, 6),
        criteria=0,
        max_iter=6,
    ),
    "all-round, asynchronous": Program(
        sources=(_VARIABLE, Source("variable", (96, 95, 80), 1)),
        nodes=(
            Node("union", (0, 1), 1, 4),
            Node("count", (2,), 4, 4),
            Node("split", (2,), 1, 3),
        ),
        feedback=(4, 1),
        outputs=(3, 4),
    ),
    "per-round": Program(
        sources=(_VARIABLE, _REPLAY),
        nodes=(
            Node("hold", (0,), 1, 4),
            Node("sum", (1,), 4, 2),
            Node("connect", (2, 3), 2, 3),
            Node("count", (4,), 3, 4),
        ),
        feedback=(2,),
        outputs=(4, 5),
        criteria=0,
        max_iter=6,
        per_round=True,
    ),
    "mixed": Program(
        sources=(_VARIABLE, _REPLAY, _ONCE),
        nodes=(
            Node("round", (0,), 40, 3),
            Node("union", (3, 0), 1, 4),
            Node("hold", (4,), 1, 4),
            Node("round", (1,), 3, 2),
            Node("sum", (2,), 2, 2),
        ),
        feedback=(3,),
        outputs=(5, 6, 7),
        criteria=0,
        max_iter=6,
    ),
    "unbounded": Program(
        sources=(_VARIABLE, _ONCE),
        nodes=(
            Node("count", (0,), 4, 4),
            Node("connect", (0, 1), 1, 2),
            Node("hold", (1,), 1, 2),
        ),
        feedback=(0,),
        outputs=(2, 3, 4),
        unbounded=True,
    ),
    "small": Program(
        sources=(Source("variable", (5, 17, 30, 44), 1), Source("replay", (3, 4), 1)),
        nodes=(Node("hold", (0,), 1, 1), Node("sum", (1,), 2, 1)),
        feedback=(2,),
        outputs=(2, 3),
    ),
}


class FailOnce(IterationListener):
    """Passes records on; fails when ``point`` is reached in ``epoch`` or later, but once.

    Once among all subtasks and attempts: who makes the file ``marker`` fails. ``lose`` is what
    is done just before, given the marker's path: by default nothing.
    """

    def __init__(
        self,
        point: str,
        epoch: int,
        marker: Path,
        pause_s: float,
        lose: Any = None,
        error: type[Exception] = RuntimeError,
    ) -> None:
        self.error = error
        self.point = point
        self.epoch = epoch
        self.marker = str(marker)
        self.pause_s = pause_s
        self.lose = lose

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        out.collect(value)
        self._reach("record", ctx.epoch)

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        self._reach("watermark", epoch)
        # so that a run has time for some checkpoints
        time.sleep(self.pause_s)
        self._reach("replay", epoch)

    def on_iteration_terminated(self, ctx: Any, out: Any) -> None:
        self._reach("end", ctx.epoch)

    def _reach(self, point: str, epoch: int) -> None:
        if point != self.point or epoch < self.epoch:
            return
        try:
            os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        if self.lose is not None:
            self.lose()
        raise self.error(f"injected failure: {point} of epoch {epoch}")


class FailAtRandom(IterationListener):
    """Passes records on; fails at any call with a small chance, at most ``most`` times in all.

    Every failure makes a file in ``folder``. ``often`` multiplies the chances.
    """

    def __init__(
        self,
        seed: int,
        most: int,
        folder: Path,
        pause_s: float,
        lose: Any,
        often: float = 1.0,
    ) -> None:
        self.often = often
        self.seed = seed
        self.most = most
        self.folder = str(folder)
        self.pause_s = pause_s
        self.lose = lose

    def open(self, ctx: Any) -> None:
        failed = len(os.listdir(self.folder))
        self.random = random.Random(f"{self.seed} {ctx.subtask} {failed}")
        self.name = f"{failed}"

    def process_element(self, value: Any, ctx: Any, out: Any) -> None:
        out.collect(value)
        self._perhaps(0.01)

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        self._perhaps(0.04)
        time.sleep(self.pause_s)
        self._perhaps(0.04)

    def on_iteration_terminated(self, ctx: Any, out: Any) -> None:
        self._perhaps(0.2)

    def _perhaps(self, chance: float) -> None:
        if self.random.random() >= self.often * chance or int(self.name) >= self.most:
            return
        try:
            os.close(os.open(f"{self.folder}/{self.name}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        if self.lose is not None:
            self.lose()
        raise RuntimeError(f"failed by chance: {self.name}")


class LoseWire:
    """Empties the Redis server behind a URL: as if it had been restarted."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __call__(self) -> None:
        import redis

        with redis.Redis.from_url(self.url) as client:
            client.flushall()


def failing(function: FailOnce) -> Any:
    """What ``builder(program, between=...)`` takes."""

    def between(stream: IterationStream) -> IterationStream:
        return stream.process(function)

    return between
