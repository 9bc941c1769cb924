"""Imports by name, which import-linter does not see: each target exists, and the list is short."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("paimon_features", "trainer_bridge")

ALLOWED = {
    # engines are found by name, so that no engine is needed for the others
    ("paimon_features.engines", "paimon_features.flink.engine_entry"),
    ("paimon_features.engines", "paimon_features.local.engine_entry"),
    # the runtime offers the engine's job as one of its own names, without importing the engine
    ("paimon_features.iteration", "paimon_features.flink.iteration"),
}
"""Who names a module of a higher layer in a string, and which."""


def modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if "templates" not in path.parts:
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                yield name.removesuffix(".__init__"), path


def named(tree: ast.Module) -> set[str]:
    """The modules of ours that string literals of the code name, docstrings excluded."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in docstrings
    ]
    pattern = re.compile(r"(?:paimon_features|trainer_bridge)(?:\.[a-z_]\w*)+")
    return {text for text in texts if pattern.fullmatch(text)}


NAMED = sorted(
    (module, target)
    for module, path in modules()
    for target in named(ast.parse(path.read_text("utf-8")))
)


def test_there_are_imports_by_name() -> None:
    assert NAMED


@pytest.mark.parametrize(("module", "target"), NAMED, ids=lambda name: str(name))
def test_a_module_named_in_a_string_exists(module: str, target: str) -> None:
    try:
        found = importlib.util.find_spec(target) is not None
    except ModuleNotFoundError:
        found = False
    # loggers and metrics are named after a package, with a word of their own
    parent = target.rpartition(".")[0]
    assert found or importlib.util.find_spec(parent) is not None, (module, target)


def test_only_engines_and_the_runtime_name_modules_above_them() -> None:
    upward = {
        (module, target)
        for module, target in NAMED
        if target.startswith(("paimon_features.flink", "paimon_features.local", "trainer_bridge."))
        and not module.startswith(
            (target.rpartition(".")[0], "trainer_bridge", "paimon_features.cli")
        )
        and module.split(".")[:2] != target.split(".")[:2]
    }
    assert upward <= ALLOWED, upward - ALLOWED
