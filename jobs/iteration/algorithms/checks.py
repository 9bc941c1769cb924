"""Checks of parameters, in the constructor of an algorithm."""

from __future__ import annotations

from typing import Any

from paimon_features.errors import DefinitionError


def at_least(estimator: Any, least: float, *parameters: str) -> None:
    """DefinitionError for a parameter below ``least``."""
    for name in parameters:
        if not getattr(estimator, name) >= least:
            _wrong(estimator, name, f"{least} or more")


def within(estimator: Any, low: float, high: float, *parameters: str) -> None:
    """DefinitionError for a parameter outside ``[low, high]``."""
    for name in parameters:
        if not low <= getattr(estimator, name) <= high:
            _wrong(estimator, name, f"a number from {low} to {high}")


def one_of(estimator: Any, name: str, choices: tuple[str, ...]) -> None:
    """DefinitionError for a parameter that is none of the choices."""
    if getattr(estimator, name) not in choices:
        _wrong(estimator, name, f"one of: {', '.join(choices)}")


def _wrong(estimator: Any, name: str, expected: str) -> None:
    got = getattr(estimator, name)
    raise DefinitionError(f"{type(estimator).__name__}: {name}={got!r}; expected {expected}")
