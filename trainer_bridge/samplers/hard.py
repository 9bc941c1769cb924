"""Hard example mining."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from paimon_features.core.errors import ConfigurationError, RequestError
from paimon_features.core.types.array_types import Ints
from trainer_bridge.order.permutation import derive_key, keys_of, permute
from trainer_bridge.samplers.base import PIECE, AdvancedSampler
from trainer_bridge.samplers.groups import Groups, split_by_score
from trainer_bridge.samplers.inputs import as_numbers, check_unchanged, checksum, snapshot_of

DifficultyFn = Callable[[Any], Any]


class HardExampleMiningSampler(AdvancedSampler):
    """Draws the hardest rows in every epoch, and the remainder from all others.

    An epoch has the ``round(hard_ratio * num_samples)`` hardest rows, each once, and fills up
    with rows drawn uniformly from the others, without replacement; all in random order. So a
    hard row occurs in every epoch, and another one with probability
    ``(1 - hard_ratio) * num_samples / others``. Ties between equal scores are broken at random
    (by the seed). Without scores, rows are drawn uniformly.

    With more samples than rows, complete passes over all rows come first, and the rule applies
    to the ``num_samples % rows`` samples that remain.

    Parameters
    ----------
    num_samples
        Draws per epoch over all ranks.
    difficulty_scores
        One finite number per row, higher is harder: list, NumPy, Arrow, pandas, Polars,
        or a ``Difficulty``, whose snapshot then is part of the state.
    difficulty_fn
        Instead of scores: ``difficulty_fn(indices) -> scores`` for an int64 array of indices
        (or a function of one index), called for all rows on construction and by
        ``update_difficulty_scores()``.
    hard_ratio
        From 0 to 1.
    num_rows
        Rows of the dataset if there are no scores; ``num_samples`` by default.
    score_snapshot_id
        Snapshot the scores were read at; part of the state, so that runs are reproducible.
    seed, rank, world_size
        See :class:`~trainer_bridge.samplers.AdvancedSampler`.

    Raises
    ------
    ConfigurationError
        If a score is null or not finite, or arguments are inconsistent.

    Examples
    --------
    >>> sampler = HardExampleMiningSampler(4, [1, 9, 2, 8, 3, 4, 5, 6], hard_ratio=0.5)
    >>> epochs = [set(sampler) for _ in range(3)]
    >>> [1 in rows and 3 in rows for rows in epochs], [len(rows) for rows in epochs]
    ([True, True, True], [4, 4, 4])
    """

    def __init__(
        self,
        num_samples: int,
        difficulty_scores: Any = None,
        difficulty_fn: DifficultyFn | None = None,
        hard_ratio: float = 0.3,
        *,
        num_rows: int | None = None,
        score_snapshot_id: int | None = None,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        if difficulty_scores is not None and difficulty_fn is not None:
            raise ConfigurationError("pass at most one of difficulty_scores= and difficulty_fn=")
        if not 0 <= hard_ratio <= 1:
            raise ConfigurationError(f"hard_ratio={hard_ratio}: expected 0 to 1")
        scores: npt.NDArray[Any] | None = None
        if difficulty_scores is not None:
            scores = as_numbers(difficulty_scores, "difficulty_scores", negative=True)
        rows = len(scores) if scores is not None else num_samples if num_rows is None else num_rows
        super().__init__(rows, num_samples, seed=seed, rank=rank, world_size=world_size)
        if num_rows not in (None, rows):
            raise ConfigurationError(f"num_rows={num_rows}, but there are {rows} scores")
        self.hard_ratio, self.difficulty_fn = hard_ratio, difficulty_fn
        self.score_snapshot_id = snapshot_of(difficulty_scores, score_snapshot_id)
        self._pending: tuple[npt.NDArray[Any], int | None] | None = None
        if difficulty_fn is not None:
            scores = _scores_by(difficulty_fn, rows)
        self._rank_rows(scores)

    def update_difficulty_scores(
        self, difficulty_scores: Any = None, *, score_snapshot_id: int | None = None
    ) -> None:
        """Replace the scores from the next start of an epoch on.

        At the start of an epoch they apply at once; in the middle they are deferred to the next
        one, so that an epoch has each row at most once. None calls ``difficulty_fn`` again. A
        reader created earlier by ``with_sampler`` keeps the scores it was created with.
        """
        if difficulty_scores is not None:
            scores = as_numbers(difficulty_scores, "difficulty_scores", negative=True)
        elif self.difficulty_fn is not None:
            scores = _scores_by(self.difficulty_fn, self.num_rows)
        else:
            raise ConfigurationError(
                "update_difficulty_scores() without scores needs difficulty_fn"
            )
        if len(scores) != self.num_rows:
            raise ConfigurationError(
                f"difficulty_scores: {len(scores)} scores for {self.num_rows} rows"
            )
        snapshot = snapshot_of(difficulty_scores, score_snapshot_id)
        if self._position:
            self._pending = (np.array(scores), snapshot)  # a copy: the caller may modify its array
        else:
            self.score_snapshot_id = snapshot
            self._rank_rows(scores)

    def _enter_epoch(self) -> None:
        if self._pending is not None:
            (scores, self.score_snapshot_id), self._pending = self._pending, None
            self._rank_rows(scores)

    def draw(self, epoch: int, positions: Ints) -> Ints:
        key = derive_key(self.seed, epoch, 0x4A2)
        passes, offsets = np.divmod(positions, self.num_rows)
        complete = passes < self._passes
        if not complete.any():
            return self._draw_remainder(offsets, key)
        keys = keys_of(derive_key(key, 3), passes[complete])
        drawn = np.empty(len(positions), dtype=np.int64)
        drawn[complete] = permute(offsets[complete], self.num_rows, keys)
        if not complete.all():
            drawn[~complete] = self._draw_remainder(offsets[~complete], key)
        return drawn

    def _draw_remainder(self, offsets: Ints, key: int) -> Ints:
        """Return the rows that come after the complete passes: the hardest, and some others."""
        places = permute(offsets, self._remainder, derive_key(key, 1))
        hard = places < self._num_hard
        # every hard row is drawn, and its place is random already
        numbers = places.copy()
        others = self.num_rows - self._num_hard
        numbers[~hard] = permute(places[~hard] - self._num_hard, others, derive_key(key, 2))
        return self._groups.take(hard.astype(np.int64), numbers)

    def unbiased_weights(self, epoch: int, indices: Ints) -> npt.NDArray[np.float64]:
        others = self.num_rows - self._num_hard
        others_drawn = self._remainder - self._num_hard
        if not self._passes and others and not others_drawn:
            raise RequestError(
                f"hard_ratio={self.hard_ratio}: only the {self._num_hard} hardest rows are drawn, "
                "which no weights can correct"
            )
        # how often a row occurs in an epoch, on average: others, hard rows
        counts = np.array([self._passes + others_drawn / max(others, 1), self._passes + 1.0])
        hardest = self._groups.rows[self._groups.starts[1] :]
        at = np.minimum(np.searchsorted(hardest, indices), max(len(hardest) - 1, 0))
        hard = hardest[at] == indices if len(hardest) else np.zeros(len(indices), dtype=np.bool_)
        result: npt.NDArray[np.float64] = (
            self.num_samples / self.num_rows / counts[hard.astype(np.int64)]
        )
        return result

    def reseed(self, seed: int) -> None:
        check_unchanged(self._scores, self._checksum)
        super().reseed(seed)
        self._rank_rows(self._scores)

    def identity(self) -> dict[str, Any]:
        return {
            "sampler": "hardest",  # not "hard", whose states are of other draws
            "rows": self.num_rows,
            "num_samples": self.num_samples,
            "hard_ratio": self.hard_ratio,
            "seed": self.seed,
            "checksum": self._checksum,
            "score_snapshot_id": self.score_snapshot_id,
        }

    def _rank_rows(self, scores: npt.NDArray[Any] | None) -> None:
        self._scores = scores
        self._passes, self._remainder = divmod(self.num_samples, self.num_rows)
        self._num_hard = 0 if scores is None else round(self.hard_ratio * self._remainder)
        self._checksum = None if scores is None else checksum(scores)
        sizes = [self.num_rows - self._num_hard, self._num_hard]
        given = np.zeros(self.num_rows, dtype=np.bool_) if scores is None else scores
        # A new object, so that a copy of this sampler keeps the old one.
        self._groups: Groups = split_by_score(given, sizes, derive_key(self.seed, 0x4A2))


def _scores_by(function: DifficultyFn, rows: int) -> npt.NDArray[np.float64]:
    """Evaluate the function for all rows, on arrays of indices if it supports them."""
    scores = np.empty(rows, dtype=np.float64)
    for start in range(0, rows, PIECE):
        indices = np.arange(start, min(start + PIECE, rows), dtype=np.int64)
        scores[start : start + len(indices)] = _call(function, indices)
    return as_numbers(scores, "difficulty_fn", negative=True)


def _call(function: DifficultyFn, indices: Ints) -> Any:
    try:
        difficulties = np.asarray(function(indices), dtype=np.float64)
        if difficulties.shape == indices.shape:
            return difficulties
    except Exception:  # a function of one index may raise anything when called with an array
        pass
    return [float(function(index)) for index in indices.tolist()]


__all__ = ["HardExampleMiningSampler"]
