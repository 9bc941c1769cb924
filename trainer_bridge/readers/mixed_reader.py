"""Several readers as one, in given shares: hard examples and fresh data, tables of two sources.

The blocks of all of them are those of one reader, and a :class:`Mixture` says which row comes when,
as a sampler does. What the shares mean for the order is in ``trainer_bridge.order.interleave``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd, lcm
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from paimon_features.array_types import Ints
from paimon_features.errors import ConfigurationError, RequestError
from trainer_bridge.batches.forms import ArrowForm, Form, NumpyForm
from trainer_bridge.blocks.opening import Opened
from trainer_bridge.blocks.snapshot_blocks import Block, Layout
from trainer_bridge.order.global_order import GlobalOrder
from trainer_bridge.order.interleave import Interleave, shares_of
from trainer_bridge.order.shard import Shard
from trainer_bridge.order.state import check_numbers, check_position
from trainer_bridge.readers.read_ahead import Assembler, Work
from trainer_bridge.readers.snapshot_reader import RowSampler, SnapshotReader
from trainer_bridge.samplers.poisson import PoissonSampler

VERSION = 1


def mix(
    readers: Sequence[SnapshotReader], weights: Sequence[float], rows_per_epoch: int | None = None
) -> MixedReader:
    """One reader of the rows of several, in the shares that the weights say.

    Every batch has about these shares (within a few rows), on every rank. Each reader is read
    through its own epochs, one after the other, each of them once and, to a round, in the order
    that it has by itself; an epoch of the mixture goes on where the one before left off, so
    every row of a reader comes equally often in the long run.

    Parameters
    ----------
    readers
        At least two, with the same columns. Batch size, rank, threads, budget and what becomes
        of the last rows are those of the first one; seed, snapshot, shuffle and sampler are each
        one's own, its place is not taken over. A reader may come from ``with_sampler``.
    weights
        One number > 0 per reader. They are kept to thousandths of the whole.
    rows_per_epoch
        Rows of an epoch of the mixture, over all ranks. By default as many whole rounds as the
        reader that is through first has rows for: then no row comes twice in epoch 0. A round
        is what the shares add up to times the classes (``trainer_bridge.order.interleave``).

    Raises
    ------
    ConfigurationError
        For readers that do not go together, or weights that are no shares.
    """
    return MixedReader(readers, weights, rows_per_epoch)


class Mixture:
    """The rows of several readers by position: what a sampler is to one reader.

    Row numbers count through the sources: those of source i begin at ``first_rows[i]``.
    """

    def __init__(
        self, sources: Sequence[SnapshotReader], shares: tuple[int, ...], num_samples: int | None
    ) -> None:
        self.sources = [_Source(reader) for reader in sources]
        rows = [source.length for source in self.sources]
        # fewer classes where a round would be longer than a small table
        whole = lcm(*(source.streams for source in self.sources))
        fitting = [
            d
            for d in range(1, whole + 1)
            if whole % d == 0 and all(d * a <= n for a, n in zip(shares, rows, strict=True))
        ]
        self.interleave = Interleave(shares, max(fitting, default=1))
        per_round = [self.interleave.classes * share for share in shares]
        rounds = min(n // each for n, each in zip(rows, per_round, strict=True))
        self.num_samples = num_samples or max(rounds, 1) * self.interleave.round_rows
        tables = [source.reader.num_rows for source in self.sources]
        self.first_rows: Ints = np.concatenate([[0], np.cumsum(tables)]).astype(np.int64)
        self.num_rows = int(self.first_rows[-1])
        self.batch_multiple = 1
        blocks = [len(source.reader.layout.blocks) for source in self.sources]
        self._first_blocks: Ints = np.concatenate([[0], np.cumsum(blocks)]).astype(np.int64)

    def epoch_size(self, epoch: int) -> int:
        """Rows of an epoch: as many in each."""
        return self.num_samples

    def draw(self, epoch: int, positions: Ints) -> Ints:
        """Row numbers at positions of an epoch: a pure function."""
        found = np.empty(len(positions), dtype=np.int64)
        for number, source, where, own in self._split(epoch, positions):
            found[where] = source.rows(own) + self.first_rows[number]
        return found

    def loss_weights(self, indices: Ints) -> npt.NDArray[np.float32] | None:
        """Those of the sources' samplers, 1 for rows of a source without; None if none has."""
        home = np.searchsorted(self.first_rows, indices, side="right") - 1
        weights = np.ones(len(indices), dtype=np.float32)
        some = False
        for number, source in enumerate(self.sources):
            own = home == number
            found = source.loss_weights(indices[own] - self.first_rows[number])
            if found is not None:
                weights[own], some = found, True
        return weights if some else None

    def identity(self) -> dict[str, Any]:
        """What the order depends on besides the sources, as small JSON."""
        return {
            "shares": list(self.interleave.shares),
            "classes": self.interleave.classes,
            "rows": self.num_samples,
        }

    def open_blocks(self, epoch: int, work: Work, step: int) -> Ints:
        """Blocks that the positions of some work can touch and will go on touching.

        ``step`` is what all positions of a rank are equal in, modulo: 1 if in nothing.
        """
        opened = []
        positions = work.positions[work.positions < self.num_samples]
        for number, source, _, own in self._split(epoch, positions):
            common = gcd(step, self.interleave.classes)
            opened.append(source.open_blocks(own, common) + self._first_blocks[number])
        return np.concatenate(opened)

    def _split(self, epoch: int, positions: Ints) -> list[tuple[int, _Source, Ints, Ints]]:
        """Per source that comes: its number, it, where it comes, its positions there."""
        home, own = self.interleave.split(positions + epoch * self.num_samples)
        found = []
        for number, source in enumerate(self.sources):
            where = np.flatnonzero(home == number)
            if len(where):
                found.append((number, source, where, own[where]))
        return found


class _Source:
    """One reader of a mixture: its epochs, one after the other, as one sequence of positions."""

    def __init__(self, reader: SnapshotReader) -> None:
        self.reader = reader
        self.sampler: RowSampler | None = reader.sampler
        if self.sampler is not None:
            _check_sampler(self.sampler)
        self.length = reader.num_rows if self.sampler is None else self.sampler.epoch_size(0)
        self.streams = 1 if self.sampler is not None else reader._streams_in_use
        self._orders: dict[int, GlobalOrder] = {}

    def rows(self, positions: Ints) -> Ints:
        epochs, within = np.divmod(positions, self.length)
        found = np.empty(len(positions), dtype=np.int64)
        for epoch in np.unique(epochs).tolist():
            part = epochs == epoch
            found[part] = self._rows(epoch, within[part])
        return found

    def loss_weights(self, rows: Ints) -> npt.NDArray[Any] | None:
        return None if self.sampler is None else self.sampler.loss_weights(rows)

    def open_blocks(self, positions: Ints, common: int) -> Ints:
        epochs, within = np.divmod(positions, self.length)
        opened = []
        for epoch in np.unique(epochs).tolist():
            own = within[epochs == epoch]
            if self.sampler is not None:
                firsts = np.array([block.first_row for block in self.reader.layout.blocks])
                home = np.searchsorted(firsts, self._rows(epoch, own), side="right") - 1
                opened.append(np.unique(home))
                continue
            step = gcd(common, self.streams)
            streams = np.arange(int(own[0]) % step, self.streams, step, dtype=np.int64)
            low, high = int(own.min()), int(own.max())
            opened.append(self._order(epoch).open_blocks(low, high + 1, streams))
        return np.concatenate(opened)

    def _rows(self, epoch: int, within: Ints) -> Ints:
        if self.sampler is not None:
            return self.sampler.draw(epoch, within)
        return self._order(epoch).rows(within)

    def _order(self, epoch: int) -> GlobalOrder:
        if epoch not in self._orders:
            while len(self._orders) > 1:  # the one that ends and the one that begins
                del self._orders[min(self._orders)]
            self._orders[epoch] = self.reader.order(epoch)
        return self._orders[epoch]


def _check_sampler(sampler: RowSampler) -> None:
    """Raise ConfigurationError for a sampler whose draws mean nothing among those of others."""
    if isinstance(sampler, PoissonSampler):
        raise ConfigurationError(
            "a reader with a PoissonSampler has another number of rows in each epoch, and a "
            "mixture counts them: draw its rows by WeightedRandomSampler"
        )
    if sampler.batch_multiple > 1:
        raise ConfigurationError(
            f"a reader with a {type(sampler).__name__} makes whole batches, which a mixture would "
            "take apart: draw its rows by a sampler of rows, or balance by the mixture's weights"
        )


@dataclass(frozen=True)
class MixedLayout(Layout):
    """The blocks of several layouts, numbered through."""

    parts: tuple[Layout, ...] = ()

    @classmethod
    def of(cls, parts: Sequence[Layout]) -> MixedLayout:
        blocks: list[Block] = []
        for part in parts:
            first = blocks[-1].first_row + blocks[-1].rows if blocks else 0
            blocks += [replace(block, first_row=first + block.first_row) for block in part.blocks]
        opened = Opened()
        for part in parts:
            opened.add(part.opened)
        left_out = {path: wrong for part in parts for path, wrong in part.left_out.items()}
        return cls(
            " + ".join(part.table for part in parts),
            0,
            tuple(blocks),
            parts[0].opener,
            opened,
            left_out=left_out,
            parts=tuple(parts),
        )

    @property
    def where(self) -> str | None:
        """The conditions of all of them, one after the other; None where none has any."""
        conditions = [part.where for part in self.parts]
        return None if not any(conditions) else "; ".join(str(one) for one in conditions)

    def decode(self, number: int, schema: pa.Schema) -> pa.Table:
        own = number
        for part in self.parts:
            if own < len(part.blocks):
                # each from its own storage, with the patience that one asks for
                rows = part.storage.repeated(lambda: part.decode(own, schema))  # noqa: B023
                if own in part.replaced:
                    self.replaced[number] = part.replaced[own]
                return rows
            own -= len(part.blocks)
        raise IndexError(number)


class MixedReader(SnapshotReader):
    """What :func:`mix` makes: a reader like any other, of the rows of several.

    ``batch.row_numbers`` count through the readers; :meth:`source_of` says whose rows they are.
    Where one of the readers has a sampler with loss weights, batches carry ``sample_weight``, 1
    for the rows of the others.
    """

    def __init__(
        self,
        readers: Sequence[SnapshotReader],
        weights: Sequence[float],
        rows_per_epoch: int | None = None,
    ) -> None:
        if len(readers) < 2 or len(weights) != len(readers):
            raise ConfigurationError(
                f"{len(readers)} readers and {len(weights)} weights: expected at least two "
                "readers, and a weight for each"
            )
        if rows_per_epoch is not None and rows_per_epoch < 1:
            raise ConfigurationError(f"rows_per_epoch={rows_per_epoch}: expected at least 1")
        for reader in readers:
            if isinstance(reader, MixedReader):
                raise ConfigurationError("a mixture of mixtures: mix all their readers in one")
            _check_columns(readers[0], reader)
        # how to read is what the first one says; what to read is set below
        vars(self).update(readers[0].__getstate__())
        self._shares = shares_of(weights)
        self._rows_per_epoch = rows_per_epoch
        self._lent = tuple(readers)
        self._take([copy.copy(reader) for reader in readers])
        self._lay_out()
        self._place = (readers[0].epoch, 0)
        self._check()

    def _take(self, sources: list[SnapshotReader]) -> None:
        self._sources = sources
        self._mixture = Mixture(sources, self._shares, self._rows_per_epoch)
        self._sampler = self._mixture

    def _lay_out(self) -> None:
        """Take the sources' snapshots over."""
        layout = MixedLayout.of([source.layout for source in self._sources])
        self.layout = layout
        self.table = " + ".join(source.table for source in self._sources)
        self.vocabularies = self._sources[0].vocabularies
        self._form = self._sources[0]._form
        self._origin = replace(self._origin, table=self.table, rows=layout.num_rows)
        self._store = self._new_store(self.stats)

    def __getstate__(self) -> dict[str, Any]:
        sources = [copy.copy(source) for source in self._sources]
        own = {"_sources": sources, "_lent": (), "_mixture": None, "_sampler": None}
        return {**super().__getstate__(), **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._take(self._sources)

    def source_of(self, row_numbers: Ints) -> tuple[Ints, Ints]:
        """Number of the reader, and row number in its snapshot, of each row."""
        first_rows = self._mixture.first_rows
        source = np.searchsorted(first_rows, row_numbers, side="right") - 1
        return source, row_numbers - first_rows[source]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where a state was taken, on any rank of any world size.

        Seeds and snapshots are those of the state; weights and samplers have to be the same.

        Raises
        ------
        RequestError
            For the state of something else.
        SnapshotExpiredError
            If one of its snapshots has expired.
        """
        if state.get("version") != VERSION or "mixture" not in state:
            raise RequestError(
                f"not a state of a mixture of version {VERSION}: it has {', '.join(sorted(state))}"
            )
        check_numbers(state, {"epoch": 0, "position": 0}, "a state of a mixture")
        if len(state["sources"]) != len(self._sources):
            raise RequestError(
                f"a state of {len(state['sources'])} readers; this mixture has {len(self._sources)}"
            )
        place = (int(state["epoch"]), int(state["position"]))
        self._stop()
        before = self._sources, [source.layout.files for source in self._sources]
        self._take([copy.copy(source) for source in self._sources])
        try:
            for source, own in zip(self._sources, state["sources"], strict=True):
                source.load_state_dict(own)
            self._take(self._sources)
            if state["mixture"] != self._mixture.identity():
                raise RequestError(
                    f"the state is of a mixture of {state['mixture']}, this one is of "
                    f"{self._mixture.identity()}: make it with the same weights and "
                    "rows_per_epoch, or start a new epoch"
                )
            check_position(place[1], self._mixture.num_samples, "a state of a mixture")
        except BaseException:
            self._take(before[0])
            raise
        if before[1] != [source.layout.files for source in self._sources]:
            self._lay_out()
        self._place = place

    def _state_at(self, epoch: int, position: int) -> dict[str, Any]:
        return {
            "version": VERSION,
            "mixture": self._mixture.identity(),
            "epoch": epoch,
            "position": position,
            "sources": [source._state_at(0, 0) for source in self._sources],
        }

    def _assembler(self, shard: Shard) -> Assembler:
        mixture, epoch = self._mixture, self._place[0]
        whole = shard.global_batch_size % shard.world_size == 0
        # all positions of a rank are equal modulo the world size, where batches divide by it
        step = shard.world_size if whole else 1

        def opened(work: Work) -> Ints:
            return mixture.open_blocks(epoch, work, step)

        rows = mixture.num_samples
        return Assembler(self._store, lambda p: mixture.draw(epoch, p), opened, rows)

    def with_sampler(self, sampler: RowSampler) -> SnapshotReader:
        raise ConfigurationError("a mixture takes samplers by its readers: reader.with_sampler")

    def read_columns(self, columns: Sequence[str]) -> pa.Table:
        """Columns of all sources by row number; see ``SnapshotReader.read_columns``."""
        return pa.concat_tables([source.read_columns(columns) for source in self._sources])

    def close(self) -> None:
        super().close()
        for reader in self._lent:
            reader.close()

    def describe(self, quality: bool = False) -> dict[str, Any]:
        """What is read and in which shares; see ``SnapshotReader.describe``."""
        return {
            "table": self.table,
            "rows": self.num_rows,
            "blocks": len(self.layout.blocks),
            "rows_per_epoch": self._mixture.num_samples,
            "round_rows": self._mixture.interleave.round_rows,
            "shares": [share / self._mixture.interleave.slots for share in self._shares],
            "global_batch_size": self.global_batch_size,
            "batches": len(self),
            "sources": [source.describe(quality) for source in self._sources],
        }


def _check_columns(first: SnapshotReader, other: SnapshotReader) -> None:
    """Refuse a reader whose batches could not be those of the first one."""
    mine, its = _columns(first._form), _columns(other._form)
    for name in {**mine, **its}:
        if mine.get(name) != its.get(name):
            raise ConfigurationError(
                f"the readers of {first.table!r} and {other.table!r} differ in column {name!r}: "
                f"{mine.get(name)} and {its.get(name)}; read the same columns, with the same "
                "output, fill, masks, item_masks, float_dtype, shapes, codes (one vocabulary) and "
                "scaled"
            )
    if list(mine) != list(its):
        raise ConfigurationError(
            f"the readers of {first.table!r} and {other.table!r} have their columns in different "
            f"order: {', '.join(mine)} and {', '.join(its)}; give both columns="
        )


def _columns(form: Form) -> dict[str, Any]:
    if isinstance(form, NumpyForm):
        plans = {name: replace(plan, where="") for name, plan in form._plans.items()}
        return {name: plans.get(name, spec) for name, spec in form.specs.items()}
    return (
        {column.name: str(column.type) for column in form.schema}
        if isinstance(form, ArrowForm)
        else {}
    )
