"""Grids of cases of which ``make test`` runs a few, and ``make test-long`` the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def quick_cases(values: Iterable[Any], *quick: Any) -> list[Any]:
    """Parameters of a test: these are quick, all others are marked ``long``.

    A tuple is a value for each argument.
    """
    cases = list(values)
    assert all(case in cases for case in quick), quick
    return [
        case
        if case in quick
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long)
        for case in cases
    ]
