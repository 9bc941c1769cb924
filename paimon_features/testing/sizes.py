"""How many cases a random test tries: some in the suite, many times as many with ``make fuzz``.

``tools/fuzz.py`` repeats all of them with new seeds, for as long as it is told.
"""

from __future__ import annotations

import functools
import inspect
import os
import random
from collections.abc import Callable, Sequence
from typing import TypeVar

from hypothesis import settings

Test = TypeVar("Test", bound=Callable[..., None])

SEED = "PAIMON_FEATURES_SEED"
"""The variable that makes a run of random tests another one, or the same one again."""

USUAL = 100
"""The examples of the default profile. One with so many times more has so many times the cases."""


def many(in_suite: int) -> int:
    """So many cases in the suite, in a profile of 5,000 examples fifty times as many.

    The profile that counts is the one at the time of the call.
    """
    return max(1, in_suite * settings().max_examples // USUAL)


def cases(in_suite: int) -> Callable[[Test], Test]:
    """The number of cases of a Hypothesis test; it stands below ``given``.

    >>> @cases(40)
    ... def test_something(seed): ...
    """
    return settings(max_examples=many(in_suite))


def seeds(in_suite: int) -> Sequence[int]:
    """Seeds for ``pytest.mark.parametrize``: 0, 1, 2, ..., or others where PAIMON_FEATURES_SEED is.

    >>> len(seeds(8)) == many(8)
    True
    """
    start = os.environ.get(SEED)
    if start is None:
        return range(many(in_suite))
    rng = random.Random(start)
    return [rng.randrange(2**32) for _ in range(many(in_suite))]


def every_seed(in_suite: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test once for each of :func:`seeds`, in one item; a failure names its seed.

    The test takes ``seed`` in addition to its other parameters.

    >>> @every_seed(3)
    ... def test_squares(seed): assert seed < 2
    >>> try:
    ...     test_squares()
    ... except AssertionError as error:
    ...     error.__notes__
    ['seed 2']
    """

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**fixtures: object) -> None:
            for seed in seeds(in_suite):
                try:
                    test(seed=seed, **fixtures)
                except BaseException as error:
                    error.add_note(f"seed {seed}")
                    raise

        own = inspect.signature(test)
        others = [each for name, each in own.parameters.items() if name != "seed"]
        run.__signature__ = own.replace(parameters=others)  # type: ignore[attr-defined]
        return run

    return decorate
