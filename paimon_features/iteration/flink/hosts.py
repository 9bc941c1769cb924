"""The functions that Flink runs: each passes its input to the runtime and emits the output.

No decisions are made here. A host is shipped with the pickled plan of its stage, and creates the
objects of the runtime from it in ``open``.
"""

from __future__ import annotations

import base64
import functools
import os
import pickle
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyflink.common import Row
from pyflink.datastream import KeyedProcessFunction, OutputTag, ProcessFunction

from paimon_features.core.errors import JobError
from paimon_features.iteration.envelope import Envelope, StageMessage, dumps, encode
from paimon_features.iteration.execution_plan import ControlPlan, ExecutionStage
from paimon_features.iteration.flink.drain import JobDrain
from paimon_features.iteration.flink.edge_messages import (
    KICK,
    SourceRecords,
    SourceSplits,
    message_type,
    pack,
    text_type,
)
from paimon_features.iteration.flink.error_location import errors_located
from paimon_features.iteration.flink.keyed_state import FlinkStateBackend
from paimon_features.iteration.flink.memory_limits import MemoryLimits
from paimon_features.iteration.operators.control import ControlHead
from paimon_features.iteration.operators.subtask import (
    SubtaskRunner,
    TaskOutput,
    source_end,
    source_records,
)
from paimon_features.iteration.wires import ENTRY, Notice, Wire
from paimon_features.iteration.wires.spec import WireSpec

if TYPE_CHECKING:
    from pyflink.datastream import RuntimeContext

END_OF_INPUT = 2**63 - 2
"""A timer at this time fires when all inputs have ended, and can still emit records."""

GATHER_MS = 10
"""How long a head in a separate process waits for the rest of a round's notices: about the time by
which sending a part of them first would delay the others."""

STATE_READER = "read_state"
"""Beam's name of the thread that reads the responses to requests of state."""

WORKER_MODULE = "pyflink.fn_execution.beam.beam_sdk_worker_main"
"""The program of pyflink's workers, also of those that ``workers.server`` forks."""

REPORT_S = 0.1
"""Minimum time between two status reports of the head."""


@dataclass(frozen=True, slots=True)
class StageAddresses:
    """Addresses of one function's messages: the key of every subtask of every downstream stage.

    The stage ``main`` reads the main output, every other stage a side output.
    """

    main: int | None
    keys: Mapping[int, tuple[int, ...]]

    def tags(self) -> dict[int, OutputTag]:
        return {stage: stage_tag(stage) for stage in self.keys if stage != self.main}


def stage_tag(stage: int) -> OutputTag:
    """Return the side output for a stage."""
    return OutputTag(f"to-{stage}", message_type())


def result_tag(index: int) -> OutputTag:
    """Return the side output for the program's result of this index."""
    return OutputTag(f"result-{index}", text_type())


def result_line(values: list[Any]) -> str:
    """Encode values as a line of text."""
    return base64.b64encode(dumps(values)).decode("ascii")


def result_values(line: str) -> list[Any]:
    """Decode the values of a line.

    >>> result_values(result_line([1, (2, "x")]))
    [1, (2, 'x')]
    """
    values = pickle.loads(base64.b64decode(line))
    assert isinstance(values, list)
    return values


class _Sender:
    """Converts messages of the runtime to rows on Flink's edges."""

    def __init__(self, addresses: StageAddresses, memory: MemoryLimits, name: str) -> None:
        self._memory = memory
        self._what = f"iteration: a message of {name!r}"
        self._main = addresses.main
        self._keys = addresses.keys
        self._tags = addresses.tags()
        self._results: dict[int, OutputTag] = {}

    def rows(self, messages: list[StageMessage]) -> Iterator[Any]:
        for stage, subtask, envelopes in messages:
            data = self._memory.checked(encode(envelopes), self._what)
            row = Row(self._keys[stage][subtask], data)
            yield row if stage == self._main else (self._tags[stage], row)

    def results(self, results: list[tuple[int, list[Any]]]) -> Iterator[Any]:
        for index, values in results:
            tag = self._results.get(index)
            if tag is None:
                tag = self._results[index] = result_tag(index)
            yield tag, self._memory.checked(result_line(values), self._what)


@functools.cache
def end_with_state_channel() -> None:
    """End a Python worker whose connection to Flink's state has ended.

    The thread of Beam that reads it dies then, for which nobody looks: the process would wait for a
    response forever, and the job with it. Threads of the JVM have no such connection. A caller in
    whose process the functions run is not ours to end: it gets an error from the job.
    """
    if not is_worker():
        return
    before = threading.excepthook

    def after_death(died: threading.ExceptHookArgs) -> None:
        before(died)
        if died.thread is not None and died.thread.name == STATE_READER:
            print(
                "the connection to Flink's state has ended; if the task manager still runs, its "
                "direct memory was not enough for a record (see its .out file): start the cluster "
                "with --off-heap-mb, or send smaller records",
                file=sys.stderr,
                flush=True,
            )
            os._exit(1)

    threading.excepthook = after_death


def is_worker() -> bool:
    """Return True if Flink started this process for Python functions.

    Not the caller of a local job.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return spec is not None and spec.name == WORKER_MODULE


class StageHost(KeyedProcessFunction):
    """Runs one stage of the program: every subtask has one key and one runner."""

    def __init__(
        self,
        stage: bytes,
        own_keys: tuple[int, ...],
        addresses: StageAddresses,
        wires: WireSpec,
        memory: MemoryLimits,
    ) -> None:
        self._pickled = stage
        self._own_keys = own_keys
        self._addresses = addresses
        self._wires = wires
        self._memory = memory
        self._runner: SubtaskRunner | None = None
        self._key: Any = None

    def open(self, runtime_context: RuntimeContext) -> None:
        end_with_state_channel()
        self._stage: ExecutionStage = pickle.loads(self._pickled)
        self._sender = _Sender(self._addresses, self._memory, self._stage.name)
        self._opened: dict[int, Wire] = {}
        self._state = FlinkStateBackend(runtime_context, self._memory)

    def process_element(self, value: bytes, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        with errors_located():
            yield from self._process(value, ctx)

    def _process(self, value: bytes, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        runner = self._runner
        if runner is None:
            runner = self._make_runner(ctx.get_current_key())
        item = pickle.loads(value)
        if type(item) is list:
            outputs = runner.handle_in_parts(map(Envelope._make, item))
        else:
            outputs = self._feed(runner, item)
        for output in outputs:
            # state is written before output is emitted: a snapshot may be taken after any element
            runner.flush()
            yield from self._sender.rows(output.messages)
            if output.results:
                yield from self._sender.results(output.results)

    def close(self) -> None:
        if self._runner is not None:
            self._runner.close()
        for wire in self._opened.values():
            _close(wire)

    def _feed(
        self, runner: SubtaskRunner, item: SourceRecords | SourceSplits
    ) -> Iterator[TaskOutput]:
        if isinstance(item, SourceSplits):
            for values in item.blocks():
                yield from runner.handle_in_parts(source_records(item.node, values))
            return
        if item.values:
            yield from runner.handle_in_parts(source_records(item.node, item.values))
        if item.ended:
            yield from runner.handle_in_parts(source_end(item.node))

    def _make_runner(self, key: Any) -> SubtaskRunner:
        number = key[0] if isinstance(key, Row | tuple) else key
        if number not in self._own_keys:
            raise JobError(
                f"iteration: stage {self._stage.name!r} got key {number}, which belongs to none of "
                f"its {len(self._own_keys)} subtasks; a savepoint can be resumed only with the "
                "parallelism that it was taken with"
            )
        subtask = self._own_keys.index(number)
        self._runner = SubtaskRunner(
            self._stage, subtask, self._state, self._wire, self._memory.replay
        )
        return self._runner

    def _wire(self, iteration: int) -> Wire:
        if iteration not in self._opened:
            self._opened[iteration] = self._wires.open(iteration)
        return self._opened[iteration]


class _ThrottledWire:
    """A wire that reports the status at most ten times per second, but every change of state; it
    adds the start of the attempt, and the last notice of each reporter."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.publish = wire.publish
        self.take = wire.take
        self._last_notices: dict[str, tuple[int, int]] = {}
        self._status: dict[str, Any] = {}
        self._reported_at = 0.0
        self._pending = False

    def begin(self) -> int:
        generation = self._wire.begin()
        self._last_notices.clear()
        self._status = {"state": "starting", "generation": generation, "since": time.time()}
        self._report_now()
        return generation

    def poll(self, wait_ms: int) -> list[Notice]:
        notices = self._wire.poll(wait_ms)
        for notice in notices:
            if notice.kind != ENTRY:
                self._last_notices[f"{notice.node}:{notice.subtask}"] = notice.kind, notice.epoch
                self._pending = True
        return notices

    def report(self, status: Mapping[str, Any]) -> None:
        changed = status.get("state") != self._status.get("state")
        self._status = {**self._status, **status}
        self._pending = True
        if changed or time.monotonic() - self._reported_at >= REPORT_S:
            self._report_now()

    def idle(self) -> None:
        """Report pending changes: the next notice may arrive much later."""
        if self._pending and time.monotonic() - self._reported_at >= REPORT_S:
            self._report_now()

    def _report_now(self) -> None:
        self._reported_at = time.monotonic()
        self._pending = False
        self._wire.report({**self._status, "at": time.time(), "last_notices": self._last_notices})


class ControlHost(ProcessFunction):
    """Runs the control head, driven by the tick source that it is chained to. Stateless.

    A tick takes at most ``wait_ms``, so that checkpoints can pass. With ``drain``, the head drains
    the job itself when its iteration has ended; otherwise a client does.
    """

    def __init__(
        self,
        plan: bytes,
        addresses: StageAddresses,
        wires: WireSpec,
        memory: MemoryLimits,
        drain: JobDrain | None,
        gather_ms: int,
    ) -> None:
        self._pickled = plan
        self._addresses = addresses
        self._wires = wires
        self._memory = memory
        self._drain = drain
        self._gather_ms = gather_ms
        self._wire: Any = None

    def open(self, runtime_context: RuntimeContext) -> None:
        self._plan: ControlPlan = pickle.loads(self._pickled)
        self._wire = self._wires.open(self._plan.iteration)
        self._sender = _Sender(self._addresses, self._memory, "head")
        self._reports = _ThrottledWire(self._wire)
        self._head = ControlHead(self._plan, self._reports, self._gather_ms)

    def process_element(self, value: int, ctx: ProcessFunction.Context) -> Iterator[Any]:
        head = self._head
        yield from self._sender.rows(head.tick(self._plan.wait_ms))
        self._reports.idle()
        if self._drain is not None and head.finished:
            self._drain.poll()

    def close(self) -> None:
        _close(self._wire)


def _close(wire: Any) -> None:
    """Close the connection of a wire, if it has one."""
    close = getattr(wire, "close", None)
    if close is not None:
        close()


class StreamFeed(ProcessFunction):
    """Distributes the records of a user's stream to the subtasks of a source node."""

    def __init__(self, node: int, keys: tuple[int, ...], memory: MemoryLimits) -> None:
        self._node = node
        self._keys = keys
        self._memory = memory
        self._next = 0

    def process_element(self, value: Any, ctx: ProcessFunction.Context) -> Iterator[Row]:
        self._next = (self._next + 1) % len(self._keys)
        data = pack(SourceRecords(self._node, [value]))
        description = "iteration: a record of job.from_stream"
        yield Row(self._keys[self._next], self._memory.checked(data, description))


class StreamEnd(KeyedProcessFunction):
    """Forwards a user's stream and emits its end. A function is not notified of the end of input,
    but a timer at the end of time fires then; ``KICK`` makes every subtask register one."""

    def __init__(self, node: int) -> None:
        self._node = node

    def process_element(self, value: bytes, ctx: KeyedProcessFunction.Context) -> Iterator[Row]:
        if value == KICK:
            ctx.timer_service().register_event_time_timer(END_OF_INPUT)
        else:
            yield Row(_key(ctx), value)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Row]:
        yield Row(_key(ctx), pack(SourceRecords(self._node, [], ended=True)))


def _key(ctx: Any) -> int:
    key = ctx.get_current_key()
    return int(key[0] if isinstance(key, Row | tuple) else key)
