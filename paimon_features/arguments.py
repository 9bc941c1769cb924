"""Types of the arguments of definitions, checked from the annotations of their dataclasses."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, get_args, get_origin

from paimon_features.errors import DefinitionError

_LONGEST = 80


def check_arguments(what: str, made: Any) -> None:
    """Check the arguments of a dataclass against their annotations, lists and dicts one level deep.

    A ``float`` may be an ``int``, and no number is a ``bool``. Annotations other than classes,
    unions, literals, sequences and mappings are not checked.

    Raises
    ------
    DefinitionError
        For the first argument of another type; the message begins with ``what``.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Point:
    ...     x: float
    ...     names: Sequence[str] | None = None
    >>> check_arguments("point", Point(1, ["a"]))
    >>> check_arguments("point", Point(1, "a"))
    Traceback (most recent call last):
    ...
    paimon_features.errors.DefinitionError: point: names='a'; expected a list of str or None
    """
    for name, hint in _hints(made.__class__):
        value = getattr(made, name)
        if not _fits(value, hint):
            raise DefinitionError(f"{what}: {name}={shown(value)}; expected {_text(hint)}")


def shown(value: Any) -> str:
    """A value as in a message: a class by its name, and long values cut.

    >>> shown(int), shown("x"), len(shown("x" * 100))
    ('int', "'x'", 80)
    """
    text = value.__name__ if isinstance(value, type) else repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


@functools.cache
def _hints(made: Any) -> tuple[tuple[str, Any], ...]:
    hints = typing.get_type_hints(made)
    return tuple((field.name, hints[field.name]) for field in fields(made) if field.init)


def _fits(value: Any, hint: Any) -> bool:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, each) for each in inner)
    if origin is typing.Literal:
        return any(type(value) is type(each) and value == each for each in inner)
    if origin is not None and isinstance(origin, type):
        if issubclass(origin, Mapping):
            return isinstance(value, Mapping) and all(
                _fits(key, inner[0]) and _fits(each, inner[1]) for key, each in value.items()
            )
        if issubclass(origin, Iterable) and origin is not tuple:
            return is_list(value) and all(_fits(each, inner[0]) for each in value)
        return True
    if hint is float:
        return isinstance(value, float | int) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is type(None):
        return value is None
    return not isinstance(hint, type) or isinstance(value, hint)


def is_list(value: Any) -> bool:
    """Whether a value is a list or another sequence, but no text.

    >>> is_list(["1d"]), is_list("1d"), is_list(3)
    (True, False, False)
    """
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _text(hint: Any) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_text, inner))
    if origin is typing.Literal:
        return ", ".join(map(repr, inner))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"a dict of {_text(inner[0])} to {_text(inner[1])}"
    if isinstance(origin, type) and issubclass(origin, Iterable) and origin is not tuple:
        return f"a list of {_text(inner[0])}"
    return "None" if hint is type(None) else getattr(hint, "__name__", str(hint))
