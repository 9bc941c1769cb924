"""Names of definitions for the shell, from the text of the definitions file: nothing is run."""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from paimon_features.core.configuration.project_config import find_root, read_config
from paimon_features.core.errors import PaimonFeaturesError

VIEWS = frozenset({"FeatureView", "TumblingView", "SessionView"})
SOURCES = frozenset({"EventSource", "FeedbackSource"})
READABLE = VIEWS | {"FeatureService"}
Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
_LARGEST = 4 << 20


def defined_names(path: Path, kinds: Collection[str] | None = None) -> dict[str, str]:
    """Name -> class of the definitions in a Python file, as they are written there.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "features.py")
    ...     _ = file.write_text("import paimon_features as pf\\nx = pf.Entity('customer', keys={})")
    ...     defined_names(file)
    {'customer': 'Entity'}
    """
    if not path.is_file() or path.stat().st_size > _LARGEST:
        return {}
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError):
        return {}
    kind_of = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        kind = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        values = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "name")]
        for value in values:
            wanted = kind[:1].isupper() if kinds is None else kind in kinds
            if wanted and isinstance(value, ast.Constant) and isinstance(value.value, str):
                kind_of[value.value] = kind
    return kind_of


def completer(kinds: Collection[str]) -> Completer:
    """Return what completes an argument with names of these classes."""

    def complete(ctx: click.Context, _: click.Parameter, begun: str) -> list[CompletionItem]:
        try:
            config = read_config(find_root(Path(ctx.find_root().params.get("path") or ".")))
        except PaimonFeaturesError:
            return []
        names = defined_names(config.definitions, kinds)
        return [CompletionItem(n, help=k) for n, k in names.items() if n.startswith(begun)]

    return complete


ANY_NAME = completer(READABLE | SOURCES | {"Entity", "Interaction", "Transformed", "TableView"})
VIEW_NAME, SOURCE_NAME, READ_NAME = completer(VIEWS), completer(SOURCES), completer(READABLE)
