"""Imports by name, which import-linter does not see: each target exists, and lies below."""

from __future__ import annotations

import ast
import importlib.util
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("paimon_features", "trainer_bridge")


def modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            if "templates" not in path.parts:
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
                yield name.removesuffix(".__init__"), path


def named(tree: ast.Module) -> set[str]:
    """The modules of ours that string literals of the code name, docstrings excluded.

    Of an f-string the package before its first value: ``f"trainer_bridge.adapters.{name}"``.
    """
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and node.values:
            first = node.values[0]
            if isinstance(first, ast.Constant) and str(first.value).endswith("."):
                found.add(str(first.value)[:-1])
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
        ):
            found.add(node.value)
    pattern = re.compile(r"(?:paimon_features|trainer_bridge)(?:\.[a-z_]\w*)+")
    return {text for text in found if pattern.fullmatch(text)}


def layers() -> dict[str, int]:
    """The layer of each package and module below ours, 0 at the top, as import-linter has it."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    return {
        name.strip(): number
        for contract in settings["tool"]["importlinter"]["contracts"]
        if contract["type"] == "layers"
        for number, layer in enumerate(contract["layers"])
        for name in layer.split("|")
    }


NAMED = sorted(
    (module, target)
    for module, path in modules()
    # most files name no module: they need no parsing
    if re.search(r"""["'](paimon_features|trainer_bridge)\.""", text := path.read_text("utf-8"))
    for target in named(ast.parse(text))
)
LAYERS = layers()


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


def names_upward(module: str, target: str) -> bool:
    """Whether a module names one that it may not import: of a higher layer."""
    ours, theirs = (".".join(name.split(".")[:2]) for name in (module, target))
    if module.split(".")[0] != target.split(".")[0]:
        return target.startswith("trainer_bridge") and ours != "paimon_features.cli"
    return ours != theirs and LAYERS.get(theirs, 99) <= LAYERS.get(ours, -1)


def test_the_layers_are_those_of_all_packages() -> None:
    rooms = {".".join(module.split(".")[:2]) for module, _ in modules()} - set(PACKAGES)
    packages = {name for name in rooms if not name.startswith("trainer_bridge")} | {
        "trainer_bridge"
    }
    assert packages == LAYERS.keys()


def test_only_the_server_of_workers_names_a_module_above_it() -> None:
    # it imports what its workers will run, so that they are forked with it
    upward = {names for names in NAMED if names_upward(*names)}
    assert upward == {
        ("paimon_features.flink.workers.server", "paimon_features.iteration.flink.hosts")
    }
