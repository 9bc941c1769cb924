"""Poisson sampling: each row is included in an epoch independently, by a hash."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from paimon_features.core.errors import ConfigurationError, RequestError
from paimon_features.core.types.array_types import Ints
from trainer_bridge.order.key_hashes import key_hashes
from trainer_bridge.order.permutation import derive_key, permute, uniform
from trainer_bridge.samplers.base import AdvancedSampler
from trainer_bridge.samplers.inputs import as_numbers, checksum

_PIECE = 1 << 17


class PoissonSampler(AdvancedSampler):
    """Includes row i in an epoch with probability ``pi_i = min(1, scale * weights[i])``, at most
    once.

    Inclusion depends only on ``hash(seed, epoch, key_i)`` and ``pi_i``: not on the other rows,
    nor on their number or order. So it can be evaluated for any row (:meth:`includes`), and
    adding a row does not affect the others. The loss weight of a row is exactly ``1 / pi_i``:
    sums over an epoch are unbiased.

    The size of an epoch is random: ``num_samples`` in expectation, with variance
    ``sum(pi_i * (1 - pi_i))``. ``len()`` is the exact size of the current epoch; computing it
    takes a hash per row, once per epoch. Every rank yields the same number: if the size is not
    divisible by the world size, the last round wraps around to the first rows of the epoch
    (a ``SnapshotReader`` does so only with ``pad_last``, and has equal batch counts anyway).

    8 bytes per row for weights in float64, 4 in float32, plus 4 per row drawn and 8 per row for
    ``keys``.

    Parameters
    ----------
    weights
        One number >= 0 per row: list, NumPy, Arrow, pandas, Polars, or a ``Difficulty``.
    num_samples
        Expected number of rows per epoch, over all ranks; determines ``scale``.
    scale
        Instead of ``num_samples``.
    keys
        Row keys of any type; rows of the same key are included together if their weights are
        equal. The row number by default.
    normalise
        Multiply the loss weights by the expected share of the rows, so that the mean over a
        batch is comparable with one of all rows.
    seed, rank, world_size
        See :class:`~trainer_bridge.samplers.AdvancedSampler`.

    Raises
    ------
    ConfigurationError
        If a weight is negative or not finite, all are 0, or fewer weights than ``num_samples``
        are positive.

    Examples
    --------
    >>> sampler = PoissonSampler([1.0, 1.0, 8.0, 0.0], num_samples=2)
    >>> sampler.probabilities(np.arange(4)).tolist()
    [0.5, 0.5, 1.0, 0.0]
    >>> sampler.loss_weights(np.array([0, 2])).tolist()
    [2.0, 1.0]
    """

    def __init__(
        self,
        weights: Any,
        num_samples: int | None = None,
        *,
        scale: float | None = None,
        keys: Any = None,
        normalise: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self._weights = as_numbers(weights, "weights")
        if (num_samples is None) == (scale is None):
            raise ConfigurationError("pass exactly one of num_samples= and scale=")
        if scale is not None and not 0 < scale < np.inf:
            raise ConfigurationError(f"scale={scale}: expected a finite number above 0")
        self.scale = _scale(self._weights, num_samples) if scale is None else scale
        self.expected_size = _sum(self._weights, self.scale)
        super().__init__(
            len(self._weights),
            max(round(self.expected_size), 1) if num_samples is None else num_samples,
            seed=seed,
            rank=rank,
            world_size=world_size,
        )
        self.normalise = normalise
        self._keys = None if keys is None else _as_keys(keys)
        if self._keys is not None and len(self._keys) != self.num_rows:
            raise ConfigurationError(f"{len(self._keys)} keys for {self.num_rows} weights")
        self._complete = bool(np.all(self._weights))
        self._checksum = checksum(self._weights)
        self._key_checksum = None if self._keys is None else checksum(self._keys)
        self._chosen: tuple[int, npt.NDArray[Any]] | None = None

    def probabilities(self, indices: Ints) -> npt.NDArray[np.float64]:
        """Return ``pi``, the inclusion probability of each row."""
        return _chances(self._weights[indices], self.scale)

    def includes(self, epoch: int, indices: Ints) -> npt.NDArray[np.bool_]:
        """Return whether each row is in an epoch; O(1) per row."""
        keys = indices if self._keys is None else self._keys[indices]
        shares = uniform(derive_key(self.seed, epoch, 0x905), keys)
        result: npt.NDArray[np.bool_] = shares < self.probabilities(indices)
        return result

    def epoch_size(self, epoch: int) -> int:
        return len(self._rows(epoch))

    def draw(self, epoch: int, positions: Ints) -> Ints:
        rows = self._rows(epoch)
        places = permute(positions, len(rows), derive_key(self.seed, epoch, 0x906))
        return rows[places].astype(np.int64)

    def loss_weights(self, indices: Ints) -> npt.NDArray[np.float64]:
        """``1 / pi``, float64; see the class for ``normalise``."""
        share = self.expected_size / self.num_rows if self.normalise else 1.0
        with np.errstate(divide="ignore"):
            result: npt.NDArray[np.float64] = share / self.probabilities(indices)
        return result

    def unbiased_weights(self, epoch: int, indices: Ints) -> npt.NDArray[np.float64]:
        if not self._complete:
            raise RequestError("rows of weight 0 are never drawn, which no weights can correct")
        return self.num_samples / self.num_rows / self.probabilities(indices)

    def reseed(self, seed: int) -> None:
        super().reseed(seed)
        self._chosen = None

    def identity(self) -> dict[str, Any]:
        return {
            "sampler": "poisson",
            "rows": self.num_rows,
            "scale": self.scale,
            "seed": self.seed,
            "checksum": self._checksum,
            "keys": self._key_checksum,
        }

    def _end(self, epoch: int, position: int) -> int:
        rounds = -(-(self.epoch_size(epoch) - position) // self.world_size)
        return position + rounds * self.world_size

    def _rows(self, epoch: int) -> npt.NDArray[Any]:
        """Return the rows of an epoch, ascending."""
        if self._chosen is not None and self._chosen[0] == epoch:
            return self._chosen[1]
        self._chosen = None
        dtype = np.uint32 if self.num_rows <= 1 << 32 else np.int64
        parts = []
        for start in range(0, self.num_rows, _PIECE):
            indices = np.arange(start, min(start + _PIECE, self.num_rows))
            parts.append(indices[self.includes(epoch, indices)].astype(dtype))
        rows: npt.NDArray[Any] = np.concatenate(parts)
        self._chosen = (epoch, rows)
        return rows


def _chances(weights: npt.NDArray[Any], scale: float) -> npt.NDArray[np.float64]:
    with np.errstate(over="ignore"):  # an overflow to infinity is above 1 as well
        return np.minimum(weights.astype(np.float64) * scale, 1.0)


def _sum(weights: npt.NDArray[Any], scale: float) -> float:
    """Return the sum of the probabilities, in the same summation order on every machine."""
    total = 0.0
    for start in range(0, len(weights), _PIECE):
        total += float(np.cumsum(_chances(weights[start : start + _PIECE], scale))[-1])
    return total


def _scale(weights: npt.NDArray[Any], num_samples: int | None) -> float:
    """Return the scale for which the probabilities sum to ``num_samples``."""
    assert num_samples is not None
    positive = int(np.count_nonzero(weights))
    if num_samples > positive:
        raise ConfigurationError(
            f"num_samples={num_samples}: only {positive} weights are positive, and each row is "
            f"drawn at most once"
        )
    if num_samples < 1:
        raise ConfigurationError(f"num_samples={num_samples}: expected at least 1")
    certain, scale = -1, 0.0
    while True:
        # Rows with probability 1 are excluded from the scaling; each round finds more of them.
        count, total = 0, 0.0
        for start in range(0, len(weights), _PIECE):
            piece = weights[start : start + _PIECE].astype(np.float64)
            with np.errstate(over="ignore"):
                sure = piece * scale >= 1
                count += int(np.count_nonzero(sure))
                total += float(np.cumsum(np.where(sure, 0.0, piece))[-1])
        if total == np.inf:
            raise ConfigurationError(
                "weights: their sum is inf; expected a finite total: divide them by the largest"
            )
        if count == certain or count >= num_samples or total == 0:
            return scale
        certain, scale = count, (num_samples - count) / total


def _as_keys(keys: Any) -> npt.NDArray[np.uint64]:
    array = keys if isinstance(keys, pa.Array | pa.ChunkedArray) else pa.array(keys)
    if array.null_count:
        raise ConfigurationError(f"keys: {array.null_count} of {len(array)} are null")
    chunks = array.chunks if isinstance(array, pa.ChunkedArray) else [array]
    return np.concatenate([key_hashes([chunk]) for chunk in chunks if len(chunk)])
