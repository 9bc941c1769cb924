"""The number of cases of a random test: few in the suite, many more with ``make fuzz``.

``tools/fuzz.py`` repeats all of them with new seeds for a given time.
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
"""The environment variable with the seed of a run of random tests."""

USUAL = 100
"""The examples of the default profile; other profiles scale the number of cases in proportion."""


def many(in_suite: int) -> int:
    """Return ``in_suite`` cases, or fifty times as many in a profile of 5,000 examples.

    The profile at the time of the call applies.
    """
    return max(1, in_suite * settings().max_examples // USUAL)


def cases(in_suite: int) -> Callable[[Test], Test]:
    """Set the number of cases of a Hypothesis test; place it below ``given``.

    >>> @cases(40)
    ... def test_something(seed): ...
    """
    return settings(max_examples=many(in_suite))


def seeds(in_suite: int) -> Sequence[int]:
    """Return the seeds of a random test: 0, 1, 2, ..., or others if PAIMON_FEATURES_SEED is set.

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

    >>> @every_seed(10)
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

        signature = inspect.signature(test)
        others = [parameter for name, parameter in signature.parameters.items() if name != "seed"]
        run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return run

    return decorate
