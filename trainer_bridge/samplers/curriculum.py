"""Curriculum learning: easy rows first, harder ones at declared steps."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.core.errors import ConfigurationError, RequestError
from paimon_features.core.types.array_types import Ints
from trainer_bridge.order.permutation import derive_key, keys_of, permute
from trainer_bridge.samplers.base import AdvancedSampler
from trainer_bridge.samplers.groups import split_by_score
from trainer_bridge.samplers.inputs import as_numbers, check_unchanged, checksum, snapshot_of


class CurriculumSampler(AdvancedSampler):
    """Draws from the easiest share of the rows; the share grows according to ``pace``.

    ``pace`` maps a number of draws, counted over all ranks and from the start of epoch 0, to
    the share of the rows, easiest first, that is used from then on::

        pace {0: 0.25, 1000: 0.5, 3000: 1.0}

        share  1.0                             +------------------
               0.5           +-----------------+
               0.25 +--------+
        draws       0       1000              3000

    Within a share, rows are drawn in successive permutations: no row is repeated before all
    have been drawn. Epochs only cut this sequence. Scores are read once; their snapshot is part
    of the state, so that runs are reproducible.

    Parameters
    ----------
    scores
        One finite number per row, higher is harder: list, NumPy, Arrow, pandas, Polars,
        or a ``Difficulty``. Ties are broken at random (by the seed).
    pace
        As above: starts at 0, non-decreasing shares in (0, 1]. :func:`sqrt_pace` builds one.
    num_samples
        Draws per epoch over all ranks; as many as rows by default.
    score_snapshot_id
        Snapshot the scores were read at; that of the ``Difficulty`` by default.
    seed, rank, world_size
        See :class:`~trainer_bridge.samplers.AdvancedSampler`.

    Raises
    ------
    ConfigurationError
        If a score is null or not finite, or the pace is invalid.

    Examples
    --------
    >>> sampler = CurriculumSampler([9, 1, 8, 2], {0: 0.5, 4: 1.0}, num_samples=8)
    >>> drawn = list(sampler)
    >>> sorted(drawn[:4]), sorted(drawn[4:])
    ([1, 1, 3, 3], [0, 1, 2, 3])
    """

    def __init__(
        self,
        scores: Any,
        pace: Mapping[int, float],
        num_samples: int | None = None,
        *,
        score_snapshot_id: int | None = None,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        array = as_numbers(scores, "scores", negative=True)
        rows = len(array)
        super().__init__(
            rows,
            rows if num_samples is None else num_samples,
            seed=seed,
            rank=rank,
            world_size=world_size,
        )
        self.pace = _checked(pace)
        self.score_snapshot_id = snapshot_of(scores, score_snapshot_id)
        self._checksum = checksum(array)
        self._steps = np.array(list(self.pace), dtype=np.int64)
        # rounded down: a share of 0.1 is at most a tenth
        sizes = [max(ceil(share * rows - 1e-9 * rows), 1) for share in self.pace.values()]
        self._sizes = np.array(sizes, dtype=np.int64)
        self._scores, self._cuts = array, np.diff([0, *sizes, rows]).tolist()
        self._rank_rows()

    def draw(self, epoch: int, positions: Ints) -> Ints:
        drawn = epoch * self.num_samples + positions
        stages = np.searchsorted(self._steps, drawn, side="right") - 1
        sizes = self._sizes[stages]
        cycles, places = np.divmod(drawn - self._steps[stages], sizes)
        keys = keys_of(derive_key(self.seed, 0xC45), stages, cycles)
        return self._rows[permute(places, sizes, keys)].astype(np.int64)

    def unbiased_weights(self, epoch: int, indices: Ints) -> npt.NDArray[np.float64]:
        first = int(np.searchsorted(self._steps, epoch * self.num_samples, side="right")) - 1
        if self._sizes[first] < self.num_rows:
            raise RequestError(
                f"in epoch {epoch} the curriculum excludes hard rows (share "
                f"{list(self.pace.values())[first]}), which no weights can correct"
            )
        return np.ones(len(indices), dtype=np.float64)

    def reseed(self, seed: int) -> None:
        check_unchanged(self._scores, self._checksum)
        super().reseed(seed)
        self._rank_rows()

    def _rank_rows(self) -> None:
        # The easiest n rows are the first n: the groups are contiguous.
        self._rows = split_by_score(self._scores, self._cuts, derive_key(self.seed, 0xC44)).rows

    def identity(self) -> dict[str, Any]:
        return {
            "sampler": "curriculum",
            "rows": self.num_rows,
            "num_samples": self.num_samples,
            "pace": [list(stage) for stage in self.pace.items()],
            "seed": self.seed,
            "checksum": self._checksum,
            "score_snapshot_id": self.score_snapshot_id,
        }


def sqrt_pace(num_draws: int, initial: float = 0.1, stages: int = 10) -> dict[int, float]:
    """Return a pace that includes all rows after ``num_draws`` draws, in equal stages.

    The share after t draws is ``sqrt(t / num_draws * (1 - initial**2) + initial**2)``: new rows
    are added at a rate that falls as the set in use grows (Platanios et al.,
    "Competence-based curriculum learning", 2019).

    >>> {step: round(share, 3) for step, share in sqrt_pace(300, initial=0.5, stages=3).items()}
    {0: 0.5, 100: 0.707, 200: 0.866, 300: 1.0}
    """
    if num_draws < stages or stages < 1 or not 0 < initial <= 1:
        raise ConfigurationError(
            f"sqrt_pace({num_draws}, initial={initial}, stages={stages}): expected at least one "
            f"stage, "
            "one draw per stage, and 0 < initial <= 1"
        )
    start = initial * initial
    return {
        num_draws * stage // stages: 1.0
        if stage == stages
        else sqrt(stage / stages * (1 - start) + start)
        for stage in range(stages + 1)
    }


def _checked(pace: Mapping[int, float]) -> dict[int, float]:
    steps, shares = list(pace), list(pace.values())
    rising = steps == sorted(steps) and shares == sorted(shares)
    if not steps or steps[0] != 0 or not rising or shares[0] <= 0 or shares[-1] > 1:
        raise ConfigurationError(
            f"pace={dict(pace)}: expected ascending numbers of draws from 0 on, with "
            f"non-decreasing shares in "
            "(0, 1], such as {0: 0.25, 10_000: 1.0}"
        )
    return {int(step): float(share) for step, share in pace.items()}
