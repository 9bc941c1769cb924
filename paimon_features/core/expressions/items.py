"""Items of lists: texts that sort like their parts in turn, and that a comma can separate.

::

    item(a, b, v) = part a | U+0001 | part b | U+0001 | part v

    int64             a letter for the number of digits, the digits; below zero digits complemented
    string            ' and the text, in which + is +a and , is +b; before the last part also
                      U+0000 is U+0002 a, U+0001 is U+0002 b, U+0002 is U+0002 c
    all others        as in ``ordered``
    NULL              nothing, which sorts first; where the last part is NULL, so is the item

The lake joins items by commas (its ``listagg``), so an item contains none. ``+``
is the character before the comma, so escaped commas stay unambiguous and texts still sort
by code point. No item is empty, because ``listagg`` drops empty texts.

``distinct_item`` converts the digest of such a text to the sketch of a set with one element; see
``paimon_features.definitions.aggregates.registers``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import DamagedValueError
from paimon_features.core.expressions.ordered import TIME_DIGITS, decode_ordered, encode_ordered
from paimon_features.core.types.array_types import Array
from paimon_features.core.types.schema import DataType
from paimon_features.core.windows import MIN_TIME_MS

DELIMITER = ","
"""Between the items of a list."""
PART = "\x01"
"""Between the parts of an item."""
POSITIVE = "abcdefghijklmnopqrs"
"""Letters of 1 to 19 digits."""
NEGATIVE = "YXWVUTSRQPONMLKJIHG"
"""Letters of 1 to 19 digits below zero."""
ESCAPES = (("+", "+a"), (",", "+b"))
PART_ESCAPES = (("\x02", "\x02c"), ("\x01", "\x02b"), ("\x00", "\x02a"))
SKETCH_HEADER = "3a300000010000000000000010000000"
"""A roaring bitmap in its portable form, up to the one value of its one array container: cookie
12346, one container, its key 0, its number of values minus one, its offset; little endian."""
RANK_LIMITS = tuple(f"{1 << (15 - i):04x}" for i in range(14))
"""Lower bounds of four hexadecimal digits of rank 1, 2, ... 14; below the last the rank is 15."""

_COMPLEMENT = str.maketrans("0123456789", "9876543210")


def encode_items(parts: Sequence[Column], kinds: Sequence[DataType]) -> Array:
    """Return the items of parts of equal length as an object array; last parts are not null."""
    texts = []
    for position, (column, kind) in enumerate(zip(parts, kinds, strict=True)):
        last = position == len(parts) - 1
        encoded = np.full(len(column), "", object)
        mask = column.mask
        if mask.any():
            encoded[mask] = _part_texts(column.values[mask], kind, last)
        texts.append(encoded)
    if len(texts) == 1:
        return texts[0]
    out = np.empty(len(texts[0]), object)
    out[:] = [PART.join(row) for row in zip(*texts, strict=True)]
    return out


def _part_texts(values: Array, kind: DataType, last: bool) -> Array:
    out = np.empty(len(values), object)
    if kind.text == "int64":
        out[:] = [int_text(value) for value in values.tolist()]
    elif kind.text == "string":
        out[:] = [string_text(value, last) for value in values.tolist()]
    else:
        ordered = encode_ordered(np.full(len(values), MIN_TIME_MS), values, kind)
        out[:] = [text[TIME_DIGITS:] for text in ordered.tolist()]
    return out


def int_text(value: int) -> str:
    """Return an integer as a part: ``c123`` for 123, ``X76`` for -23."""
    if value >= 0:
        digits = str(value)
        return POSITIVE[len(digits) - 1] + digits
    digits = str(value)[1:]
    return NEGATIVE[len(digits) - 1] + digits.translate(_COMPLEMENT)


def string_text(value: str, last: bool) -> str:
    """Return a text as a part."""
    for character, escape in ESCAPES if last else (*PART_ESCAPES, *ESCAPES):
        value = value.replace(character, escape)
    return "'" + value


def decode_items(items: Sequence[str], kind: DataType, parts: int = 1) -> list[Any]:
    """Return the last of ``parts`` parts of each item, as Python values of type ``kind``.

    Types are those of 64 bits; dates are days and timestamps milliseconds since 1970.

    >>> from paimon_features.core.types.schema import Int64, String
    >>> decode_items(["m1323388800123" + PART + "X76"], Int64, parts=2)
    [-23]
    >>> decode_items([string_text("1,5 + 2", last=True)], String)
    ['1,5 + 2']

    Raises
    ------
    DamagedValueError
        For texts that are not items of this type.
    """
    # only the last part can contain the delimiter of parts
    lasts = [item.split(PART, parts - 1)[-1] for item in items] if parts > 1 else items
    if kind.text == "int64":
        return _ints_of(lasts)
    if kind.text == "string":
        return [text[1:].replace("+b", ",").replace("+a", "+") for text in lasts]
    texts = np.empty(len(lasts), object)
    texts[:] = ["0" * TIME_DIGITS + text for text in lasts]
    values: list[Any] = decode_ordered(texts, kind)[1].values.tolist()
    return values


def _ints_of(texts: Sequence[str]) -> list[int]:
    try:
        values: list[int] = np.fromiter(map(_int_of, texts), np.int64, len(texts)).tolist()
    except (ValueError, IndexError, OverflowError) as error:
        raise DamagedValueError(f"an item is not an integer ({error})") from error
    return values


def _int_of(text: str) -> int:
    if text[0] in POSITIVE:
        return int(text[1:])
    return -int(text[1:].translate(_COMPLEMENT))


def digest_of(text: str) -> str:
    """Return the MD5 of a text as 32 hexadecimal digits."""
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def sketch_of(digest: str) -> bytes:
    """Return the sketch of the set that contains one value of this digest: 18 bytes.

    Its one number has a register (12 bits of the digest) and a rank, which is 1 plus the number of
    leading zeros in 16 further bits, 15 at most.

    >>> sketch_of(digest_of("'a")).hex()[-4:]
    '3176'
    """
    rank = next((i for i, limit in enumerate(RANK_LIMITS, 1) if digest[3:7] >= limit), 15)
    return bytes.fromhex(f"{SKETCH_HEADER}{rank:x}{digest[:3]}")
