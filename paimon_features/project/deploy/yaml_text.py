"""Documents as YAML: the same documents result in the same bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

Document = Mapping[str, Any]

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_WORDS = re.compile(r"(?i:y|n|yes|no|on|off|true|false|null|none|nan|inf)")
_NOT_IN_BLOCKS = re.compile("[\x85\u2028\u2029\ufeff]")


def to_yaml(documents: Sequence[Document]) -> str:
    """Return the documents as a YAML stream.

    >>> print(to_yaml([{"kind": "Pod", "args": ["--port", "80"], "spec": {}}]), end="")
    kind: Pod
    args:
      - "--port"
      - "80"
    spec: {}

    Raises
    ------
    yaml.YAMLError
        For a value that YAML has no type for.
    """
    options = {"sort_keys": False, "allow_unicode": True, "width": float("inf")}
    return "---\n".join(yaml.dump(document, Dumper=_Dumper, **options) for document in documents)


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writes repeated values in full, and indents lists below their key."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, indentless=False)

    def represent_text(self, value: str) -> Any:
        return self.represent_scalar("tag:yaml.org,2002:str", value, style=_style(value))


_Dumper.add_representer(str, _Dumper.represent_text)


def _style(value: str) -> str | None:
    """Return the style of a text that no version of YAML reads as another type.

    PyYAML quotes what YAML 1.1 reads as a number; Kubernetes also reads YAML 1.2 (``1e3``).
    """
    if _PLAIN.fullmatch(value) and not _WORDS.fullmatch(value):
        return None
    return "|" if value.count("\n") > 1 and not _NOT_IN_BLOCKS.search(value) else '"'
