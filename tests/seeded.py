"""Random tests as one item each: all seeds in a loop, with the failing one in the error."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from paimon_features.testing.sizes import seeds


def for_seeds(in_suite: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call a test with ``seed=`` for ``seeds(in_suite)``; a failure gets a note with the seed.

    ``make fuzz`` runs such tests, too. All seeds share the fixtures: the test must not leave state
    behind in them.
    """

    def fold(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            for seed in seeds(in_suite):
                try:
                    test(seed=seed, **fixtures)
                except BaseException as error:
                    error.add_note(f"seed={seed!r}")
                    raise

        signature = inspect.signature(test)
        others = [each for name, each in signature.parameters.items() if name != "seed"]
        run.folded_seeds = in_suite  # type: ignore[attr-defined]  # `make fuzz` selects it by this
        run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        return run

    return fold
