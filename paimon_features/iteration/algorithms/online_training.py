"""Online training on the iteration runtime: a new version of the model per global batch.

::

    rows ──► batches (of exactly n rows, cut for the subtasks) ──► part + state ──► partial results
                                                   ▲                                      │
                                                   └───────── next state ◄── combine ◄────┘

Batches follow the order of the rows, so the source needs one subtask; with several, the order in
which their rows arrive decides. Rows that do not fill a last batch produce no version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, overload

from paimon_features.core.errors import DefinitionError, TransformError
from paimon_features.iteration import (
    DataStreamList,
    IterationBodyResult,
    IterationConfig,
    iterate_unbounded_streams,
)
from paimon_features.iteration.algorithms.estimator import (
    MODEL,
    IterativeEstimator,
    TrainingSource,
    to_its_subtask,
)
from paimon_features.iteration.algorithms.training_blocks import (
    TrainingBlock,
    in_order,
    join,
    window,
)
from paimon_features.transformers.flink_ml import Model


class OnlineAlgorithm(Protocol):
    """The steps of an online algorithm; the state circulates and contains the version."""

    def partial(self, state: Any, part: TrainingBlock, parallelism: int) -> Any:
        """Return the contribution of a subtask's part of a batch."""
        ...

    def combine(self, state: Any, partials: Sequence[Any], end_ms: int | None) -> Any:
        """Return the next state from the contributions of all parts, in subtask order."""
        ...

    def model_data(self, state: Any) -> Any:
        """Return the model data of a state."""
        ...


class BatchCutter(Protocol):
    """Decides where a batch ends."""

    def arrived(self, block: TrainingBlock) -> TrainingBlock:
        """Return a block as it is to be cut, when it arrives."""
        ...

    def cut(self, blocks: Sequence[TrainingBlock]) -> tuple[int, int | None] | None:
        """Return the rows of the first batch and its end time, if any; None: incomplete."""
        ...

    def at_end(self, blocks: Sequence[TrainingBlock]) -> tuple[int, int | None] | None:
        """Return the rows of the batch that the end of the input ends; None: it is dropped."""
        ...


class CountCutter:
    """Cuts batches of a fixed number of rows."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def arrived(self, block: TrainingBlock) -> TrainingBlock:
        """Return the block."""
        return block

    def cut(self, blocks: Sequence[TrainingBlock]) -> tuple[int, int | None] | None:
        return (self._rows, None) if sum(map(len, blocks)) >= self._rows else None

    def at_end(self, blocks: Sequence[TrainingBlock]) -> tuple[int, int | None] | None:
        """Return None: a batch has all its rows."""
        return None


class ModelVersions(Sequence[Model]):
    """The versions of an online model, oldest first; ``transform`` uses the newest."""

    def __init__(self, versions: Sequence[Model]) -> None:
        self._versions = list(versions)

    def __len__(self) -> int:
        return len(self._versions)

    @overload
    def __getitem__(self, index: int) -> Model: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Model]: ...
    def __getitem__(self, index: int | slice) -> Model | Sequence[Model]:
        return self._versions[index]

    @property
    def model_data(self) -> Any:
        """The model data of the newest version."""
        return self._newest().model_data

    def transform(self, X: Any) -> Any:
        """Transform ``X`` by the newest version."""
        return self._newest().transform(X)

    def _newest(self) -> Model:
        if not self._versions:
            raise TransformError("no versions: the rows did not fill a batch")
        return self._versions[-1]


@dataclass(frozen=True, kw_only=True)
class OnlineEstimator(IterativeEstimator):
    """An estimator whose program outputs the model data of each version."""

    version_name: ClassVar[str]
    """Where the model data have the version."""

    def _blocks(self, rows: TrainingBlock, parallelism: int) -> list[TrainingBlock]:
        return in_order(rows)

    def _model(self, outputs: list[Any], rows: int) -> ModelVersions:
        # an engine may return versions in another order
        ordered = sorted(outputs, key=lambda data: data[self.version_name])
        names = self.model.data_names
        return ModelVersions(
            [self._new_model({n: data[n] for n in names if n in data}, rows) for data in ordered]
        )


def train_online(
    source: TrainingSource,
    start: Any,
    online: OnlineAlgorithm,
    cutter: BatchCutter,
    parallelism: int,
    config: IterationConfig | None,
) -> Callable[[Any], Any]:
    """Build the program that outputs the model data of each version."""

    def body(variables: DataStreamList, data: DataStreamList) -> IterationBodyResult:
        parts = source.blocks(data.get(0)).process(_Batches(cutter, parallelism)).set_parallelism(1)
        partial = (
            to_its_subtask(parts.name("batches"))
            .connect(variables.get(0).broadcast())
            .process(_Partial(online))
            .set_parallelism(parallelism)
            .name("partial")
        )
        state = partial.process(_Combine(online, parallelism)).set_parallelism(1).name("combine")
        return IterationBodyResult(
            DataStreamList.of(state), DataStreamList.of(state.map(online.model_data))
        )

    def build(job: Any) -> Any:
        outputs = iterate_unbounded_streams(
            DataStreamList.of(job.from_collection([start])),
            DataStreamList.of(source.read(job)),
            body,
            config,
        )
        return {MODEL: outputs.get(0)}

    return build


def check_batch(name: str, rows: int, parallelism: int) -> None:
    """Raise DefinitionError for batches smaller than the parallelism: subtasks would starve."""
    if rows < parallelism:
        raise DefinitionError(
            f"{name}: batches of {rows} rows for {parallelism} subtasks; expected a row for each"
        )


class _Batches:
    """Cuts rows into batches, and each batch into one part per subtask."""

    def __init__(self, cutter: BatchCutter, parallelism: int) -> None:
        self._cutter = cutter
        self._parallelism = parallelism

    def process_element(self, block: TrainingBlock, ctx: Any, out: Any) -> None:
        waiting = ctx.state.list("waiting")
        block = self._cutter.arrived(block)
        blocks = [*waiting.get(), block]
        before = blocks
        while (cut := self._cutter.cut(blocks)) is not None:
            self._emit(blocks, cut, out)
            rows, _ = cut
            blocks = list(window(blocks, rows, sum(map(len, blocks)) - rows))
        if blocks is before:
            waiting.add(block)
        else:
            waiting.update(blocks)

    def end_input(self, ctx: Any, out: Any) -> None:
        waiting = ctx.state.list("waiting")
        blocks = list(waiting.get())
        cut = self._cutter.at_end(blocks)
        if cut is not None:
            self._emit(blocks, cut, out)
        waiting.clear()

    def _emit(self, blocks: Sequence[TrainingBlock], cut: tuple[int, int | None], out: Any) -> None:
        rows, end_ms = cut
        for part in self._parts(join(list(window(blocks, 0, rows)))):
            out.collect(_BatchPart(part.subtask, part, end_ms))

    def _parts(self, batch: TrainingBlock) -> list[TrainingBlock]:
        rows, remainder = divmod(len(batch), self._parallelism)
        out, start = [], 0
        for subtask in range(self._parallelism):
            end = start + rows + (subtask < remainder)
            out.append(replace(batch.part(start, end), subtask=subtask))
            start = end
        return out


@dataclass(frozen=True, slots=True)
class _BatchPart:
    """A subtask's part of a batch, and when the batch ends."""

    subtask: int
    block: TrainingBlock
    end_ms: int | None


class _Partial:
    """Pairs each part of a batch with the state that it applies to."""

    def __init__(self, online: OnlineAlgorithm) -> None:
        self._online = online

    def process_element1(self, part: _BatchPart, ctx: Any, out: Any) -> None:
        ctx.state.list("parts").add(part)
        self._emit_ready(ctx, out)

    def process_element2(self, state: Any, ctx: Any, out: Any) -> None:
        ctx.state.value("state").update(state)
        self._emit_ready(ctx, out)

    def _emit_ready(self, ctx: Any, out: Any) -> None:
        parts, current = ctx.state.list("parts"), ctx.state.value("state")
        waiting, state = parts.get(), current.value()
        if not waiting or state is None:
            return
        first, *rest = waiting
        partial = self._online.partial(state, first.block, ctx.parallelism)
        # one copy of the state is enough
        carried = state if ctx.subtask == 0 else None
        current.clear()
        parts.update(rest)
        out.collect((ctx.subtask, partial, carried, first.end_ms))


class _Combine:
    """Computes the next state once the contributions of all subtasks have arrived."""

    def __init__(self, online: OnlineAlgorithm, parallelism: int) -> None:
        self._online = online
        self._parallelism = parallelism

    def process_element(self, partial: tuple[Any, ...], ctx: Any, out: Any) -> None:
        waiting = ctx.state.list("partials")
        partials = [*waiting.get(), partial]
        if len(partials) < self._parallelism:
            waiting.add(partial)
            return
        waiting.clear()
        partials.sort(key=lambda entry: entry[0])
        _, _, state, end_ms = partials[0]
        out.collect(self._online.combine(state, [entry[1] for entry in partials], end_ms))
