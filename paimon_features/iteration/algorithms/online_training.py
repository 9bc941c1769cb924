"""Online algorithms on the runtime: a new version of the model for each global batch.

::

    rows ──► batches (of exactly n rows, cut for the subtasks) ──► part + model ──► partial results
                                                   ▲                                      │
                                                   └──────── new version ◄── combined ◄───┘

Batches are in the order of the rows, so the source has one subtask, or its order decides.
Rows that do not fill a last batch make no version.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, overload

from paimon_features.errors import DefinitionError, TransformError
from paimon_features.iteration import (
    DataStreamList,
    IterationBodyResult,
    IterationConfig,
    iterate_unbounded_streams,
)
from paimon_features.iteration.algorithms.estimator import MODEL, TrainingSource, to_its_subtask
from paimon_features.iteration.algorithms.training_blocks import TrainingBlock, join, window
from paimon_features.transformers.flink_ml import Model


class Online(Protocol):
    """One version after the other: what goes around is the state, with the version in it."""

    def partial(self, state: Any, part: TrainingBlock, parallelism: int) -> Any:
        """What a subtask's part of a batch adds."""
        ...

    def combine(self, state: Any, partials: Sequence[Any], end_ms: int | None) -> Any:
        """The next state, of what all parts add, in the order of the subtasks."""
        ...

    def model_data(self, state: Any) -> Any:
        """The model data of a state."""
        ...


class Cutter(Protocol):
    """Where a batch ends."""

    def cut(self, blocks: Sequence[TrainingBlock]) -> tuple[int, int | None] | None:
        """The number of rows of the first batch, and its end if it has one; None: not yet."""
        ...


class CountCutter:
    """A batch is a number of rows."""

    def __init__(self, rows: int) -> None:
        self._rows = rows

    def cut(self, blocks: Sequence[TrainingBlock]) -> tuple[int, int | None] | None:
        return (self._rows, None) if sum(map(len, blocks)) >= self._rows else None


class ModelVersions(Sequence[Model]):
    """The versions of an online model, oldest first; it transforms by the newest."""

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
        """``X`` by the newest version."""
        return self._newest().transform(X)

    def _newest(self) -> Model:
        if not self._versions:
            raise TransformError("there is no version: the rows did not fill one batch")
        return self._versions[-1]


def train_online(
    source: TrainingSource,
    start: Any,
    online: Online,
    cutter: Cutter,
    parallelism: int,
    config: IterationConfig | None,
) -> Callable[[Any], Any]:
    """The program that gives the model data of each version."""

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
    """DefinitionError for batches with fewer rows than subtasks: some would wait for ever."""
    if rows < parallelism:
        raise DefinitionError(
            f"{name}: batches of {rows} rows for {parallelism} subtasks; expected a row for each"
        )


def in_turn(found: Sequence[Any], version: str) -> list[Any]:
    """Model data by their versions; an engine may give them in another order."""
    return sorted(found, key=lambda data: data[version])


class _Batches:
    """Rows in batches, each cut into a part for every subtask."""

    def __init__(self, cutter: Cutter, parallelism: int) -> None:
        self._cutter = cutter
        self._parallelism = parallelism

    def process_element(self, block: TrainingBlock, ctx: Any, out: Any) -> None:
        waiting = ctx.state.list("waiting")
        blocks = [*waiting.get(), block]
        before = blocks
        while (cut := self._cutter.cut(blocks)) is not None:
            rows, end_ms = cut
            batch = join(list(window(blocks, 0, rows)))
            for part in self._parts(batch):
                out.collect(_Part(part.subtask, part, end_ms))
            blocks = list(window(blocks, rows, sum(map(len, blocks)) - rows))
        if blocks is before:
            waiting.add(block)
        else:
            waiting.update(blocks)

    def _parts(self, batch: TrainingBlock) -> list[TrainingBlock]:
        whole, over = divmod(len(batch), self._parallelism)
        out, start = [], 0
        for subtask in range(self._parallelism):
            end = start + whole + (subtask < over)
            part = batch.part(start, end)
            out.append(
                TrainingBlock(part.features, part.labels, part.weights, part.times_ms, subtask)
            )
            start = end
        return out


class _Part:
    """A subtask's part of a batch, and when the batch ends."""

    __slots__ = ("block", "end_ms", "subtask")

    def __init__(self, subtask: int, block: TrainingBlock, end_ms: int | None) -> None:
        self.subtask = subtask
        self.block = block
        self.end_ms = end_ms


class _Partial:
    """Waits for a part of a batch and for the model to be applied to it."""

    def __init__(self, online: Online) -> None:
        self._online = online

    def process_element1(self, part: _Part, ctx: Any, out: Any) -> None:
        ctx.state.list("parts").add(part)
        self._go(ctx, out)

    def process_element2(self, state: Any, ctx: Any, out: Any) -> None:
        ctx.state.value("state").update(state)
        self._go(ctx, out)

    def _go(self, ctx: Any, out: Any) -> None:
        parts, held = ctx.state.list("parts"), ctx.state.value("state")
        waiting, state = parts.get(), held.value()
        if not waiting or state is None:
            return
        first, *rest = waiting
        made = self._online.partial(state, first.block, ctx.parallelism)
        # one copy of the state is enough
        carried = state if ctx.subtask == 0 else None
        held.clear()
        parts.update(rest)
        out.collect((ctx.subtask, made, carried, first.end_ms))


class _Combine:
    """The next state when the partial results of all subtasks have come."""

    def __init__(self, online: Online, parallelism: int) -> None:
        self._online = online
        self._parallelism = parallelism

    def process_element(self, partial: tuple[Any, ...], ctx: Any, out: Any) -> None:
        waiting = ctx.state.list("partials")
        partials = [*waiting.get(), partial]
        if len(partials) < self._parallelism:
            waiting.add(partial)
            return
        waiting.clear()
        partials.sort(key=lambda each: each[0])
        made = [each[1] for each in partials]
        out.collect(self._online.combine(partials[0][2], made, partials[0][3]))
