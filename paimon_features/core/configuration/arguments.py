"""Types of arguments, checked from the annotations of their dataclasses."""

from __future__ import annotations

import functools
import operator
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, get_args, get_origin

from paimon_features.core.errors import ConfigurationError, DefinitionError

_LONGEST = 80
# as plain values: type checkers know them as special forms
_ANYTHING: Any = Any
_CALLABLE: Any = Callable


def check_arguments(
    subject: str, instance: Any, error: type[DefinitionError | ConfigurationError] = DefinitionError
) -> None:
    """Check the arguments of a dataclass against their annotations, lists and dicts one level deep.

    A ``float`` may be an ``int``, and no number is a ``bool``. Annotations other than classes,
    unions, literals, callables, sequences and mappings are not checked.

    Raises
    ------
    DefinitionError, or ``error``
        For the first argument of another type; the message begins with ``subject``.

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
    paimon_features.core.errors.DefinitionError: point: names='a'; expected a list of str or None
    """
    for name, hint in _hints(instance.__class__):
        value = getattr(instance, name)
        if not _fits(value, hint):
            raise error(f"{subject}: {name}={shown(value)}; expected {_text(hint)}")


def checked_integer(what: str, value: Any, minimum: int = 1) -> int:
    """Return an integer, also one of NumPy, as Python's.

    Raises
    ------
    DefinitionError
        For any other value, a boolean included, and for one below ``minimum``.

    Examples
    --------
    >>> checked_integer("parallelism", 2)
    2
    >>> checked_integer("parallelism", 2.5)
    Traceback (most recent call last):
    ...
    paimon_features.core.errors.DefinitionError: parallelism is 2.5; expected an integer ...
    """
    boolean = isinstance(value, bool) or str(getattr(value, "dtype", "")) == "bool"
    try:
        number = None if boolean else operator.index(value)
    except TypeError:
        number = None
    if number is None:
        raise DefinitionError(
            f"{what} is {shown(value)}; expected an integer of at least {minimum}"
        )
    if number < minimum:
        raise DefinitionError(f"{what} is {number}; it must be at least {minimum}")
    return number


def checked_text(what: str, value: Any) -> str:
    """Return a text.

    Raises
    ------
    DefinitionError
        For any other value, and for an empty text.

    Examples
    --------
    >>> checked_text("the name of a job", 3)
    Traceback (most recent call last):
    ...
    paimon_features.core.errors.DefinitionError: the name of a job is 3; expected text
    """
    if not isinstance(value, str) or not value:
        raise DefinitionError(f"{what} is {shown(value)}; expected text")
    return value


def plain_arguments(instance: Any) -> None:
    """Replace NumPy's numbers in the fields of a frozen dataclass by Python's, lists by tuples.

    >>> import numpy as np
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Point:
    ...     x: int
    >>> point = Point(np.int64(3))
    >>> plain_arguments(point)
    >>> point
    Point(x=3)
    """
    for field in fields(instance):
        value = getattr(instance, field.name)
        if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
            object.__setattr__(instance, field.name, value.item())
        elif isinstance(value, list):
            object.__setattr__(instance, field.name, tuple(value))


def shown(value: Any) -> str:
    """Return a value as in a message: a class by its name, and long values cut.

    >>> shown(int), shown("x"), len(shown("x" * 100))
    ('int', "'x'", 80)
    """
    text = value.__name__ if isinstance(value, type) else repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


@functools.cache
def _hints(kind: Any) -> tuple[tuple[str, Any], ...]:
    hints = typing.get_type_hints(kind)
    return tuple((field.name, hints[field.name]) for field in fields(kind) if field.init)


def _fits(value: Any, hint: Any) -> bool:
    if hint is _ANYTHING:
        return True
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in inner)
    if origin is typing.Literal:
        return any(type(value) is type(literal) and value == literal for literal in inner)
    if origin is tuple and len(inner) == 2 and inner[1] is Ellipsis:
        return isinstance(value, tuple) and all(_fits(item, inner[0]) for item in value)
    if origin is not None and isinstance(origin, type):
        if origin is _CALLABLE:
            return callable(value)
        if issubclass(origin, Mapping):
            return isinstance(value, Mapping) and all(
                _fits(key, inner[0]) and _fits(item, inner[1]) for key, item in value.items()
            )
        if issubclass(origin, Iterable) and origin is not tuple:
            return is_list(value) and all(_fits(item, inner[0]) for item in value)
        return True
    if hint is float:
        return isinstance(value, float | int) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is type(None):
        return value is None
    return not isinstance(hint, type) or isinstance(value, hint)


def is_list(value: Any) -> bool:
    """Return True if a value is a list or another sequence, but no text.

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
    if origin is _CALLABLE:
        return "a callable"
    if isinstance(origin, type) and issubclass(origin, Iterable):
        return f"a list of {_text(inner[0])}"
    return "None" if hint is type(None) else getattr(hint, "__name__", str(hint))
