"""The stages of a pipeline, as written. Each is a frozen dataclass.

Row stages (:class:`Map`, :class:`Filter`, :class:`Select`) are row-wise, so they may run on
one row or on a million at a time, before or after shuffling. Batch stages
(:class:`MapBatches`, :class:`Augment`) receive the batches of the trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from paimon_features.core.types.array_types import Array

Values: TypeAlias = Array | pa.Array
"""A column: a NumPy array (rows first), or Arrow if the type has no NumPy form."""

Rows = Mapping[str, Values]
RowFunction = Callable[[Rows], Mapping[str, Any]]
Batch = dict[str, Array]
BatchFunction = Callable[[Batch], Mapping[str, Any]]
Augmentation = Callable[[Batch, np.random.Generator], Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Map:
    """Adds (or replaces) the columns that ``function`` returns."""

    function: RowFunction
    name: str
    reads: tuple[str, ...] | None = None
    version: str | None = None

    def __str__(self) -> str:
        reads = "all columns" if self.reads is None else ", ".join(self.reads)
        return f"map {self.name} of {reads}"


@dataclass(frozen=True, slots=True)
class Filter:
    """Keeps the rows for which ``text`` or ``function`` is true; null counts as false."""

    text: str | None = None
    function: Callable[[Rows], Any] | None = None
    name: str = ""
    reads: tuple[str, ...] | None = None
    version: str | None = None

    def __str__(self) -> str:
        if self.text is not None:
            return f"filter {self.text}"
        reads = "all columns" if self.reads is None else ", ".join(self.reads)
        return f"filter {self.name} of {reads}"


@dataclass(frozen=True, slots=True)
class Select:
    """Selects columns, in this order."""

    columns: tuple[str, ...]

    def __str__(self) -> str:
        return f"select {', '.join(self.columns)}"


@dataclass(frozen=True, slots=True)
class Cache:
    """Caches the output of the row stages before it."""

    memory_bytes: int = 0
    folder: Path | None = None
    disk_bytes: int | None = None

    def __str__(self) -> str:
        tiers = [f"{self.memory_bytes:,} bytes of memory"] if self.memory_bytes else []
        if self.folder is not None:
            limit = "" if self.disk_bytes is None else f" up to {self.disk_bytes:,} bytes"
            tiers.append(f"the shared folder {self.folder.name}{limit}")
        return f"cache in {' over '.join(tiers)}"


@dataclass(frozen=True, slots=True)
class Shuffle:
    """Shuffles all rows, in a different order each epoch."""

    seed: int = 0

    def __str__(self) -> str:
        return f"shuffle all rows (seed {self.seed})"


@dataclass(frozen=True, slots=True)
class MakeBatches:
    """Groups rows into batches of ``size`` rows on each rank."""

    size: int
    drop_last: bool = False

    def __str__(self) -> str:
        return f"batch {self.size}" + (", the last one dropped if short" if self.drop_last else "")


@dataclass(frozen=True, slots=True)
class MapBatches:
    """Replaces each batch with the result of ``function``."""

    function: BatchFunction
    name: str

    def __str__(self) -> str:
        return f"map batches {self.name}"


@dataclass(frozen=True, slots=True)
class Augment:
    """Adds (or replaces) columns at random, differently in every epoch."""

    function: Augmentation
    name: str

    def __str__(self) -> str:
        return f"augment {self.name}"


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Prefetches this many batches ahead of the trainer."""

    depth: int = 2

    def __str__(self) -> str:
        return f"prefetch {self.depth} batches"


RowStage = Map | Filter | Select | Cache
BatchStage = MapBatches | Augment
Stage = RowStage | Shuffle | MakeBatches | BatchStage | Prefetch
