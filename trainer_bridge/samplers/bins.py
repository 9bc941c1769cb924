"""Importance sampling by difficulty with 1 byte per row."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.core.types.array_types import Bytes, Ints
from trainer_bridge.samplers.importance import ImportanceSampler
from trainer_bridge.samplers.inputs import as_numbers
from trainer_bridge.samplers.totals import locate

_PER_OCTAVE, _LEAST = 8, -20  # bin 1 starts at 2**-20, bin 255 at 2**11.75
_BORDERS = np.exp2(np.arange(1, _PER_OCTAVE) / _PER_OCTAVE - 1)
_BLOCK = 128
_PIECE = 1 << 17
_DRAWS = 4_096  # at a time, so that their blocks stay in the CPU cache


def score_bins(scores: Any) -> Bytes:
    """Return the bin of each score: 8 bins per octave, 0 below 2^-20, 255 from 2^11.75 on.

    Scores that do not fit into memory can be binned in parts.

    >>> score_bins([0.0, 1.0, 1.05, 2.0, 1e9]).tolist()
    [0, 161, 161, 169, 255]
    """
    array = as_numbers(scores, "scores")
    bins = np.empty(len(array), dtype=np.uint8)
    for start in range(0, len(array), _PIECE):
        # frexp and comparisons are exact, logarithms differ between processors
        mantissa, exponent = np.frexp(array[start : start + _PIECE].astype(np.float64))
        within = np.searchsorted(_BORDERS, mantissa, side="right")
        numbers = 1 + (exponent - 1 - _LEAST) * _PER_OCTAVE + within
        bins[start : start + _PIECE] = np.where(mantissa > 0, np.clip(numbers, 0, 255), 0)
    return bins


def bin_scores() -> npt.NDArray[np.float64]:
    """Return the representative score of each of the 256 bins: 0, then the geometric midpoints."""
    middles = np.exp2(_LEAST + (np.arange(256) - 0.5) / _PER_OCTAVE)
    middles[0] = 0.0
    return middles


class BinnedDifficultySampler(ImportanceSampler):
    """``DifficultyWeightedSampler`` over scores rounded to 256 bins: 1.1 bytes per row.

    Each score is rounded to the midpoint of its bin (:func:`score_bins`), at most 4.5 percent
    off. Probabilities and loss weights use the rounded scores, so weighted means stay
    unbiased. For 10^9 rows: 1 GB of bins, 63 MB of totals (one per 128 rows).

    Parameters
    ----------
    scores
        Bins as returned by :func:`score_bins` (uint8, not copied), or difficulty scores as in
        ``DifficultyWeightedSampler``.
    num_samples, uniform_share, exponent, eps, beta, normalise, score_snapshot_id
        As in ``DifficultyWeightedSampler``.

    Raises
    ------
    ConfigurationError
        If a score is negative or not finite, or an argument out of bounds.

    Examples
    --------
    >>> sampler = BinnedDifficultySampler([1.0, 1.0, 8.0], uniform_share=0.5, eps=0.0)
    >>> [round(float(p), 3) for p in sampler.probabilities(np.arange(3))]
    [0.217, 0.217, 0.567]
    """

    kind = "binned difficulty"

    def _read(self, scores: Any) -> Bytes:
        binned = isinstance(scores, np.ndarray) and scores.dtype == np.uint8
        return scores if binned else score_bins(scores)

    def _merits_to_add(self) -> npt.NDArray[np.float64]:
        self._merit_of_bin: npt.NDArray[np.float64] = (bin_scores() + self.eps) ** self.exponent
        blocks = -(-self.num_rows // _BLOCK)
        sums = np.empty(blocks, dtype=np.float64)
        for first in range(0, blocks, _DRAWS):
            part = np.arange(first, min(first + _DRAWS, blocks))
            sums[part] = self._inside(part)[:, -1]
        return sums

    def _merit(self, indices: Ints) -> npt.NDArray[np.float64]:
        return self._merit_of_bin[self._scores[indices]]

    def _locate(self, shares: npt.NDArray[np.float64]) -> Ints:
        blocks = locate(self._totals, shares)
        before = np.where(blocks > 0, self._totals[blocks - 1], 0.0)
        rest = shares * self._totals[-1] - before
        indices = np.empty(len(shares), dtype=np.int64)
        for start in range(0, len(shares), _DRAWS):
            part = slice(start, start + _DRAWS)
            running = self._inside(blocks[part])
            # index: (draw, row of its block)
            at = (running <= rest[part, None]).sum(axis=1)
            # A difference may round up to the total: that is the last row with a positive score.
            at = np.minimum(at, (running < running[:, -1:]).sum(axis=1))
            indices[part] = blocks[part] * _BLOCK + at
        return indices

    def _inside(self, blocks: Ints) -> npt.NDArray[np.float64]:
        """Return the running totals of g within blocks, (blocks, 128); constant after the last
        row."""
        rows = blocks[:, None] * _BLOCK + np.arange(_BLOCK)
        merits = self._merit_of_bin[self._scores[np.minimum(rows, self.num_rows - 1)]]
        merits[rows >= self.num_rows] = 0.0
        return np.cumsum(merits, axis=1)
