"""Square roots of fractions, and the deviations and shapes made of them, are rounded once."""

from __future__ import annotations

import math
import random
from decimal import Decimal, localcontext

import numpy as np
import pytest

import paimon_features as pf
from paimon_features.definitions.aggregates import rounding
from paimon_features.definitions.aggregates.rounding import root_of_fraction, roots_of_fractions
from paimon_features.testing.sizes import every_seed, many


def nearest_root(numerator: int, denominator: int) -> float:
    """The nearest float, by two hundred decimal digits."""
    with localcontext(prec=200):
        return float((Decimal(numerator) / Decimal(denominator)).sqrt())


def fraction(rng: random.Random, bits: int) -> tuple[int, int]:
    """A fraction of up to so many bits, sometimes the square of another one."""
    if rng.random() < 0.2:
        bits //= 2
        above, below = (rng.randrange(1, 2 ** rng.randint(1, bits)) for _ in range(2))
        return above * above, below * below
    return rng.randrange(2 ** rng.randint(1, bits)), rng.randrange(1, 2 ** rng.randint(1, bits))


def test_roots_of_fractions_are_the_nearest_floats() -> None:
    rng = random.Random(5)
    pairs = [fraction(rng, 53) for _ in range(many(3000))] + [
        (0, 1),
        (2**53 - 1, 1),
        (1, 2**53 - 1),
    ]
    wanted = [nearest_root(*pair) for pair in pairs]
    above, below = (np.array(side, np.int64) for side in zip(*pairs, strict=True))
    assert roots_of_fractions(above, below).tolist() == wanted
    assert [root_of_fraction(*pair) for pair in pairs] == wanted
    # what this is for: two roundings are often one unit in the last place off
    twice = [math.sqrt(a / b) for a, b in pairs]
    assert sum(a != b for a, b in zip(twice, wanted, strict=True)) > len(pairs) / 20


def test_roots_of_large_fractions_are_the_nearest_floats() -> None:
    rng = random.Random(6)
    for _ in range(many(1000)):
        pair = fraction(rng, 400)
        assert root_of_fraction(*pair) == nearest_root(*pair), pair


def test_integers_decide_where_floats_are_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(7)
    pairs = [fraction(rng, 53) for _ in range(300)]
    above, below = (np.array(side, np.int64) for side in zip(*pairs, strict=True))
    found = roots_of_fractions(above, below)
    monkeypatch.setattr(rounding, "_DOUBT", 1e6)  # everything is in doubt
    monkeypatch.setattr(rounding, "_SPLITTER", 1.0)  # and the correction is wrong
    assert roots_of_fractions(above, below).tolist() == found.tolist()


@every_seed(60)
def test_an_exact_deviation_is_the_float_nearest_to_the_root(seed: int) -> None:
    rng = random.Random(seed)
    scale, ddof = rng.randrange(10), rng.randrange(2)
    size = rng.choice((1, 10, 2**20, 2**43)) / 10**scale
    values = [rng.uniform(-size, size) for _ in range(rng.choice((2, 3, 7, 40)))]
    units = [round(value * 10.0**scale) for value in values]
    n = len(units)
    spread = n * sum(unit * unit for unit in units) - sum(units) ** 2
    wanted = nearest_root(spread, n * (n - ddof) * 10 ** (2 * scale))
    deviation = pf.StdDev("x", scale=scale, ddof=ddof, bound=1e15)
    assert pf.evaluate(deviation, [{"x": value} for value in values]) == wanted


@every_seed(60)
def test_an_exact_skewness_is_the_float_nearest_to_the_exact_one(seed: int) -> None:
    rng = random.Random(seed)
    size = rng.choice((2, 100, 2**30))
    values = [rng.randint(-size, size) for _ in range(rng.choice((3, 8, 40)))]
    n, total = len(values), sum(values)
    m2 = sum((n * value - total) ** 2 for value in values)
    m3 = sum((n * value - total) ** 3 for value in values)
    wanted = None if m2 == 0 else math.copysign(nearest_root(m3 * m3 * n, m2**3), m3)
    assert pf.evaluate(pf.Skewness("n"), [{"n": value} for value in values]) == wanted
