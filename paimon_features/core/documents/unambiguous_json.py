"""JSON that every reader reads alike: no key twice, no NaN, no nesting without end.

A check and a loader may use two parsers, and parsers differ in which of two equal keys counts.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from paimon_features.core.errors import RequestError
from paimon_features.core.repeated_items import duplicates


class AmbiguousJsonError(ValueError):
    """A JSON text that readers read differently: a repeated key, or a number out of range."""


def parse_unambiguous_json(text: str | bytes | bytearray) -> Any:
    """Return the value of a JSON text in UTF-8.

    >>> parse_unambiguous_json('{"a": [1, null]}')
    {'a': [1, None]}
    >>> parse_unambiguous_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    paimon_features.core.documents.unambiguous_json.AmbiguousJsonError: it has the key 'a' twice ...

    Raises
    ------
    AmbiguousJsonError
        For a key that is twice in one object, or a number that is out of range.
    ValueError
        For another text.
    """
    if not isinstance(text, str):
        text = bytes(text).decode("utf-8")
    try:
        return json.loads(
            text, object_pairs_hook=_unique, parse_int=_int, parse_float=_float,
            parse_constant=_no_constant,
        )  # fmt: skip
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parse_event_json(where: str, text: str) -> dict[str, Any]:
    """Return the columns of an event from one JSON object; ``where`` is for errors.

    >>> parse_event_json("event", '{"card": 7, "amount": 9.5}')
    {'card': 7, 'amount': 9.5}

    Raises
    ------
    RequestError
        For anything else, and for ambiguous JSON.
    """
    try:
        event = parse_unambiguous_json(text)
    except ValueError as error:
        raise RequestError(f"{where}: not a JSON object: {error}") from error
    if not isinstance(event, dict):
        raise RequestError(f"{where}: expected one JSON object, the columns of the event")
    return event


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        double = duplicates(name for name, _ in pairs)[0][:80]
        raise AmbiguousJsonError(f"it has the key {double!r} twice in one object")
    return members


def _int(text: str) -> int:
    try:
        return int(text)
    except ValueError:  # thousands of digits
        raise _out_of_range(text) from None


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise _out_of_range(text)
    return number


def _out_of_range(text: str) -> AmbiguousJsonError:
    return AmbiguousJsonError(f"the number {text[:40]} is out of range")


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text}: JSON has no NaN and no Infinity; write null")
