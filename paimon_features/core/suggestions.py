"""What a misspelt name may mean."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

_LONGEST = 64
"""Longer names get no suggestion: the comparison takes quadratic time."""


def did_you_mean(
    name: object, known: Iterable[str], synonyms: Mapping[str, str] | None = None
) -> str:
    """Return the end of a message: the most similar known name, or nothing.

    ``synonyms`` maps names of other libraries, in lower case, to ours.

    >>> did_you_mean("quantitiy", ["price", "quantity"])
    "; did you mean 'quantity'?"
    >>> did_you_mean("Avg", ["Mean", "Sum"], {"avg": "Mean"})
    "; did you mean 'Mean'?"
    >>> did_you_mean("x", ["price", "quantity"]), did_you_mean("VectorIndex", ["VectorMean"])
    ('', '')
    """
    text = str(name).lower()
    if len(text) > _LONGEST:
        return ""
    spelt = {candidate.lower(): candidate for candidate in known}
    meant = (synonyms or {}).get(text)
    if meant is None:
        close = difflib.get_close_matches(text, spelt, 1)
        meant = spelt[close[0]] if close and _is_misspelt(text, close[0]) else None
    return "" if meant is None else f"; did you mean {meant!r}?"


def _is_misspelt(text: str, candidate: str) -> bool:
    """Return True if few letters differ: names that only begin with the same word are other names.

    A name of which parts were left out is misspelt, however many letters that are.
    """
    matcher = difflib.SequenceMatcher(None, text, candidate, autojunk=False)
    equal = sum(block.size for block in matcher.get_matching_blocks())
    shortest, longest = sorted((len(text), len(candidate)))
    return equal == shortest or longest - equal <= max(2, longest // 3)
