"""Which tests ``make test`` leaves to ``make chaos``."""

from __future__ import annotations

import os

import pytest

CHAOS = "PAIMON_FEATURES_KILLS" in os.environ
"""Whether ``make chaos`` runs."""


def part_of_chaos(why: str) -> pytest.MarkDecorator:
    """Skip a test, or all of a module as its ``pytestmark``, unless ``make chaos`` runs.

    ``why``: what it costs, or what covers its kind in ``make test``.
    """
    return pytest.mark.skipif(not CHAOS, reason=f"{why}: make chaos")
