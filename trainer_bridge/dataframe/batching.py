"""Rebatching, shuffling and concatenating batches, independent of their source."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from paimon_features.core.errors import ConfigurationError, RequestError
from trainer_bridge.batches.ragged import Ragged, Rows, take_rows
from trainer_bridge.dataframe.dataset_options import check_size
from trainer_bridge.dataframe.dedup import Blocks
from trainer_bridge.dataframe.frame import Features, Value
from trainer_bridge.dataframe.reading import Stored, concat, map_columns, num_rows


class Batches:
    """Re-iterable batches: dicts of columns.

    A column is an array, a ``DataFrame.Value`` or a ``Deduplicated``.
    """

    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        return self._make()

    def map(self, function: Callable[[Any], Any]) -> Batches:
        """Apply a function to every batch."""
        return Batches(lambda: map(function, self))

    def apply(self, transformation: Callable[[Batches], Batches]) -> Batches:
        """Apply a transformation to the batches: ``batches.apply(parse())``."""
        return transformation(self)

    def rebatch(
        self, batch_size: int, min_batch_size: int | None = None, drop_remainder: bool = False
    ) -> Batches:
        """Rebatch to ``batch_size`` rows, or to at least ``min_batch_size`` where that saves a
        copy.

        Raises
        ------
        RequestError
            If the columns of a batch differ in length, as those of deduplicated blocks do:
            call ``Dataset.rebatch`` instead.
        """
        check_size("batch_size", batch_size)
        least = batch_size if min_batch_size is None else min_batch_size
        if not 1 <= least <= batch_size:
            raise ConfigurationError(
                f"min_batch_size={least}: expected 1 to batch_size={batch_size}"
            )
        return Batches(lambda: _rebatched(self, batch_size, least, drop_remainder))

    def prefetch(self, buffer_size: int) -> Batches:
        """Prefetch up to ``buffer_size`` batches, in a background thread."""
        check_size("buffer_size", buffer_size)

        def ahead() -> Iterator[Any]:
            batches, end = iter(self), object()
            turns: Iterable[int] = itertools.count()
            for batch in in_order(lambda _: next(batches, end), turns, 1, buffer_size):
                if batch is end:
                    return
                yield batch

        return Batches(ahead)


def _rebatched(
    batches: Iterable[Features], size: int, least: int, drop: bool
) -> Iterator[Features]:
    def checked() -> Iterator[Stored]:
        for features in batches:
            lengths = {name: len(column) for name, column in features.items()}
            if len(set(lengths.values())) > 1:
                raise RequestError(
                    f"columns of different lengths cannot be rebatched: {lengths}; for "
                    "deduplicated data call Dataset.rebatch"
                )
            if num_rows(features):
                yield features

    for stored in cut(checked(), size, least, drop):
        yield {name: as_value(column) for name, column in stored.items()}


def cut(parts: Iterable[Stored], size: int, least: int, drop: bool) -> Iterator[Stored]:
    """Yield batches of ``size`` rows; views where a batch lies within one part."""
    held: list[Stored] = []
    count = 0
    for part in parts:
        start, rows = 0, num_rows(part)
        while rows - start:
            stop = min(start + size - count, rows)
            held.append(map_columns(part, lambda column, a=start, b=stop: column[a:b]))  # type: ignore[misc]
            count += stop - start
            start = stop
            if count == size or (start == rows and count >= least):
                yield concat(held)
                held, count = [], 0
    if held and not drop:
        yield concat(held)


def drawn(
    parts: Iterable[Stored], size: int, buffer: int, drop: bool, dice: np.random.Generator
) -> Iterator[Stored]:
    """Yield batches of rows drawn at random from a shuffle buffer of ``buffer`` rows."""
    coming = iter(parts)
    rows: Stored = {}
    # numbers of the rows not drawn yet, in arrival order
    left = np.arange(0)
    while True:
        if len(left) < buffer + size:
            kept = [map_columns(rows, lambda column, n=left: taken(column, n))] if len(left) else []  # type: ignore[misc]
            count = len(left)
            for part in coming:
                kept.append(part)
                count += num_rows(part)
                if count >= 2 * (buffer + size):
                    break
            if not kept:
                return
            rows, left = concat(kept), np.arange(count)
        number = min(size, len(left))
        if number < size and drop:
            return
        chosen = dice.permutation(min(buffer, len(left)))[:number]
        yield map_columns(rows, lambda column, n=left[chosen]: taken(column, n))  # type: ignore[misc]
        left = np.delete(left, chosen)
        if not len(left):
            rows = {}


def taken(column: Any, numbers: np.ndarray[Any, Any]) -> Rows | Blocks:
    """Return a copy of these rows, or blocks."""
    return column.take(numbers) if isinstance(column, Blocks) else take_rows(column, numbers)


def in_order(
    function: Callable[[int], Any], numbers: Iterable[int], threads: int, ahead: int | None = None
) -> Iterator[Any]:
    """Ordered ``map`` in threads, ``ahead`` results in advance (by default one per thread); the
    threads end when the generator is closed."""
    if threads == 1 and ahead is None:
        yield from map(function, numbers)
        return
    pool = ThreadPoolExecutor(threads, thread_name_prefix="data-frame")
    waiting: deque[Future[Any]] = deque()
    coming = iter(numbers)
    try:
        for number in itertools.islice(coming, ahead or threads):
            waiting.append(pool.submit(function, number))
        while waiting:
            result = waiting.popleft().result()
            for number in itertools.islice(coming, 1):
                waiting.append(pool.submit(function, number))
            yield result
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def as_value(rows: Any) -> Any:
    """Convert lists to ``DataFrame.Value``; arrays are unchanged."""
    return Value.of(rows) if isinstance(rows, Ragged) else rows
