"""Flink's transformations for the plan of a program.

Every stage is one keyed function. Its inputs, from stages of any parallelism, are a union keyed by
the subtask's key, without a Python stage in between: rows of one sender stay in order. There is one
output per downstream stage.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import cloudpickle

from paimon_features.core.errors import JobError
from paimon_features.flink.environment import flink_errors
from paimon_features.iteration.dataflow import DataflowNode, NodeKind
from paimon_features.iteration.execution_plan import ControlPlan, ExecutionPlan, ExecutionStage
from paimon_features.iteration.flink.drain import JobDrain
from paimon_features.iteration.flink.edge_messages import KICK, message_type, subtask_keys
from paimon_features.iteration.flink.hosts import (
    GATHER_MS,
    ControlHost,
    StageAddresses,
    StageHost,
    StreamEnd,
    StreamFeed,
    result_tag,
    stage_tag,
)
from paimon_features.iteration.flink.job_settings import MAX_PARALLELISM
from paimon_features.iteration.flink.memory_limits import MemoryLimits
from paimon_features.iteration.flink.outputs import IterationOutput
from paimon_features.iteration.flink.source_functions import FlinkSource, source_messages
from paimon_features.iteration.wires.spec import WireSpec

if TYPE_CHECKING:
    from pyflink.datastream import DataStream, StreamExecutionEnvironment
    from pyflink.datastream.data_stream import KeyedStream

_log = logging.getLogger(__name__)

ENDLESS = 2**60
"""Number of ticks, practically unbounded."""


@dataclass(frozen=True, slots=True)
class BundleLimits:
    """Size and time limits of the bundles that an operator passes to Python in process mode."""

    size: int
    time_ms: int


HEAD_BUNDLES = BundleLimits(1, 1)
"""Output of a head has to be sent at once: it may wait for the response in its next call."""

REPLAY_CACHES: Mapping[str, str] = {
    "python.map-state.read-cache-size": "8",
    "python.map-state.write-cache-size": "8",
}
"""Number of state entries that a subtask caches in Python in process mode (1,000 by default):
entries of replayed data are large, and read once per epoch."""


class Topology:
    """Adds the operators of one program to an environment."""

    def __init__(
        self,
        env: StreamExecutionEnvironment,
        plan: ExecutionPlan,
        wires: WireSpec,
        memory: MemoryLimits,
        *,
        process_mode: bool,
        bundle_ms: int,
        drain: JobDrain | None,
    ) -> None:
        from pyflink.java_gateway import get_gateway

        self._env = env
        self._plan = plan
        self._wires = wires
        self._memory = memory
        self._process_mode = process_mode
        self._bundle_ms = bundle_ms
        self._drain = drain
        self._jvm: Any = get_gateway().jvm
        self._inputs: dict[int, list[Any]] = defaultdict(list)

    def build(self, outputs: Sequence[IterationOutput]) -> None:
        """Add all operators; ``outputs`` are in the order of the program's results.

        Raises
        ------
        JobError
            If Flink rejects them.
        """
        with flink_errors("building an iteration job"):
            for node in self._plan.sources:
                self._source(node)
            for control in self._plan.controls:
                self._control(control)
            for stage in self._plan.stages:
                self._stage(stage, outputs)

    def check(self) -> None:
        """Check that every head is chained to its ticks; otherwise no checkpoint could complete."""
        with flink_errors("checking the plan of an iteration job"):
            graph = self._env._generate_stream_graph(clear_transformations=False).getJobGraph()
            vertices = graph.getVertices().iterator()
            names = []
            while vertices.hasNext():
                names.append(str(vertices.next().getName()))
        for control in self._plan.controls:
            wanted = f"Source: {_ticks(control)} -> {_head(control)}"
            if wanted not in names:
                raise JobError(
                    f"iteration: Flink does not chain {_head(control)!r} to its ticks, so no "
                    "checkpoint would complete; leave pipeline.operator-chaining.enabled on. "
                    f"It runs: {', '.join(names)}"
                )

    def _source(self, node: DataflowNode) -> None:
        stage = self._plan.stage_of(node.id)
        keys = subtask_keys(stage.parallelism)
        source = node.source
        if not isinstance(source, FlinkSource):
            java = message_source(
                self._env,
                source_messages(source, node, keys, self._memory),
                f"{node.name} {node.id}",
                f"source-{node.id}",
            )
            self._inputs[stage.id].append(java)
            return
        for name in restarting_sources(source.stream):
            _log.warning(
                "stream %r: its source %r keeps no position in checkpoints; after a failure it "
                "begins again, and its records enter the iteration once more. Use "
                "job.from_collection, or a source of env.from_source",
                node.name,
                name,
            )
        # a stream of the user: a timer detects its end, in an operator without other inputs
        fed = source.stream.process(StreamFeed(node.id, keys, self._memory), message_type())
        fed.name(f"{node.name} {node.id} feed").uid(f"feed-{node.id}")
        fed.set_parallelism(source.stream._j_data_stream.getParallelism())
        kicks = message_source(
            self._env, [(key, KICK) for key in keys], "kicks", f"kicks-{node.id}"
        )
        ended = keyed_union([fed._j_data_stream, kicks])
        end = ended.process(StreamEnd(node.id), message_type()).name(f"{node.name} {node.id} end")
        self._configure(end, f"end-{node.id}", stage.parallelism)
        self._inputs[stage.id].append(end._j_data_stream)

    def _control(self, control: ControlPlan) -> None:
        from pyflink.datastream.data_stream import DataStream

        java = self._jvm.org.apache.flink.api
        ticks = self._env._j_stream_execution_environment.fromSource(
            java.connector.source.lib.NumberSequenceSource(0, ENDLESS),
            java.common.eventtime.WatermarkStrategy.noWatermarks(),
            _ticks(control),
        )
        ticks.setParallelism(1).uid(f"ticks-{control.iteration}")
        addresses = self._addresses(control.targets)
        gather_ms = GATHER_MS if self._process_mode else 0
        host = ControlHost(
            cloudpickle.dumps(control),
            addresses,
            self._wires,
            self._memory,
            self._drain,
            gather_ms,
        )
        head = DataStream(ticks).process(host, message_type()).name(_head(control))
        head.uid(f"head-{control.iteration}").set_parallelism(1).set_max_parallelism(1)
        self._bundle(head, HEAD_BUNDLES)
        self._connect(head, addresses)

    def _stage(self, stage: ExecutionStage, outputs: Sequence[IterationOutput]) -> None:
        from pyflink.datastream.data_stream import DataStream

        addresses = self._addresses(
            tuple(target for source, target in self._plan.edges if source == stage.id)
        )
        keys = subtask_keys(stage.parallelism)
        host = StageHost(cloudpickle.dumps(stage), keys, addresses, self._wires, self._memory)
        stream = keyed_union(self._inputs[stage.id]).process(host, message_type()).name(stage.name)
        replays = any(node.kind is NodeKind.REPLAY for node in stage.nodes)
        self._configure(
            stream, f"stage-{stage.id}", stage.parallelism, REPLAY_CACHES if replays else {}
        )
        self._connect(stream, addresses)
        for node in stage.nodes:
            if node.kind is NodeKind.RESULT:
                lines = stream._j_data_stream.getSideOutput(
                    result_tag(node.index).get_java_output_tag()
                )
                uid = f"sink-{node.index}"
                outputs[node.index].attach(DataStream(lines), stage.parallelism, uid)

    def _configure(
        self,
        stream: DataStream,
        uid: str,
        parallelism: int,
        options: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        stream.uid(uid).set_parallelism(parallelism).set_max_parallelism(MAX_PARALLELISM)
        self._bundle(stream, BundleLimits(1_000, self._bundle_ms), options)

    def _addresses(self, stages: tuple[int, ...]) -> StageAddresses:
        keys = {to: subtask_keys(self._plan.stages[to].parallelism) for to in stages}
        return StageAddresses(stages[0] if stages else None, keys)

    def _connect(self, stream: DataStream, addresses: StageAddresses) -> None:
        for stage in addresses.keys:
            java = stream._j_data_stream
            if stage != addresses.main:
                java = java.getSideOutput(stage_tag(stage).get_java_output_tag())
            self._inputs[stage].append(java)

    def _bundle(
        self,
        stream: DataStream,
        bundles: BundleLimits,
        options: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Set options of one operator; those of the environment apply to all operators."""
        if not self._process_mode:
            return
        operator = stream._j_data_stream.getTransformation().getOperatorFactory().getOperator()
        kind = self._jvm.java.lang.Class.forName(
            "org.apache.flink.streaming.api.operators.python.AbstractPythonFunctionOperator"
        )
        field = kind.getDeclaredField("config")
        field.setAccessible(True)
        config = self._jvm.org.apache.flink.configuration.Configuration(field.get(operator))
        config.setString("python.fn-execution.bundle.size", str(bundles.size))
        config.setString("python.fn-execution.bundle.time", str(bundles.time_ms))
        for name, value in options.items():
            config.setString(name, value)
        field.set(operator, config)


def _ticks(control: ControlPlan) -> str:
    return f"ticks-{control.iteration}"


def _head(control: ControlPlan) -> str:
    return f"head-{control.iteration}"


def keyed_union(streams: Sequence[Any]) -> KeyedStream:
    """Merge Java streams of messages, and send each message to the subtask of its key.

    ``key_by`` of pyflink would add a Python stage, and reject streams of different parallelism;
    here, the messages of one sender stay in order.
    """
    from pyflink.common import Types
    from pyflink.datastream.data_stream import DataStream, KeyedStream
    from pyflink.java_gateway import get_gateway

    gateway: Any = get_gateway()
    java = gateway.jvm.org.apache.flink.streaming.api
    united = streams[0]
    if len(streams) > 1:
        others = gateway.new_array(java.datastream.DataStream, len(streams) - 1)
        for index, other in enumerate(streams[1:]):
            others[index] = other
        united = united.union(others)
    # pyflink imports this class by its simple name: its package differs between releases
    selector = gateway.jvm.KeyByKeySelector()
    keyed = united.keyBy(selector, Types.ROW([Types.INT()]).get_java_type_info())
    return KeyedStream(keyed, message_type(), DataStream(united))


def restarting_sources(stream: DataStream) -> list[str]:
    """Return the sources of a stream that begin again after a failure, such as pyflink's
    collections."""
    from pyflink.java_gateway import get_gateway
    from pyflink.util.java_utils import is_instance_of

    java = get_gateway().jvm.org.apache.flink.streaming.api
    names = []
    for step in stream._j_data_stream.getTransformation().getTransitivePredecessors():
        if is_instance_of(step, java.transformations.LegacySourceTransformation):
            function = step.getOperator().getUserFunction()
            if not is_instance_of(function, java.checkpoint.CheckpointedFunction):
                names.append(str(step.getName()))
    return names


def message_source(
    env: StreamExecutionEnvironment, messages: Sequence[tuple[int, bytes]], name: str, uid: str
) -> Any:
    """Return a bounded Java stream of messages, in this order.

    A checkpoint contains its read position, unlike with pyflink's ``from_collection``.
    """
    from pyflink.java_gateway import get_gateway

    jvm: Any = get_gateway().jvm
    rows = jvm.java.util.ArrayList()
    for key, data in messages:
        row = jvm.org.apache.flink.types.Row(2)
        row.setField(0, key)
        row.setField(1, data)
        rows.add(row)
    java = env._j_stream_execution_environment
    source = java.fromData(rows, message_type().get_java_type_info())
    return source.setParallelism(1).name(name).uid(uid)
