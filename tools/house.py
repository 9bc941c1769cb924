"""Measures of the code base as a whole, with a limit for each: ``python tools/house.py``.

Prints each measure with its limit and its aim, and the lines of each room; exits with 1 if a limit
is exceeded. A limit only falls: whoever improves a measure lowers it, until it is the aim.
``--list MEASURE`` prints what was counted.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import click
import grimp

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the sources of this checkout are counted, whichever is installed
PACKAGES = ("paimon_features", "trainer_bridge")

LIMITS = {
    # measure: (limit, aim)
    "rooms": (16, 16),
    "files at the top level": (5, 5),
    "cycles of modules": (0, 0),
    "cycles of folders": (0, 0),
    "files in one folder": (66, 40),
    "product lines": (170_529, 148_000),
    "public class names that occur twice": (0, 0),
    "commands": (48, 48),
    "parameters of commands": (336, 336),
    "parameters of one command": (14, 14),
    "functions over 80 lines": (0, 0),
    "functions over 12 parameters": (0, 0),
    "functions with **options: Any": (10, 10),
    "banned words": (0, 0),
}

_WORDS = "found|known|each|own|what|made|there|taken|said"
BANNED = re.compile(
    rf"^\s*(?:\w+, )*\b({_WORDS})\b(?:: [^=\n]+)?(?:, \w+)* (?:[-+|&]?=) "
    rf"|\bfor (?:\w+, )*({_WORDS})\b(?:, \w+)* in |\b({_WORDS}) := | as ({_WORDS}):$",
    re.MULTILINE,
)
"""Locals whose names do not say what they contain, where they are assigned."""


@dataclass(frozen=True, slots=True)
class Function:
    """A function with its place, its length, and its parameters."""

    where: str
    lines: int
    parameters: int
    options_of_any: bool


class House:
    """What is counted, from the sources below ``ROOT``."""

    @cached_property
    def files(self) -> list[Path]:
        return [
            path
            for package in PACKAGES
            for path in sorted((ROOT / package).rglob("*.py"))
            if "templates" not in path.parts
        ]

    @cached_property
    def trees(self) -> dict[Path, ast.Module]:
        return {path: ast.parse(path.read_text("utf-8")) for path in self.files}

    @cached_property
    def functions(self) -> list[Function]:
        return [
            _function(node, f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
            for path, tree in self.trees.items()
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]

    @cached_property
    def imports(self) -> dict[str, set[str]]:
        """The modules that each module imports, also in functions and for type checking."""
        graph = grimp.build_graph(*PACKAGES)
        return {
            # a module that runs as a program imports itself by its name
            module: graph.find_modules_directly_imported_by(module) - {module}
            for module in graph.modules
        }

    def lines_by_room(self) -> dict[str, int]:
        lines: Counter[str] = Counter()
        for path in self.files:
            parts = path.relative_to(ROOT).parts
            room = "/".join(parts[: 1 + (parts[0] == "paimon_features" and len(parts) > 2)])
            lines[room] += path.read_text("utf-8").count("\n")
        return dict(lines)

    def measure(self, name: str) -> list[str] | int:
        """What a measure counts: the things, or their number."""
        top = ROOT / "paimon_features"
        match name:
            case "rooms":
                return sorted(path.parent.name for path in top.glob("*/__init__.py"))
            case "files at the top level":
                return sorted(path.name for path in top.glob("*.py"))
            case "cycles of modules":
                return _cycles(self.imports)
            case "cycles of folders":
                return _cycles(_by_folder(self.imports))
            case "files in one folder":
                return max(Counter(path.parent for path in self.files).values())
            case "product lines":
                return sum(self.lines_by_room().values())
            case "public class names that occur twice":
                return self._repeated_classes()
            case "commands":
                return [" ".join(command) for command in _commands()]
            case "parameters of commands":
                return sum(_commands().values())
            case "parameters of one command":
                return max(_commands().values())
            case "functions over 80 lines":
                return [f"{f.where} {f.lines}" for f in self.functions if f.lines > 80]
            case "functions over 12 parameters":
                return [f"{f.where} {f.parameters}" for f in self.functions if f.parameters > 12]
            case "functions with **options: Any":
                return [f.where for f in self.functions if f.options_of_any]
            case "banned words":
                return [
                    f"{path.relative_to(ROOT)}: {match[0].strip()}"
                    for path in self.files
                    for match in BANNED.finditer(path.read_text("utf-8"))
                ]
        raise KeyError(name)

    def _repeated_classes(self) -> list[str]:
        classes: dict[str, list[str]] = defaultdict(list)
        for path, tree in self.trees.items():
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    classes[node.name].append(str(path.relative_to(ROOT)))
        return sorted(f"{name}: {', '.join(c)}" for name, c in classes.items() if len(c) > 1)


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, where: str) -> Function:
    arguments = node.args
    names = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    count = sum(argument.arg not in ("self", "cls") for argument in names)
    rest = arguments.kwarg
    annotation = rest.annotation if rest else None
    of_any = isinstance(annotation, ast.Name) and annotation.id == "Any"
    public = not node.name.startswith("_")
    docstring = node.body[0] if ast.get_docstring(node) else None
    lines = (node.end_lineno or 0) - node.lineno + 1
    if docstring is not None:
        lines -= (docstring.end_lineno or 0) - docstring.lineno + 1
    return Function(where, lines, count, of_any and public)


def _by_folder(imports: dict[str, set[str]]) -> dict[str, set[str]]:
    """Imports between folders, without those between a folder and one that contains it."""
    packages = {module for module in imports if any(m.startswith(f"{module}.") for m in imports)}

    def folder(module: str) -> str:
        return module if module in packages else module.rpartition(".")[0]

    between: dict[str, set[str]] = defaultdict(set)
    for module, targets in imports.items():
        for target in targets:
            ours, theirs = f"{folder(module)}.", f"{folder(target)}."
            if not ours.startswith(theirs) and not theirs.startswith(ours):
                between[ours[:-1]].add(theirs[:-1])
    return between


def _cycles(imports: dict[str, set[str]]) -> list[str]:
    """One cycle, if there is any."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return [" -> ".join(error.args[1])]
    return []


def _commands() -> dict[tuple[str, ...], int]:
    """The commands of the command line, with the number of their parameters."""
    from paimon_features.cli import cli

    return dict(_below(cli, click.Context(cli), ()))


def _below(
    command: click.Command, context: click.Context, words: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], int]]:
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None and not child.hidden:
                yield from _below(child, context, (*words, name))
    if words and not isinstance(command, click.Group):
        yield words, len(command.params)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--list", choices=LIMITS, help="print what a measure counts")
    arguments = parser.parse_args()
    house = House()
    if arguments.list:
        counted = house.measure(arguments.list)
        print(counted if isinstance(counted, int) else "\n".join(counted))
        return 0
    exceeded = 0
    print(f"{'measure':<38}{'now':>9}{'limit':>9}{'aim':>9}")
    for name, (limit, aim) in LIMITS.items():
        counted = house.measure(name)
        count = counted if isinstance(counted, int) else len(counted)
        mark = "" if count <= limit else "  <- exceeded"
        exceeded += count > limit
        print(f"{name:<38}{count:>9,}{limit:>9,}{aim:>9,}{mark}")
    print()
    for room, lines in sorted(house.lines_by_room().items(), key=lambda item: -item[1]):
        print(f"{room:<38}{lines:>9,}")
    return 1 if exceeded else 0


if __name__ == "__main__":
    sys.exit(main())
