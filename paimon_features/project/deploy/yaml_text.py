"""Documents as YAML: the part of YAML that Kubernetes needs, written the same way each time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Document = Mapping[str, Any]

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_WORDS = re.compile(r"(?i:y|n|yes|no|on|off|true|false|null|none|nan|inf)")
_PRINTABLE = re.compile(r"[\t\n\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd]*")


def to_yaml(documents: Sequence[Document]) -> str:
    """The documents as a YAML stream.

    >>> print(to_yaml([{"kind": "Pod", "args": ["--port", "80"], "spec": {}}]), end="")
    kind: Pod
    args:
      - "--port"
      - "80"
    spec: {}

    Raises
    ------
    TypeError
        For a value that is not a mapping, list, text, number, boolean or None.
    """
    return "---\n".join("\n".join(_mapping(each, "")) + "\n" for each in documents)


def _mapping(values: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, value in values.items():
        name = _text(key)
        if isinstance(value, Mapping) and value:
            yield f"{indent}{name}:"
            yield from _mapping(value, indent + "  ")
        elif isinstance(value, list | tuple) and value:
            yield f"{indent}{name}:"
            yield from _list(value, indent + "  ")
        elif isinstance(value, str) and _is_block(value):
            yield f"{indent}{name}: |"
            yield from (f"{indent}  {line}" if line else "" for line in value[:-1].split("\n"))
        else:
            yield f"{indent}{name}: {_scalar(value)}"


def _list(values: Sequence[Any], indent: str) -> Iterator[str]:
    for value in values:
        if isinstance(value, Mapping) and value:
            first, *rest = _mapping(value, indent + "  ")
            yield f"{indent}- {first[len(indent) + 2 :]}"
            yield from rest
        elif isinstance(value, list | tuple) and value:
            raise TypeError("a list in a list is not needed here")
        else:
            yield f"{indent}- {_scalar(value)}"


def _scalar(value: Any) -> str:
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping) and not value:
        return "{}"
    if isinstance(value, list | tuple) and not value:
        return "[]"
    raise TypeError(f"{value!r} has no YAML form here")


def _text(value: str) -> str:
    """A plain word where no parser can take it for anything else, otherwise a quoted text."""
    if _PLAIN.fullmatch(value) and not _WORDS.fullmatch(value):
        return value
    quoted = json.dumps(value, ensure_ascii=False)
    return "".join(c if _PRINTABLE.fullmatch(c) else _escape(c) for c in quoted)


def _escape(character: str) -> str:
    number = ord(character)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _is_block(value: str) -> bool:
    """Whether a text of several lines can be written as it is.

    Lines that start or end with white space stay readable, but the first one must not: its
    indentation would be taken for that of the block.
    """
    return (
        value.count("\n") > 1
        and value.endswith("\n")
        and not value.endswith("\n\n")
        and not value[0].isspace()
        and _PRINTABLE.fullmatch(value) is not None
    )
