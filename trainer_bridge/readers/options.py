"""How a table is read, in four groups: sharding, order, form of the batches, resources.

:class:`trainer_bridge.SnapshotReader` takes all of these as keywords; see there for what each one
means. Every group checks its own values when it is made.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from paimon_features.core.errors import ConfigurationError
from trainer_bridge.batches.forms import ArrowForm, Form
from trainer_bridge.batches.numpy_form import NumpyForm
from trainer_bridge.batches.vocabulary import Vocabulary
from trainer_bridge.blocks.layout import OnBadFile
from trainer_bridge.order.rank_shard import Last, RankShard
from trainer_bridge.order.reader_state import is_integer


@dataclass(frozen=True, slots=True)
class Sharding:
    """Which rows of each global batch this process reads, and how large a batch is.

    >>> Sharding(rank=1, world_size=4, batch_size=8).global_rows
    32
    """

    rank: int | None = None
    world_size: int | None = None
    batch_size: int | None = None
    global_batch_size: int | None = None
    drop_last: bool = False
    pad_last: bool = False

    def __post_init__(self) -> None:
        for name in ("rank", "world_size", "batch_size", "global_batch_size"):
            _check_integer(name, getattr(self, name))
        if self.rank is None and self.world_size not in (None, 1):
            raise ConfigurationError(
                f"world_size={self.world_size} without rank=: every process would read the rows "
                "of rank 0; give both"
            )
        self._check_batch_size()
        if self.drop_last and self.pad_last:
            raise ConfigurationError("drop_last and pad_last exclude each other; set one of them")

    @property
    def is_given(self) -> bool:
        """Whether a rank or a world size was given, so that no adapter should choose them."""
        return self.rank is not None or self.world_size is not None

    @property
    def place(self) -> tuple[int, int]:
        """Rank and world size; 0 of 1 by default."""
        return self.rank or 0, 1 if self.world_size is None else self.world_size

    @property
    def global_rows(self) -> int:
        """Rows of a global batch."""
        if self.global_batch_size is not None:
            return self.global_batch_size
        assert self.batch_size is not None
        return self.batch_size * self.place[1]

    @property
    def last(self) -> Last:
        return "drop" if self.drop_last else "pad" if self.pad_last else "short"

    def shard(self, num_rows: int) -> RankShard:
        """Return this rank's share of an epoch of this number of rows."""
        return RankShard(num_rows, self.global_rows, *self.place, self.last)

    def with_rank(self, rank: int, world_size: int) -> Sharding:
        """Return the same for another process: a ``batch_size`` stays that of a rank, a
        ``global_batch_size`` that of all ranks."""
        batch_size = self.batch_size if self.global_batch_size is None else None
        return replace(self, rank=rank, world_size=world_size, batch_size=batch_size)

    def _check_batch_size(self) -> None:
        world_size = self.place[1]
        if self.batch_size is None and self.global_batch_size is None:
            raise ConfigurationError("give batch_size (rows per rank) or global_batch_size")
        if self.batch_size is not None and self.global_batch_size not in (
            None,
            self.batch_size * world_size,
        ):
            raise ConfigurationError(
                f"batch_size={self.batch_size} on {world_size} ranks is not "
                f"global_batch_size={self.global_batch_size}; give one of them"
            )
        if self.global_rows < 1:
            raise ConfigurationError(f"a batch of {self.global_rows} rows: expected at least 1")


@dataclass(frozen=True, slots=True)
class Ordering:
    """What the global order depends on besides the snapshot and its rows."""

    seed: int = 0
    epoch: int = 0
    shuffle: bool = True
    canonical_streams: int = 960
    block_rows: int = 65_536
    open_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        _check_integer("seed", self.seed)
        _check_integer("epoch", self.epoch)
        if self.epoch < 0:
            raise ConfigurationError(f"epoch={self.epoch}: expected 0 or more")
        for name in ("canonical_streams", "block_rows", "open_bytes"):
            _check_positive(name, getattr(self, name))


@dataclass(frozen=True, slots=True)
class OutputOptions:
    """What batches look like: Arrow tables, or NumPy arrays and how columns become them."""

    output: Literal["numpy", "arrow"] = "numpy"
    fill: Mapping[str, float] | None = None
    masks: Collection[str] = ()
    item_masks: Collection[str] = ()
    float_dtype: str | None = None
    shapes: Mapping[str, Sequence[int]] | None = None
    codes: Collection[str] | Mapping[str, Vocabulary | Sequence[str]] = ()
    scaled: Collection[str] = ()

    @property
    def declared_vocabularies(self) -> dict[str, Vocabulary]:
        """The vocabularies that were passed, by column."""
        if not isinstance(self.codes, Mapping):
            return {}
        return {
            name: words if isinstance(words, Vocabulary) else Vocabulary.of(words)
            for name, words in self.codes.items()
        }

    @property
    def collected_vocabularies(self) -> list[str]:
        """The columns whose vocabulary is all texts of the snapshot."""
        return [] if isinstance(self.codes, Mapping) else list(self.codes)

    def form(self, schema: pa.Schema, table: str, vocabularies: Mapping[str, Vocabulary]) -> Form:
        """Return the form of rows of these columns.

        Raises
        ------
        ConfigurationError, RequestError
            For options that do not fit the columns, and for columns without a tensor form.
        """
        options: dict[str, Any] = {
            "fill": self.fill,
            "masks": self.masks,
            "item_masks": self.item_masks,
            "float_dtype": self.float_dtype,
            "shapes": self.shapes,
            "scaled": self.scaled,
        }
        if self.output == "numpy":
            return NumpyForm(schema, table=table, codes=vocabularies, **options)
        if self.output != "arrow":
            raise ConfigurationError(f"output={self.output!r}: expected 'numpy' or 'arrow'")
        if vocabularies or any(options.values()):
            raise ConfigurationError(f"{', '.join(options)} and codes go with output='numpy' only")
        return ArrowForm(schema)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Threads, memory, and what else changes how a table is read but never which rows come."""

    threads: int | Literal["auto"] = 2
    byte_budget: int = 1 << 30
    consumer: str | None = None
    on_bad_file: OnBadFile = "error"
    cache: str | Path | None = None

    def __post_init__(self) -> None:
        _check_positive("byte_budget", self.byte_budget)
        threads: Any = self.threads  # any text but "auto" is refused as well
        if threads != "auto" and (isinstance(threads, str) or threads < 0):
            raise ConfigurationError(f"threads={threads!r}: expected 0 or more, or 'auto'")
        if self.on_bad_file not in ("error", "skip"):
            raise ConfigurationError(
                f"on_bad_file={self.on_bad_file!r}: expected 'error' or 'skip'"
            )


def _check_integer(name: str, number: int | None) -> None:
    if number is not None and not is_integer(number):
        raise ConfigurationError(f"{name}={number!r}: expected an integer")


def _check_positive(name: str, number: int) -> None:
    if number < 1:
        raise ConfigurationError(f"{name}={number}: expected at least 1")
