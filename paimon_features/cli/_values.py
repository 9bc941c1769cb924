"""Values on the command line: entity keys and request inputs read, features shown."""

from __future__ import annotations

import datetime as dt
import decimal
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import click

from paimon_features.core.documents.unambiguous_json import parse_event_json
from paimon_features.core.errors import RequestError, shortened
from paimon_features.core.types.schema import DataType

MAX_EVENT_BYTES = 1 << 20
ITEMS = 8
"""Items of a list to show, so that an embedding fits in a line."""
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def parse_entities(texts: Sequence[str], types: Mapping[str, DataType]) -> dict[str, list[Any]]:
    """Parse ``key=value,value`` texts to entity keys of their types.

    >>> from paimon_features.core.types.schema import Int64, String
    >>> parse_entities(["id=1,2", "shop=a\\\\,b", "shop=c"], {"id": Int64, "shop": String})
    {'id': [1, 2], 'shop': ['a,b', 'c']}

    Raises
    ------
    RequestError
        For a key of no requested view, or a value of the wrong type.
    """
    return _parsed("--entity", "KEY", texts, types)


def parse_request(texts: Sequence[str], types: Mapping[str, DataType]) -> dict[str, Any]:
    """Parse ``name=value`` texts to request inputs; a single value applies to all entities.

    >>> from paimon_features.core.types.schema import Float64
    >>> parse_request(["amount=9.5"], {"amount": Float64})
    {'amount': 9.5}

    Raises
    ------
    RequestError
        For an unused input, or a value of the wrong type.
    """
    parsed = _parsed("--request", "NAME", texts, types)
    return {name: values[0] if len(values) == 1 else values for name, values in parsed.items()}


def parse_event(text: str) -> dict[str, Any]:
    """Return the event that an option has: a JSON object, the path of a file with one, or ``-``.

    >>> parse_event('{"card": 7, "amount": 9.5}')
    {'card': 7, 'amount': 9.5}

    Raises
    ------
    RequestError
        For a file that cannot be read, and for anything else than one JSON object.
    """
    if not text.lstrip().startswith("{"):
        try:
            with click.open_file(text, "rb") as file:
                text = file.read(MAX_EVENT_BYTES + 1).decode()
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(f"--event {shortened(text)}: {error}") from error
    if len(text) > MAX_EVENT_BYTES:
        raise RequestError(f"--event: more than {MAX_EVENT_BYTES:,} bytes; expected one event")
    return parse_event_json("--event", text)


def _parsed(
    option: str, what: str, texts: Sequence[str], types: Mapping[str, DataType]
) -> dict[str, list[Any]]:
    lists: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or name not in types:
            names = ", ".join(types) or "none"
            raise RequestError(f"{option} {text}: expected {what}=VALUE with {what}: {names}")
        for value in re.split(r"(?<!\\),", values):
            kind = types[name]
            lists.setdefault(name, []).append(_value(option, name, value.replace("\\,", ","), kind))
    return lists


def _value(option: str, name: str, value: str, kind: DataType) -> Any:
    readers: Mapping[str, Callable[[str], Any]] = {
        "int32": int,
        "int64": int,
        "float32": float,
        "float64": float,
        "bool": lambda text: {"true": True, "false": False}[text.lower()],
        "date": dt.date.fromisoformat,
        "timestamp": dt.datetime.fromisoformat,
        "string": str,
    }
    try:
        return (decimal.Decimal if kind.is_decimal else readers[kind.text])(value)
    except (ValueError, KeyError, ArithmeticError):
        raise RequestError(f"{option} {name}={value}: {value!r} is not a valid {kind!r}") from None


def shown(value: Any) -> str:
    """Format a value for people: six digits, and the first items of a long list.

    >>> shown(1234.56789), shown(None), shown(["a", 0.1 + 0.2])
    ('1,234.57', '-', '[a, 0.3]')
    >>> shown([0.5] * 16)
    '[0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, ... 16 in all]'
    """
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, list):
        rest = [f"... {len(value)} in all"] if len(value) > ITEMS else []
        return f"[{', '.join([*map(shown, value[:ITEMS]), *rest])}]"
    return str(value)


def size_text(count: float) -> str:
    """Return a number of bytes.

    >>> size_text(17), size_text(2_000), size_text(5 << 30)
    ('17 B', '2.0 KiB', '5.0 GiB')
    """
    power = min(max(0, int(count).bit_length() - 1) // 10, len(_UNITS) - 1)
    value = count / 1_024**power
    return f"{value:,.1f} {_UNITS[power]}" if power else f"{count:.0f} B"
