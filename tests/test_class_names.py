"""No two classes or type aliases have one name where a reader could mistake one for the other."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("paimon_features", "trainer_bridge", "jobs")


def defined(source: str) -> Iterator[str]:
    """The classes of a module, nested ones included, and its aliases of ``Callable`` and arrays."""
    tree = ast.parse(source)
    yield from (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
            kind = ast.unparse(node.value.value)
            if kind.rpartition(".")[2] in ("Callable", "NDArray"):
                yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def test_aliases_and_nested_classes_are_found() -> None:
    source = "class A:\n  class B: ...\nOnDone = Callable[[], None]\nx = f[0]"
    assert list(defined(source)) == ["A", "B", "OnDone"]


def test_every_class_and_alias_has_a_name_of_its_own() -> None:
    homes = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            for name in defined(path.read_text(encoding="utf-8")):
                homes[name].append(path.relative_to(ROOT).as_posix())
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}
