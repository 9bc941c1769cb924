"""Rows of many requests go through a network together, in a thread.

onnxruntime releases the interpreter's lock while it computes, so the event loop reads features and
writes replies meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from paimon_features.core.errors import DefinitionError, ModelError, OverloadedError
from paimon_features.core.types.array_types import Array
from paimon_features.serving.prediction.network import OnnxNetwork, Outputs

LOGGER = logging.getLogger("paimon_features.serve")
MAX_ROWS = 32
"""Most rows of one run by default: beyond 16 rows a row gets hardly cheaper, and a run delays all
requests after it."""
MAX_WAITING_ROWS = 65_536
_MOST_SHADOW_ROWS = 1_024


class Prediction:
    """Rows that a network is to predict: ``deliver`` gets its outputs once, or an error.

    ``arrays`` has the inputs; the rows are [start, stop) of them. ``until_s`` is when nobody
    waits any longer (``time.monotonic``), and ``is_wanted`` says whether somebody still does.
    """

    __slots__ = (
        "_deliver", "_is_over", "arrays", "at", "is_wanted", "network", "parts", "start", "stop",
        "until_s",
    )  # fmt: skip

    def __init__(
        self,
        network: OnnxNetwork,
        arrays: Sequence[Array],
        start: int,
        stop: int,
        deliver: Callable[[Outputs | Exception], None],
        *,
        until_s: float = float("inf"),
        is_wanted: Callable[[], bool] | None = None,
    ) -> None:
        self.network = network
        self.arrays = arrays
        self.start = self.at = start
        self.stop = stop
        self.until_s = until_s
        self.is_wanted = is_wanted
        self.parts: list[Outputs] = []
        self._deliver = deliver
        self._is_over = False

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.stop - self.start

    @property
    def is_over(self) -> bool:
        """Whether it was answered or given up."""
        return self._is_over

    def deliver(self, result: Outputs | Exception) -> None:
        """Pass on the outputs or the error, if nothing was passed on yet."""
        if not self._is_over:
            self._is_over = True
            self._deliver(result)

    def give_up(self, reason: str = "the request was given up") -> None:
        """Stop waiting for it; rows that were not run yet will not be."""
        self.deliver(OverloadedError(reason))


@dataclass
class BatcherStats:
    """Counts so far: ``runs`` of a network with ``rows`` rows in ``run_s`` seconds.

    Of shadow versions, ``shadow_rows`` were run and ``shadow_dropped`` had no room.
    """

    runs: int = 0
    rows: int = 0
    run_s: float = 0.0
    shadow_rows: int = 0
    shadow_dropped: int = 0
    late: int = 0


@dataclass(slots=True)
class _Piece:
    """Rows [start, stop) of a prediction, in one run."""

    of: Prediction
    start: int
    stop: int


@dataclass(slots=True)
class _Run:
    """One run of a network, and its outcome."""

    network: OnnxNetwork
    pieces: list[_Piece] = field(default_factory=list)
    rows: int = 0


class Batcher:
    """Runs networks for the requests of one event loop, in a thread of its own.

    ::

        requests  a        b c d           e
        runs      [--- a ----][-- b c d ---][- e -]

    While a run is under way, rows wait; the next run takes those that wait for the same network, at
    most ``max_rows``. A request for more rows is run in parts, and others come in between. With
    ``max_delay_s``, a run waits for that long for more rows, unless it is full: where the load is
    high, runs are large without it. Shadow versions are run while nothing else waits. A run that
    takes more than ``max_run_s`` is ended by ``expire``: a network may loop without an end.

    A run has the rows that there are: padding it to one of a few sizes was measured, and cost more
    than it gained, since onnxruntime computes any number of rows at once on a processor.

    To be used from the thread of one event loop; callers' ``deliver`` are called in it.
    """

    def __init__(
        self,
        *,
        max_rows: int = MAX_ROWS,
        max_delay_s: float = 0.0,
        max_waiting_rows: int = MAX_WAITING_ROWS,
        max_run_s: float = float("inf"),
    ) -> None:
        if max_rows < 1 or max_delay_s < 0 or max_waiting_rows < 1:
            raise DefinitionError(
                f"max_rows={max_rows}, max_delay_s={max_delay_s}, max_waiting_rows="
                f"{max_waiting_rows}: expected at least 1, 0 and 1"
            )
        self.stats = BatcherStats()
        self._max_rows, self._max_delay_s = max_rows, max_delay_s
        self._max_waiting_rows = max_waiting_rows
        self._max_run_s = max_run_s
        self._running: tuple[OnnxNetwork, float] | None = None
        self._waiting: set[Prediction] = set()
        self._waiting_rows = 0
        self._fresh: list[Prediction] = []
        self._shadow_rows = 0
        self._queue: queue.SimpleQueue[tuple[list[Prediction], bool] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    @property
    def waiting_rows(self) -> int:
        """The number of rows that were submitted and not yet answered."""
        return self._waiting_rows

    def submit(self, prediction: Prediction) -> None:
        """Predict in one of the next runs.

        Raises
        ------
        OverloadedError
            If too many rows wait, or the batcher is closed.
        """
        self._start()
        if self._waiting_rows + prediction.rows > self._max_waiting_rows and self._waiting:
            raise OverloadedError(
                f"{self._waiting_rows:,} rows wait for a prediction, the most that may; retry "
                "later, or run more workers"
            )
        if not self._fresh:
            assert self._loop is not None
            self._loop.call_soon(self._pass_on)
        self._fresh.append(prediction)
        self._waiting.add(prediction)
        self._waiting_rows += prediction.rows

    def submit_shadow(self, prediction: Prediction) -> bool:
        """Predict when nothing else is to be done; False if there is no room, which is counted."""
        if self._closed or self._shadow_rows + prediction.rows > _MOST_SHADOW_ROWS:
            self.stats.shadow_dropped += prediction.rows
            return False
        self._start()
        self._shadow_rows += prediction.rows
        self._queue.put(([prediction], True))
        return True

    def expire(self, now_s: float) -> None:
        """Give up what waits for too long, and end a run of more than ``max_run_s``.

        Called now and then.
        """
        running = self._running
        if running is not None and now_s - running[1] > self._max_run_s:
            running[0].stop()
        for prediction in [p for p in self._waiting if p.until_s < now_s]:
            self._late(prediction)

    def close(self) -> None:
        """Reject what waits, and end the thread after its run. A repeat is harmless."""
        self._closed = True
        self._queue.put(None)
        for prediction in [*self._waiting]:
            prediction.give_up("the server is shutting down; use another one")
        self._waiting.clear()

    # -- in the event loop -----------------------------------------------------------------

    def _start(self) -> None:
        if self._closed:
            raise OverloadedError("the server is shutting down; use another one")
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(
                target=self._work, name="predictions", args=(self._loop,), daemon=True
            )
            self._thread.start()

    def _pass_on(self) -> None:
        # all requests of this step of the loop at once: they are to be in one run
        fresh, self._fresh = self._fresh, []
        self._queue.put((fresh, False))

    def _late(self, prediction: Prediction) -> None:
        self.stats.late += 1
        prediction.give_up("the prediction was not made in time; retry later, or run more workers")
        self._settle(prediction)

    def _settle(self, prediction: Prediction) -> None:
        if prediction in self._waiting:
            self._waiting.remove(prediction)
            self._waiting_rows -= prediction.rows

    def _deliver(self, done: Sequence[tuple[Prediction, Outputs | Exception]]) -> None:
        for prediction, result in done:
            try:
                prediction.deliver(result)
            except Exception:  # a defect; the others have their predictions all the same
                LOGGER.exception("a prediction could not be delivered")
            self._settle(prediction)

    def _deliver_shadows(self, done: Sequence[tuple[Prediction, Outputs | Exception]]) -> None:
        self._shadow_rows -= sum(prediction.rows for prediction, _ in done)
        self._deliver(done)

    # -- in the thread ---------------------------------------------------------------------

    def _work(self, loop: asyncio.AbstractEventLoop) -> None:
        todo: deque[Prediction] = deque()
        shadows: deque[Prediction] = deque()
        while self._receive(todo, shadows):
            of = todo or shadows
            deliver = self._deliver if of is todo else self._deliver_shadows
            waiting = [*of]
            try:
                run = self._next_run(of)
                if run.pieces:
                    self._run(loop, run, of, deliver, is_shadow=of is shadows)
            except Exception as error:  # a defect: those who wait get it, and the thread continues
                of.clear()
                _call_in(loop, deliver, [(prediction, error) for prediction in waiting])

    def _receive(self, todo: deque[Prediction], shadows: deque[Prediction]) -> bool:
        """Wait for something to do, and for more of it; False at the end."""
        wait_until_s = 0.0
        while True:
            timeout: float | None = None
            if todo or shadows:
                timeout = max(wait_until_s - time.monotonic(), 0.0) if todo else 0.0
                if timeout and sum(p.stop - p.at for p in todo) >= self._max_rows:
                    timeout = 0.0
            try:
                got = self._queue.get(timeout != 0.0, timeout or None)
            except queue.Empty:
                return True
            if got is None:
                return False
            predictions, is_shadow = got
            if not todo and not is_shadow and self._max_delay_s:
                wait_until_s = time.monotonic() + self._max_delay_s
            (shadows if is_shadow else todo).extend(predictions)

    def _next_run(self, of: deque[Prediction]) -> _Run:
        """Return the rows of the next run, removed from ``of``.

        The rest of a large one waits again.
        """
        run = _Run(of[0].network)
        others: list[Prediction] = []
        again: list[Prediction] = []
        while of and run.rows < self._max_rows:
            prediction = of.popleft()
            if prediction.is_over or (
                prediction.is_wanted is not None and not prediction.is_wanted()
            ):
                # given up, or its client is gone: nobody reads the answer
                self._after_gone(prediction)
                continue
            if prediction.network is not run.network and run.pieces:
                others.append(prediction)
                continue
            run.network = prediction.network
            stop = min(prediction.stop, prediction.at + self._max_rows - run.rows)
            run.pieces.append(_Piece(prediction, prediction.at, stop))
            run.rows += stop - prediction.at
            prediction.at = stop
            if stop < prediction.stop:
                again.append(prediction)
        of.extendleft(reversed(others))
        of.extend(again)
        return run

    def _after_gone(self, prediction: Prediction) -> None:
        loop = self._loop
        assert loop is not None
        error = OverloadedError("the request was given up")
        _call_in(loop, self._deliver, [(prediction, error)])

    def _run(
        self,
        loop: asyncio.AbstractEventLoop,
        run: _Run,
        of: deque[Prediction],
        deliver: Callable[[Sequence[tuple[Prediction, Outputs | Exception]]], None],
        *,
        is_shadow: bool,
    ) -> None:
        started_s = time.perf_counter()
        self._running = run.network, time.monotonic()
        results = _outputs(run.network, run.pieces)
        self._running = None
        stats = self.stats
        if is_shadow:
            stats.shadow_rows += run.rows
        else:
            stats.runs += 1
            stats.rows += run.rows
            stats.run_s += time.perf_counter() - started_s
        done: list[tuple[Prediction, Outputs | Exception]] = []
        for piece, result in zip(run.pieces, results, strict=True):
            prediction = piece.of
            if isinstance(result, Exception):
                prediction.at = prediction.stop
                if of and of[-1] is prediction:
                    of.pop()
                done.append((prediction, result))
                continue
            if piece.start == prediction.start and piece.stop == prediction.stop:
                done.append((prediction, result))
                continue
            prediction.parts.append(result)
            if piece.stop == prediction.stop:
                done.append((prediction, _joined(prediction.parts)))
        if done:
            _call_in(loop, deliver, done)


def _call_in(
    loop: asyncio.AbstractEventLoop,
    deliver: Callable[[Sequence[tuple[Prediction, Outputs | Exception]]], None],
    done: Sequence[tuple[Prediction, Outputs | Exception]],
) -> None:
    try:
        loop.call_soon_threadsafe(deliver, done)
    except RuntimeError:  # the loop is closed: nobody waits any more
        return


def _outputs(network: OnnxNetwork, pieces: Sequence[_Piece]) -> list[Outputs | Exception]:
    """Return the outputs of each piece.

    If the network fails, in halves, until the piece is alone.
    """
    try:
        outputs = network.run(_inputs(pieces))
    except ModelError as error:
        if len(pieces) == 1:
            return [error]
        half = len(pieces) // 2
        return _outputs(network, pieces[:half]) + _outputs(network, pieces[half:])
    except Exception as error:  # a defect: all of them get it
        return [error] * len(pieces)
    if len(pieces) == 1:
        return [outputs]
    out: list[Outputs | Exception] = []
    at = 0
    for piece in pieces:
        end = at + piece.stop - piece.start
        out.append([array[at:end] for array in outputs])
        at = end
    return out


def _inputs(pieces: Sequence[_Piece]) -> list[Array]:
    """Return the inputs of all pieces.

    Without a copy where they follow each other in the same arrays.
    """
    parts: list[tuple[Sequence[Array], int, int]] = []
    for piece in pieces:
        arrays, start = piece.of.arrays, piece.start
        if parts and parts[-1][0] is arrays and parts[-1][2] == start:
            parts[-1] = (arrays, parts[-1][1], piece.stop)
        else:
            parts.append((arrays, start, piece.stop))
    if len(parts) == 1:
        arrays, start, stop = parts[0]
        if start == 0 and stop == len(arrays[0]):
            return list(arrays)
        return [array[start:stop] for array in arrays]
    columns = zip(*([array[s:e] for array in arrays] for arrays, s, e in parts), strict=True)
    return [np.concatenate(column) for column in columns]


def _joined(parts: Sequence[Outputs]) -> Outputs:
    return [np.concatenate(column) for column in zip(*parts, strict=True)]
