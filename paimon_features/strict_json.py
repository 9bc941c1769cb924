"""JSON that every reader reads alike: no key twice, no NaN, no nesting without end.

A check and a loader may use two parsers, and parsers differ in which of two equal keys counts.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn


def strict_json(text: str | bytes | bytearray) -> Any:
    """Return the value of a JSON text in UTF-8.

    >>> strict_json('{"a": [1, null]}')
    {'a': [1, None]}
    >>> strict_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ValueError: it has the key 'a' twice in one object

    Raises
    ------
    ValueError
        For another text.
    """
    if not isinstance(text, str):
        text = bytes(text).decode("utf-8")
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"it has the key {name[:80]!r} twice in one object")
        found[name] = value
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON number")
