"""What a misspelt name may mean."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

_LONGEST = 64
"""Longer names get no suggestion: the comparison takes quadratic time."""


def did_you_mean(
    name: object, known: Iterable[str], synonyms: Mapping[str, str] | None = None
) -> str:
    """The end of a message with the known name that is most similar, or nothing.

    ``synonyms`` maps names of other libraries, in lower case, to ours.

    >>> did_you_mean("quantitiy", ["price", "quantity"])
    "; did you mean 'quantity'?"
    >>> did_you_mean("Avg", ["Mean", "Sum"], {"avg": "Mean"})
    "; did you mean 'Mean'?"
    >>> did_you_mean("x", ["price", "quantity"])
    ''
    """
    text = str(name).lower()
    if len(text) > _LONGEST:
        return ""
    spelt = {each.lower(): each for each in known}
    meant = (synonyms or {}).get(text)
    if meant is None:
        close = difflib.get_close_matches(text, spelt, 1)
        meant = spelt[close[0]] if close else None
    return "" if meant is None else f"; did you mean {meant!r}?"
