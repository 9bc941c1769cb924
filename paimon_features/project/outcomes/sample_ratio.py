"""Whether a split assigned as many entities to a version as its share says.

Where it did not, something other than chance decides which entities have which version (a version
that fails for some of them, a log that is lost), and their losses are no comparison: Fabijan et
al., "Diagnosing sample ratio mismatch in online controlled experiments" (KDD 2019).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MISMATCH = 0.001
"""A mismatch is reported below this p-value, as Fabijan et al. do."""
_PRIOR = 100.0
"""Entities that the prior is worth: it expects ratios near the share."""


@dataclass(frozen=True)
class SampleRatio:
    """Entities of both versions, the expected share of the second one, and a p-value.

    The p-value may be looked at any time: with the right share it is ever below ``p`` with a
    probability of at most ``p``.
    """

    first: int
    second: int
    share: float
    p_value: float

    @classmethod
    def of(cls, counts: tuple[int, int], share: float) -> SampleRatio:
        """Compare the entities of two versions with the second one's share, from 0 to 1.

        One over the ratio of the marginal likelihood under a beta prior to that of the share:
        Lindon and Malek, "Anytime-valid inference for multinomial count data" (NeurIPS 2022),
        theorem 1.

        >>> SampleRatio.of((500, 520), 0.5).is_mismatch, SampleRatio.of((500, 700), 0.5).is_mismatch
        (False, True)
        """
        first, second = counts
        a, b = _PRIOR * (1 - share), _PRIOR * share
        log_ratio = (
            _log_beta(a + first, b + second) - _log_beta(a, b)
            - first * math.log(1 - share) - second * math.log(share)
        )  # fmt: skip
        return cls(first, second, share, math.exp(-max(log_ratio, 0.0)))

    @property
    def is_mismatch(self) -> bool:
        """Whether chance alone hardly explains the counts."""
        return self.p_value < MISMATCH


def _log_beta(a: float, b: float) -> float:
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
