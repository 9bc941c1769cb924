"""The texts that are values, as regular expressions that Java and Python read alike.

Every engine uses these, so that none accepts a text that another one rejects.
"""

from __future__ import annotations

_END = r"(?![\s\S])"
"""The end of a text; ``$`` is also the place before a line break at the end."""

INTEGER = r"^[+-]?[0-9]+(?:\.0*)?" + _END
FLOAT = r"^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?" + _END
NOT_FINITE = r"(?i)^[+-]?(?:nan|inf|infinity)" + _END
DATE = r"^(?!0000)[0-9]{4}-[0-9]{2}-[0-9]{2}" + _END
_CLOCK = r"(?:[01][0-9]|2[0-3]):[0-5][0-9](?::(?:[0-5][0-9]|60)(?:\.[0-9]+)?)?"
_OFFSET = r" ?(?:[Zz]|[+-](?:[01][0-9]|2[0-3])(?::?[0-5][0-9])?)"
TIME = rf"^(?!0000)[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}(?:[ Tt]{_CLOCK}(?:{_OFFSET})?|[Zz])?" + _END
"""RFC 3339, and its parts as others write them: no offset (UTC), no seconds, ``+0100``, ``+01``, a
day alone. A second 60 is a leap second, at the end of a day of UTC only."""


def decimal_pattern(scale: int) -> str:
    """Decimals with at most ``scale`` digits after the point, and further zeros.

    >>> import re
    >>> [bool(re.search(decimal_pattern(2), text)) for text in ("1.5", "1.500", "1.505", ".")]
    [True, True, False, False]
    """
    fraction = rf"[0-9]{{1,{scale}}}0*" if scale else "0+"
    return rf"^[+-]?(?:[0-9]+(?:\.(?:{fraction})?)?|\.{fraction})" + _END
