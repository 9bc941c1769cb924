"""What every sampler is: a pure function from (epoch, position) to an index, and a place in it."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from paimon_features.errors import ConfigurationError, RequestError
from trainer_bridge.order import Ints

Floats = npt.NDArray[np.floating[Any]]

_PIECE = 65_536
VERSION = 1


class AdvancedSampler(ABC):
    """Yields indices ``0 <= index < num_rows`` of a data set, for one rank of several.

    The whole draws ``num_samples`` indices an epoch; rank r of W yields those at positions
    ``r, r + W, ...``, so ranks differ by at most one (a ``SnapshotReader`` shards evenly).
    ``len()`` is that of the whole, :attr:`rank_len` that of this rank.

    Iterating goes on from where the sampler stands to the end of the epoch; it then stands
    at the start of the next one. The class has the protocol of a torch ``Sampler`` without
    importing torch; ``trainer_bridge.adapters.torch.as_sampler`` makes an instance of one.
    """

    def __init__(
        self, num_rows: int, num_samples: int, *, seed: int = 0, rank: int = 0, world_size: int = 1
    ) -> None:
        if not 0 <= rank < world_size:
            raise ConfigurationError(
                f"rank {rank} of world size {world_size}: expected 0 <= rank < world_size"
            )
        if num_rows < 1 or num_samples < 1:
            raise ConfigurationError(
                f"{num_samples} samples of {num_rows} rows: expected at least one of each"
            )
        self.num_rows, self.num_samples = num_rows, num_samples
        self.seed, self.rank, self.world_size = seed, rank, world_size
        self.epoch = 0
        self._position = 0

    @abstractmethod
    def draw(self, epoch: int, positions: Ints) -> Ints:
        """Indices at global positions ``0 <= position < num_samples``: a pure function."""

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Everything the draws depend on besides epoch and position, as small JSON."""

    def loss_weights(self, indices: Ints) -> npt.NDArray[np.float64] | None:
        """Weight of the loss of each index, to undo the sampling; None where there is none."""
        return None

    def __len__(self) -> int:
        return self.num_samples

    @property
    def rank_len(self) -> int:
        """How many indices this rank yields in a whole epoch."""
        return len(range(self.rank, self.num_samples, self.world_size))

    def __iter__(self) -> Iterator[int]:
        epoch, world = self.epoch, self.world_size
        while self.epoch == epoch and (first := self._position + self.rank) < self.num_samples:
            stop = min(self.num_samples, self._position + _PIECE * world)
            positions = np.arange(first, stop, world, dtype=np.int64)
            for position, index in zip(
                positions.tolist(), self.draw(epoch, positions).tolist(), strict=True
            ):
                # What is yielded counts as read, so the place moves before.
                self._position = position - self.rank + world
                yield index
        if self.epoch == epoch:
            self.set_epoch(epoch + 1)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; stays where it is if it is in that epoch already."""
        if epoch != self.epoch:
            self.epoch, self._position = epoch, 0

    def state_dict(self) -> dict[str, Any]:
        """Where the sampler stands, as small JSON; O(1), the same on all ranks in step."""
        ended = self._position >= self.num_samples
        place = (self.epoch + 1, 0) if ended else (self.epoch, self._position)
        return {
            "version": VERSION,
            "epoch": place[0],
            "position": place[1],
            "identity": self.identity(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to where a state was taken, on any rank of any world size.

        Raises
        ------
        RequestError
            If it was taken from a sampler with other weights, scores or arguments.
        """
        if state.get("version") != VERSION or state.get("identity") != self.identity():
            raise RequestError(
                f"the state does not fit this sampler: it is of version {state.get('version')!r}, "
                f"{state.get('identity')}; expected version {VERSION}, {self.identity()}"
            )
        self.epoch, self._position = int(state["epoch"]), int(state["position"])


def as_weights(values: Any, what: str) -> Floats:
    """One finite float >= 0 per row, from NumPy, Arrow, a list or what converts to NumPy.

    Floats are not copied.

    Raises
    ------
    ConfigurationError
        For a null, a NaN, an infinity, a negative number, or no rows.
    """
    if isinstance(values, pa.Array | pa.ChunkedArray):
        if values.null_count:
            raise ConfigurationError(
                f"{what}: {values.null_count} of {len(values)} are null; fill them before"
            )
        values = (
            values.to_numpy()
            if isinstance(values, pa.ChunkedArray)
            else values.to_numpy(zero_copy_only=False)
        )
    array: npt.NDArray[Any] = np.asarray(values)
    if array.ndim != 1 or not len(array):
        raise ConfigurationError(f"{what}: expected one number per row, got shape {array.shape}")
    if array.dtype.kind in "iub":
        array = array.astype(np.float64)
    if array.dtype.kind != "f":
        raise ConfigurationError(f"{what}: expected numbers, got {array.dtype}")
    least, most = array.min(), array.max()
    if not (least >= 0 and most < np.inf):  # False for NaN as well
        bad = int(np.flatnonzero(~((array >= 0) & (array < np.inf)))[0])
        raise ConfigurationError(
            f"{what}: number {bad} is {array[bad]}; expected finite numbers that are not negative"
        )
    return array


def checksum(array: npt.NDArray[Any]) -> int:
    """A number that tells arrays apart, also those of equal values in another order."""
    return zlib.crc32(np.ascontiguousarray(array).data)


def cumulate(
    weights: Floats, what: str, out: npt.NDArray[np.float64] | None = None
) -> npt.NDArray[np.float64]:
    """Running totals in float64; 8 bytes per weight. ``out`` may be the weights themselves.

    Raises
    ------
    ConfigurationError
        If the weights add up to nothing, or to more than a float holds.
    """
    totals = np.cumsum(weights, dtype=np.float64, out=out)
    if not 0 < totals[-1] < np.inf:
        raise ConfigurationError(
            f"{what}: they add up to {totals[-1]}; expected a finite total above 0"
        )
    return totals


def locate(totals: npt.NDArray[np.float64], shares: npt.NDArray[np.float64]) -> Ints:
    """The index in whose part of the total each share (in [0, 1)) falls; never a weight of 0.

    >>> locate(np.array([1.0, 1.0, 4.0]), np.array([0.0, 0.2, 0.3, 0.999])).tolist()
    [0, 0, 2, 2]
    """
    found = np.searchsorted(totals, shares * totals[-1], side="right")
    # A product may round up to the total: it belongs to the last weight above 0.
    last = int(np.searchsorted(totals, totals[-1], side="left"))
    return np.minimum(found, last).astype(np.int64)
