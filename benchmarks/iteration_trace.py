"""Where the time of one epoch goes: the events of its hops, from all processes of a job.

The wires of a traced job note when the head polls and the stages publish, and in process mode when
Beam's worker gets a bundle and its data. All of them read the same monotonic clock of this machine.
"""

from __future__ import annotations

import os
import statistics
import time
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import cloudpickle

from paimon_features.iteration.flink import job as iteration_job
from paimon_features.iteration.wires.spec import WireSpec

Events = dict[str, list[int]]
"""Times of each kind of event, ns, ascending."""


class TracedWire:
    """A wire that writes the time of each call to a file of this task."""

    def __init__(self, wire: Any, folder: str) -> None:
        self._wire = wire
        self._file = os.open(
            f"{folder}/{os.getpid()}-{id(self)}", os.O_WRONLY | os.O_CREAT | os.O_APPEND
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wire, name)

    def note(self, event: str) -> None:
        os.write(self._file, f"{event} {time.monotonic_ns()}\n".encode())

    def publish(self, generation: int, notices: Any) -> None:
        self.note("publishes")
        self._wire.publish(generation, notices)
        self.note("published")

    def poll(self, wait_ms: int) -> Any:
        found = self._wire.poll(wait_ms)
        if found:
            self.note("polled")
        return found


def trace_beam(wire: TracedWire) -> None:
    """Note the bundles of this worker as well; in a thread of the JVM there are none."""
    try:
        from apache_beam.runners.worker import bundle_processor, data_plane, sdk_worker
    except ImportError:
        return
    process = bundle_processor.BundleProcessor.process_bundle
    inputs = data_plane._GrpcDataChannel.input_elements
    do = sdk_worker.SdkWorker.do_instruction

    def traced_process(self: Any, instruction_id: str) -> Any:
        wire.note("bundle")
        result = process(self, instruction_id)
        wire.note("processed")
        return result

    def traced_inputs(self: Any, *arguments: Any) -> Iterator[Any]:
        for element in inputs(self, *arguments):
            wire.note("input")
            yield element

    def traced_do(self: Any, request: Any) -> Any:
        result = do(self, request)
        if request.HasField("process_bundle"):
            wire.note("answered")
        return result

    bundle_processor.BundleProcessor.process_bundle = traced_process
    data_plane._GrpcDataChannel.input_elements = traced_inputs
    sdk_worker.SdkWorker.do_instruction = traced_do


@contextmanager
def traced(folder: Path) -> Iterator[None]:
    """Trace the jobs that are submitted inside the block; the events are in files of ``folder``."""
    import benchmarks.iteration_trace as own

    cloudpickle.register_pickle_by_value(own)
    where = str(folder)

    class TracedWireSpec(WireSpec):
        def open(self, iteration: int) -> Any:
            wire = TracedWire(WireSpec.open(self, iteration), where)
            trace_beam(wire)
            return wire

    folder.mkdir()
    plain, iteration_job.WireSpec = iteration_job.WireSpec, TracedWireSpec  # type: ignore[misc]
    try:
        yield
    finally:
        iteration_job.WireSpec = plain  # type: ignore[misc]


def read_events(folder: Path) -> tuple[Events, list[Events]]:
    """Return the events of the head, and those of each task of a stage that publishes."""
    head: Events = {}
    stages: list[Events] = []
    for path in sorted(folder.iterdir()):
        events: Events = defaultdict(list)
        for line in path.read_text("ascii").splitlines():
            event, at = line.split()
            events[event].append(int(at))
        if "polled" in events:
            head = events
        elif "publishes" in events:
            stages.append(events)
    return head, stages


def hops(head: Events, stages: list[Events]) -> dict[str, float]:
    """Return the median time of each hop on the way of an epoch, ms, and of all together.

    Every subtask publishes once an epoch; an epoch is from the publication of the slowest one to
    the next. The hops of an epoch add up to it, their medians nearly.
    """
    taken: dict[str, list[float]] = defaultdict(list)
    first = stages[0]["publishes"][20:-5]  # without the start and the end of the job
    for one, following in pairwise(first):
        published = max(_published(stage, one) for stage in stages)
        slowest = max(stages, key=lambda stage: _published(stage, following))
        start = _nearest(slowest["publishes"], following)
        at = [published, _before(head["polled"], start)]
        names = ["wire: published until the head has polled"]
        if "bundle" in slowest:
            processed = _after(head["processed"], at[1])
            answered = _after(head["answered"], processed)
            given = _before(slowest["input"], start)
            bundle = max(_before(slowest["bundle"], given), answered)
            at += [processed, answered, bundle, given, start]
            names += [
                "head: decides, Beam's output",
                "head: answers its bundle",
                "JVM: reads the answer, edge, requests a bundle of the stage",
                "JVM: waits for more records, sends them",
                "stage: Python, up to the publication",
            ]
        else:
            at += [start]
            names += ["head, JVM, stage: up to the publication"]
        at += [_published(slowest, following)]
        names += ["stage: publishes"]
        if at != sorted(at):
            continue  # a checkpoint or a tick came between
        for name, (begin, end) in zip(names, pairwise(at), strict=True):
            taken[name].append(end - begin)
        taken["an epoch"].append(at[-1] - at[0])
    return {hop: statistics.median(values) / 1e6 for hop, values in taken.items()}


def _published(stage: Events, near: int) -> int:
    """Return when a subtask had published what it began to publish next to a time."""
    return _after(stage["published"], _nearest(stage["publishes"], near))


def _nearest(times: list[int], at: int) -> int:
    return min(_before(times, at), _after(times, at), key=lambda time_ns: abs(time_ns - at))


def _before(times: list[int], at: int) -> int:
    return times[max(bisect_right(times, at) - 1, 0)]


def _after(times: list[int], at: int) -> int:
    return times[min(bisect_left(times, at), len(times) - 1)]
