"""JSON that was read from a file or a store, as values of declared types.

A record that is JSON and yet not what was written, such as ``{}``, must not read as one that says
nothing: ``typed`` checks it against the annotations of a dataclass.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from paimon_features.core.errors import shortened

T = TypeVar("T")


def typed(kind: type[T], document: Any) -> T:
    """Return a dataclass from a JSON object with its fields; others, and missing ones, are errors.

    Fields are of type int, str, bool, float, None, Any, a Literal, a union of these, a mapping with
    names as keys, a tuple (a JSON array), or another such dataclass.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Point:
    ...     x: int
    ...     label: str | None = None
    >>> typed(Point, {"x": 5})
    Point(x=5, label=None)
    >>> typed(Point, {"x": "5"})
    Traceback (most recent call last):
    ValueError: x='5', expected int
    >>> @dataclass
    ... class Path:
    ...     steps: tuple[int, ...]
    >>> typed(Path, {"steps": [1, 2]})
    Path(steps=(1, 2))

    Raises
    ------
    ValueError
        For a document of another form; the message says which field is wrong.
    """
    checked: T = _dataclass(kind, document)
    return checked


def mapping(document: Any, *keys: str) -> Mapping[str, Any]:
    """Return the JSON object, which has these keys and may have more.

    Raises
    ------
    ValueError
        For another document.
    """
    if not isinstance(document, dict):
        raise ValueError(f"{shortened(repr(document))}, expected a JSON object")
    for key in keys:
        if key not in document:
            raise ValueError(f"missing field {key!r}")
    return document


@functools.cache
def _types(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _dataclass(kind: Any, document: Any) -> Any:
    required = [f.name for f in fields(kind) if f.default is f.default_factory is MISSING]
    given = mapping(document, *required)
    hints = _types(kind)
    expected = {field.name: hints[field.name] for field in fields(kind)}
    for name in given:
        if name not in expected:
            raise ValueError(f"it has an unknown field {shortened(repr(name))}")
    return kind(**{name: _value(expected[name], value, name) for name, value in given.items()})


def _value(kind: Any, value: Any, name: str) -> Any:
    if is_dataclass(kind):
        return _dataclass(kind, value)
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        for one in get_args(kind):
            if value is None and one is type(None):
                return value
        present = [one for one in get_args(kind) if one is not type(None)]
        if value is not None and len(present) == 1:
            return _value(present[0], value, name)
    elif origin is Literal:
        if value in get_args(kind):
            return value
    elif origin is tuple:
        kinds = get_args(kind)
        if isinstance(value, list):
            if kinds[-1] is Ellipsis:
                kinds = kinds[:1] * len(value)
            if len(kinds) == len(value):
                pairs = enumerate(zip(kinds, value, strict=True))
                return tuple(_value(one, item, f"{name}[{i}]") for i, (one, item) in pairs)
    elif origin is not None and issubclass(origin, Mapping):
        if isinstance(value, dict):
            one = get_args(kind)[1]
            return {key: _value(one, item, f"{name}.{key}") for key, item in value.items()}
    elif kind is Any or type(value) is kind or (kind is float and type(value) is int):
        return value
    expected = getattr(kind, "__name__", None) if origin is None else None
    raise ValueError(f"{name}={shortened(repr(value))}, expected {expected or kind}")
