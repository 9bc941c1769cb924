"""``loader``: a reader's batches as tensors, in this process or in a ``DataLoader``'s workers."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Never, TypedDict, Unpack, overload

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from paimon_features.core.errors import ConfigurationError, RequestError
from paimon_features.core.process.closeable import Closeable
from trainer_bridge.adapters.torch.batch import TensorBatch
from trainer_bridge.adapters.torch.misuse import refuse_batches_of_batches, refuse_late_rank
from trainer_bridge.adapters.torch.place import MAX_WORKERS, SharedPlace, tag, version_of
from trainer_bridge.adapters.torch.ranks import rank_and_world_size
from trainer_bridge.adapters.torch.streams import StreamLoader
from trainer_bridge.adapters.torch.tensors import RaggedAs, StackDtype, TensorForm
from trainer_bridge.batches.forms import Batch
from trainer_bridge.order.wrappers import refuse_sharded_again
from trainer_bridge.readers.by_index import refuse_index, refuse_random_split
from trainer_bridge.readers.loops import Loops
from trainer_bridge.readers.snapshot_reader import SnapshotReader
from trainer_bridge.streams.following_reader import FollowingReader

_OF_WORKER = "worker"
_LEFT_EARLY = (
    "the last loop over epoch {} was left early, and the worker processes do not know how many of "
    "their batches it had: say where to continue by "
    "loader.load_state_dict(loader.state_after(batches)) or loader.set_epoch(epoch), use "
    "loader.in_workers(n) in place of DataLoader, which counts, or loader(..., restart=True) for "
    "loops that begin with the epoch"
)


@overload
def loader(
    reader: SnapshotReader,
    *,
    stack: Mapping[str, Sequence[str]] | None = None,
    stack_dtype: StackDtype | None = None,
    keyed: Mapping[str, Sequence[str] | Mapping[str, str]] | None = None,
    ragged: RaggedAs = "nested",
    row_numbers: bool = False,
    pin_memory: bool = False,
    restart: bool = False,
    rank: int | None = None,
    world_size: int | None = None,
    form: Callable[[Batch], TensorBatch] | None = None,
) -> TorchLoader: ...
@overload
def loader(
    reader: FollowingReader,
    *,
    stack: Mapping[str, Sequence[str]] | None = None,
    stack_dtype: StackDtype | None = None,
    keyed: Mapping[str, Sequence[str] | Mapping[str, str]] | None = None,
    ragged: RaggedAs = "nested",
    row_numbers: bool = False,
) -> StreamLoader: ...
def loader(
    reader: SnapshotReader | FollowingReader,
    *,
    stack: Mapping[str, Sequence[str]] | None = None,
    stack_dtype: StackDtype | None = None,
    keyed: Mapping[str, Sequence[str] | Mapping[str, str]] | None = None,
    ragged: RaggedAs = "nested",
    row_numbers: bool = False,
    pin_memory: bool = False,
    restart: bool = False,
    rank: int | None = None,
    world_size: int | None = None,
    form: Callable[[Batch], TensorBatch] | None = None,
) -> TorchLoader | StreamLoader:
    """Return the reader's batches as dicts of tensors, sharing memory with the reader's blocks.

    Iterate over it directly (the reader's threads fetch ahead), or hand it to
    ``DataLoader(..., batch_size=None)`` or torchdata's ``StatefulDataLoader``: worker processes
    then take the batches in turn, and the order stays the same for every number of them. Of a
    ``FollowingReader`` it is a stream, in one process, whose rank and world size are the reader's.

    Numbers come as tensors of shape (rows,), lists of fixed length as (rows, length), others
    as nested tensors of jagged layout.

    Parameters
    ----------
    stack
        Matrices to make, ``{name: columns}``: shape (rows, columns), in place of these
        columns. Columns of one dtype that were read side by side are not copied.
    stack_dtype
        ``"float32"`` or ``"float64"``: the dtype that all columns of stacks are cast to, so that
        counts and means can be one matrix; large integers are rounded.
    keyed
        :class:`~trainer_bridge.adapters.torch.KeyedJagged` to make, ``{name: columns}``, in
        place of these columns (lists, or numbers as lists of one); ``{name: {column:
        weights}}`` with a column of weights for each.
    ragged
        Columns of lists as ``"nested"`` tensors (deeper ones as parts), or all as
        ``"parts"``: :class:`~trainer_bridge.adapters.torch.Jagged`, which keeps the mask of
        null lists.
    row_numbers
        Adds ``row_number``, int64: each row's number in the snapshot.
    pin_memory
        Batches in pinned memory, prepared by a thread one batch ahead, so that
        ``batch.to("cuda", non_blocking=True)`` overlaps with computation. For a loader
        iterated over directly; a ``DataLoader`` has its own ``pin_memory=True``.
    restart
        Every loop reads the complete epoch from its start, and always the same epoch, however the
        last loop ended: for validation. By default a loop resumes where the last one stopped; after
        the last batch it starts the next epoch.
    rank, world_size
        Which share to load. By default the reader's own; if the reader has none, those of
        ``torch.distributed``, otherwise ``RANK`` and ``WORLD_SIZE`` (``torchrun``).
        ``loader.reader`` is the reader of that share.
    form
        What makes tensors of a reader's batch, in place of all of the above that says how; the
        reader may then have ``output="arrow"``. Worker processes get a pickled copy.

    Raises
    ------
    ConfigurationError
        For a reader with ``output="arrow"``, columns that do not go together in one stack or
        key, ``pin_memory`` without a GPU, one of ``rank`` and ``world_size`` without the other.
    UnknownNameError
        For a column in ``stack`` or ``keyed`` that is not read.
    """
    if (rank is None) != (world_size is None):
        raise ConfigurationError("give rank and world_size together, or neither")
    if isinstance(reader, FollowingReader):
        if pin_memory or restart or rank is not None or form is not None:
            raise ConfigurationError(
                "a stream takes rank and world_size where its FollowingReader is made, is "
                "pinned by DataLoader(..., pin_memory=True), has no epochs to restart, and no form="
            )
        return StreamLoader(
            reader, TensorForm(reader, stack or {}, keyed or {}, ragged, row_numbers, stack_dtype)
        )
    if pin_memory and not torch.cuda.is_available():
        raise ConfigurationError(
            "pin_memory=True needs a CUDA device, and there is none: say "
            "pin_memory=torch.cuda.is_available()"
        )
    if form is None:
        form = TensorForm(reader, stack or {}, keyed or {}, ragged, row_numbers, stack_dtype)
    place = (rank, world_size)
    if rank is None and not reader.has_rank:
        place = rank_and_world_size()
    placed = reader
    if place[0] is not None and place != (reader.rank, reader.world_size):
        assert place[1] is not None
        placed = reader.with_rank(place[0], place[1])
    return TorchLoader(
        placed,
        form,
        pin_memory,
        lent=None if placed is reader else reader,
        own_rank=rank is not None or reader.has_rank,
        restart=restart,
    )


class TorchLoader(IterableDataset[TensorBatch], Closeable):
    """Iterable returned by :func:`loader`, with a length and a resumable position.

    The position is that of :attr:`reader`. Worker processes have their own readers, which start
    from it. Workers receive :meth:`set_epoch` and :meth:`load_state_dict`, including those that a
    ``DataLoader`` keeps between epochs (``persistent_workers``), and continue with the next epoch.
    One ``DataLoader`` at a time may read it. A loop that is stopped early is continued by the next
    one. If a plain ``DataLoader`` reads with worker processes, only the loop knows how many batches
    it consumed, and the next loop raises an error unless :meth:`load_state_dict` or
    :meth:`set_epoch` sets where to continue; :meth:`in_workers` counts the batches.

    Attributes
    ----------
    own_rank
        Whether rank and world size were given, not found.
    restart
        Whether every loop begins with the start of the epoch.
    """

    def __init__(
        self,
        reader: SnapshotReader,
        form: Callable[[Batch], TensorBatch],
        pin_memory: bool = False,
        lent: SnapshotReader | None = None,
        own_rank: bool = True,
        restart: bool = False,
    ) -> None:
        super().__init__()
        self.reader = reader
        self.tensors = form
        self.pin_memory = pin_memory
        self._lent = lent
        self.own_rank, self.restart = own_rank, restart
        self._loops = _loops(reader)
        # of the iteration in this process: where it began, and how many batches were delivered
        self._start: str | None = None
        self._count = 0
        # where a counting loop began, and how many batches it has delivered
        self._counted: tuple[dict[str, Any], int] | None = None
        self._known = self._text()
        self._place = SharedPlace(self._known)
        self._version = self._place.version
        # in a worker process: its own id, where its iteration began, the last command it received
        self._process = os.getpid()
        self._base = self._reported = ""
        self._late = False
        self._resumed: tuple[str, int] | None = None

    def __len__(self) -> int:
        """Batches of a complete epoch on this rank; equal on all ranks."""
        refuse_random_split("a loader")
        return len(self.reader)

    def __iter__(self) -> Iterator[TensorBatch]:
        """Return the batches from the loader's position to the end of the epoch."""
        info = get_worker_info()
        self._refuse_misuse(in_worker=info is not None)
        if info is not None:
            return self._share(info.id, info.num_workers)
        self._go_back("used by another loop")
        self._start, self._count = self._text(), 0
        return self._loops.start(self._batches())

    def remaining(self) -> int:
        """Batches of the next loop, the same on every rank; ends one that is running."""
        self._go_back("used by another loop, or for remaining(),")
        return self.reader.remaining()

    def in_workers(self, num_workers: int, **options: Unpack[DataLoaderKeywords]) -> WorkerLoader:
        """Return a ``DataLoader`` over this loader, with torch's options, whose loops count their
        batches.

        So :meth:`state_dict` knows where they are, and a loop that was left is continued.
        """
        return WorkerLoader(self, num_workers, **options)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; stays where it is if it is in that epoch already."""
        self._go_back("moved by set_epoch()")
        before = self._text()
        self.reader.set_epoch(epoch)
        if self._text() != before:
            self._publish()

    def state_dict(self) -> dict[str, Any]:
        """Return what was handed out, as small JSON: see ``SnapshotReader.state_dict``.

        In a worker process, where torchdata requests it, the worker's own place.

        Raises
        ------
        RequestError
            While a plain ``DataLoader`` reads this loader by worker processes, because only
            the loop knows how far it is: see :meth:`state_after`.
        """
        if get_worker_info() is not None:
            return {"kind": _OF_WORKER, "base": self._start, "batches": self._count}
        if self._counted is not None:
            start, count = self._counted
            return self.reader.state_after(count, start)
        if self._begun() is not None:
            raise RequestError(
                "worker processes read this loader, so it does not know how many of their batches "
                "the loop has had: use loader.in_workers(n) in place of DataLoader, or torchdata's "
                "StatefulDataLoader and its state_dict(), or loader.state_after(batches), with the "
                "number of them since the loop began"
            )
        if self.pin_memory and self._start is not None:
            return self.state_after(self._count)  # the reader is ahead
        return self.reader.state_dict()

    def state_after(self, num_batches: int) -> dict[str, Any]:
        """Return the state after ``num_batches`` of the current or last iteration have been
        delivered.

        The same for any number of workers. Before the first iteration, batches are counted from
        the loader's position.
        """
        reader, begun = copy.copy(self.reader), self._begun()
        if begun is not None:
            reader.load_state_dict(_state(self._command()))
            reader.set_epoch(begun[0])
        elif self._start is not None:
            reader.load_state_dict(json.loads(self._start))
        return reader.state_after(num_batches)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the position of a state: see ``SnapshotReader.load_state_dict``."""
        info = get_worker_info()
        if info is not None:
            # by torchdata: this worker continues after the batches that it had handed out
            self._resumed = str(state["base"]), int(state["batches"])
            self._place.resume(self._resumed[0], info.id)
            return
        if state.get("kind") == _OF_WORKER:
            raise RequestError("the state of a worker process; expected that of a loader")
        self._loops.end("moved by load_state_dict()")
        self.reader.load_state_dict(state)
        self._publish()

    def close(self) -> None:
        """Stop the running iteration and release the reader. Idempotent."""
        self._loops.end()
        self.reader.close()
        if self._lent is not None:
            self._lent.close()

    def __getitem__(self, index: object) -> Never:
        """Raise ConfigurationError: a loader has no rows by index."""
        refuse_index("a loader")

    def __getstate__(self) -> dict[str, Any]:
        """For worker processes: the position, without the iteration that runs here."""
        refuse_sharded_again("loader", self.reader.rank, self.reader.world_size)
        return {**vars(self), "_loops": _loops(self.reader), "_lent": None, "_counted": None}

    def _refuse_misuse(self, in_worker: bool) -> None:
        refuse_sharded_again("loader", self.reader.rank, self.reader.world_size)
        refuse_batches_of_batches(self)
        if not self.own_rank:
            refuse_late_rank(self.reader.rank, self.reader.world_size, in_worker)

    def _batches(self) -> Generator[TensorBatch, None, None]:
        batches = map(self.tensors, self.reader)
        for batch in ahead(batches, TensorBatch.pin_memory) if self.pin_memory else batches:
            self._count += 1
            yield batch

    def counted(self, batches: Iterator[TensorBatch]) -> Iterator[TensorBatch]:
        """Return the batches of worker processes that start at the reader's position, counted.

        However the loop ends, the loader is positioned after the batches delivered.
        """
        return self._loops.start(self._counting(batches, self.reader.state_dict()))

    def _counting(
        self, batches: Iterator[TensorBatch], start: dict[str, Any]
    ) -> Generator[TensorBatch, None, None]:
        self._counted = start, 0
        try:
            for count, batch in enumerate(batches, 1):
                self._counted = start, count
                yield batch
        finally:
            state, self._counted = self.state_dict(), None
            del batches  # the workers end before they receive their start
            if not self.restart:
                self.reader.load_state_dict(state)
                self._publish()

    def _go_back(self, how: str) -> None:
        """Stop, and position the reader after the batches delivered, here or by workers."""
        self._loops.end(how)
        if self.restart:
            self.reader.load_state_dict({**json.loads(self._known), "position": 0})
            return
        begun = self._begun()
        if begun is not None:
            command = self._command()
            self.reader.load_state_dict(_state(command))
            ended = self._place.epoch(tag(command), begun[1])
            self.reader.set_epoch(max(self.reader.epoch, ended))
        elif self.pin_memory and self._start is not None:
            self.reader.load_state_dict(self.state_after(self._count))

    def _publish(self) -> None:
        """Send the start position to new and persistent workers."""
        self._start, self._count = None, 0
        self._known = self._text()
        self._place.write(self._known)
        self._version = self._place.version

    def _command(self, reported: str | None = None) -> str:
        """From where workers start that are made now; ``reported``: what the place just said."""
        reported = self._place.read() if reported is None else reported
        place = self._text()
        # a reader that was moved by itself is right; else they may have been resumed elsewhere
        return reported if place == self._known else f"{version_of(reported)} {place}"

    def _begun(self) -> tuple[int, int] | None:
        """Epoch and number of workers that read from this loader's position, if any did."""
        return self._place.begun(tag(self._command()))

    def _text(self) -> str:
        return json.dumps(self.reader.state_dict())

    def _share(self, worker: int, workers: int) -> Iterator[TensorBatch]:
        """In a worker process: its batches."""
        if self.pin_memory:
            raise ConfigurationError(
                "a worker process cannot pin memory: leave pin_memory out in loader(), and say "
                "DataLoader(..., pin_memory=True), which does it in the main process"
            )
        if workers > MAX_WORKERS:
            raise ConfigurationError(f"{workers} workers; expected at most {MAX_WORKERS}")
        self._base, skip = self._reported_to_start(), 0
        if self._resumed is not None:
            skip, self._resumed = self._resumed[1], None
        reader, start = self.reader, tag(self._base)
        state = _state(self._base)
        reader.load_state_dict({**state, "position": 0} if self.restart else state)
        if not self.restart:
            reader.set_epoch(max(reader.epoch, self._place.epoch(start, workers)))
        epoch = reader.epoch
        self._start, self._count = self._text(), skip
        counts = not (self.restart or self._late)
        if counts and not skip and self._place.was_left(start, worker, epoch):
            return _failing(ConfigurationError(_LEFT_EARLY.format(epoch)))
        self._place.begin(start, epoch, workers, worker if counts else None)
        left = len(range(worker, reader.remaining(), workers)) - skip
        if left <= 0:
            self._place.end(start, worker, epoch + 1)

        def share(batches: Iterator[Batch]) -> Iterator[TensorBatch]:
            for batch in batches:
                self._count += 1
                yield self.tensors(batch)
            self._place.end(start, worker, epoch + 1)

        return share(reader.iterate(worker, workers, skip))

    def _reported_to_start(self) -> str:
        """In a worker process: the newest of its initial state and the commands received since."""
        reported = self._place.read()
        if self._process != os.getpid():
            self._process = os.getpid()
            is_resumed = self._resumed is not None or self.restart
            # perhaps of a loop that ended before this process was started, and does not count
            self._late = version_of(reported) != self._version
            base = reported if is_resumed or self._late else self._command(reported)
            # a fork copies locks that threads of the parent may hold: none of them is used
            self.reader = copy.copy(self.reader)
        else:
            self._late = False
            base = self._base if reported == self._reported else reported
        self._reported = reported
        return base


class DataLoaderKeywords(TypedDict, total=False):
    """The options of torch's ``DataLoader`` that a loader of batches in worker processes has."""

    collate_fn: Callable[[Any], Any] | None
    pin_memory: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    generator: torch.Generator | None
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory_device: str


class WorkerLoader(DataLoader[TensorBatch]):
    """What :meth:`TorchLoader.in_workers` returns: worker processes, and the place in the loop."""

    dataset: TorchLoader

    def __init__(
        self, loader: TorchLoader, num_workers: int, **options: Unpack[DataLoaderKeywords]
    ) -> None:
        super().__init__(loader, batch_size=None, num_workers=num_workers, **options)

    def __iter__(self) -> Iterator[TensorBatch]:  # type: ignore[override]
        """Return the batches from the loader's position to the end of the epoch."""
        if not self.num_workers:
            return super().__iter__()
        self.dataset.remaining()  # so that the reader is where the workers start
        return self.dataset.counted(super().__iter__())

    def set_epoch(self, epoch: int) -> None:
        """See ``TorchLoader.set_epoch``."""
        self.dataset.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """See ``TorchLoader.state_dict``."""
        return self.dataset.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See ``TorchLoader.load_state_dict``."""
        self.dataset.load_state_dict(state)


def ahead(
    batches: Iterator[TensorBatch], change: Callable[[TensorBatch], TensorBatch]
) -> Iterator[TensorBatch]:
    """Yield each batch changed, by a thread that is one batch ahead.

    >>> list(ahead(iter([TensorBatch({"n": 1})]), lambda batch: TensorBatch({"n": 2})))
    [{'n': 2}]
    """

    def fetch() -> TensorBatch | None:
        batch = next(batches, None)
        return None if batch is None else change(batch)

    with ThreadPoolExecutor(1, thread_name_prefix="batch-ahead") as pool:
        coming = pool.submit(fetch)
        while (batch := coming.result()) is not None:
            coming = pool.submit(fetch)
            yield batch


def _failing(error: Exception) -> Iterator[TensorBatch]:
    """Raise the error for the first batch: a worker that is kept does not survive one before."""
    yield from ()
    raise error


def _loops(reader: SnapshotReader) -> Loops[TensorBatch]:
    return Loops(f"loader of table {reader.table!r}")


def _state(command: str) -> dict[str, Any]:
    """Return the state that a command of the shared place contains, after its version."""
    document: dict[str, Any] = json.loads(command.split(" ", 1)[1])
    return document
