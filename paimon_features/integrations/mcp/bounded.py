"""Documents that fit into a language model's context: long lists and texts are cut, and counted."""

from __future__ import annotations

import json
from typing import Any

from paimon_features.core.errors import RequestError

MAX_BYTES = 48 << 10
"""The largest reply, in bytes of JSON."""
MAX_TEXT = 2_000
"""Characters of one text."""
_MAX_ITEMS = (1_000, 300, 100, 30, 10, 3)


def bounded(document: dict[str, Any], max_bytes: int = MAX_BYTES) -> dict[str, Any]:
    """Return the document with lists and texts cut so that its JSON has at most ``max_bytes``.

    Lists keep their first items; ``truncated`` maps the path of each list that was cut to the
    number of its items. A document that fits is returned unchanged.

    >>> bounded({"cells": list(range(100)), "name": "spend"}, 120)
    {'cells': [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], 'name': 'spend', 'truncated': {'cells': 100}}

    Raises
    ------
    RequestError
        If it cannot be made to fit.
    """
    for most in _MAX_ITEMS:
        cut: dict[str, int] = {}
        small: dict[str, Any] = _cut(document, most, "", cut)
        if cut:
            small["truncated"] = dict(list(cut.items())[:100])
        if len(json.dumps(small, default=str)) <= max_bytes:
            return small
    raise RequestError(
        f"the reply is larger than {max_bytes:,} bytes even when cut; request less of it: fewer "
        "features or entities, or one definition"
    )


def _cut(value: Any, most: int, path: str, cut: dict[str, int]) -> Any:
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT else value[:MAX_TEXT] + "…"
    if isinstance(value, dict):
        if len(value) > most:
            cut[path or "."] = len(value)
        kept = list(value.items())[:most]
        return {
            name: _cut(inner, most, f"{path}.{name}" if path else str(name), cut)
            for name, inner in kept
        }
    if isinstance(value, list | tuple):
        if len(value) > most:
            cut[path or "."] = len(value)
        return [_cut(inner, most, f"{path}[{i}]", cut) for i, inner in enumerate(value[:most])]
    return value
