"""Select the tests that changes can affect, by the import graph: ``make test-changed`` runs them.

    .venv/bin/python tools/changed_tests.py [--base COMMIT]

The changes are those since the base (by default where the branch left ``origin/main`` or ``main``),
with the working tree and new files. The output has one path per line: test modules, modules with
doctests and documents with code blocks that depend on a change. A module depends on

- what it imports, anywhere in the file; of packages that import their public names lazily (a stub
  next to the source lists them) on the modules of the names that it uses;
- modules that its text names: scripts for other processes, ``python -m MODULE``, patched names;
- the fixtures of each ``conftest.py`` above it whose names it contains, and what they use;
- the command line, if it starts ``paimon-features`` as a process.

A changed file that is no module counts as a change of every module that names it, or its folder;
inside a package as a change of the modules next to it. A change of ``GLOBAL`` selects everything.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path, PurePosixPath

import grimp

ROOT = Path(__file__).parents[1]
PACKAGES = ("paimon_features", "trainer_bridge", "tests", "tools", "benchmarks", "jobs")
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "docs/**/*.md")
EVERYTHING = ["tests", "paimon_features", "trainer_bridge", "README.md", "CONTRIBUTING.md", "docs"]
GLOBAL = re.compile(r"(conftest|tests/conftest|hatch_build)\.py|pyproject\.toml|.*\.lock|locks/.*")
"""Files that every test depends on."""

NAME = re.compile(rf"\b(?:{'|'.join(PACKAGES)})(?:\.\w+)+")
COMMAND = re.compile(r"paimon-features\b")
STARTS = re.compile(r"\b(subprocess|Popen|processes|executable|spawn\w*)\b")
AS_MODULE = re.compile(r'"-m", "paimon_features"')
CLI = "paimon_features.cli"
EVERY_COMMAND = re.compile(r"\b(COMMANDS|list_commands|get_command|cli\.commands)\b")


def git(*arguments: str) -> list[str]:
    """Return the lines that a git command prints."""
    command = ["git", "-C", str(ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def default_base() -> str:
    """Return the commit at which this branch left the main one."""
    for branch in ("origin/main", "main"):
        try:
            return git("merge-base", "HEAD", branch)[0]
        except subprocess.CalledProcessError:
            continue
    raise SystemExit("no branch origin/main or main: pass --base COMMIT")


def changed_files(base: str) -> list[str]:
    """Return the paths that differ from a commit, deleted and new ones included."""
    tracked = git("diff", "--name-only", "--no-renames", base)
    return sorted({*tracked, *git("ls-files", "--others", "--exclude-standard")})


class Repository:
    """The modules and documents of the working tree, and what each one depends on."""

    def __init__(self) -> None:
        present = [name for name in PACKAGES if any((ROOT / name).glob("**/*.py"))]
        sys.path.insert(0, str(ROOT))
        graph = grimp.build_graph(*present, cache_dir=None)
        self.edges = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
        self.paths: dict[str, Path] = {}
        self.texts: dict[str, str] = {}
        for name in graph.modules:
            path = ROOT.joinpath(*name.split("."))
            path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            if path.is_file():
                self._add(name, path)
        for path in (path for pattern in DOCUMENTS for path in ROOT.glob(pattern)):
            self._add(path.relative_to(ROOT).as_posix(), path)
        for name in self.texts:
            self._add_edges(name)

    def _add(self, name: str, path: Path) -> None:
        self.paths[name] = path
        self.texts[name] = path.read_text(encoding="utf-8")

    def _add_edges(self, name: str) -> None:
        """Add what grimp does not see: lazy public names, names in texts, fixtures, processes."""
        text = self.texts[name]
        edges = self.edges.setdefault(name, set())
        is_product = name.startswith(("paimon_features.", "trainer_bridge."))
        edges |= self._lazily_imported(text)
        if not is_product or "import_module(" in text:
            edges |= set(filter(None, map(self._module, NAME.findall(text))))
        if not is_product:
            edges |= self._commands(text)
        if self._is_test(name):
            edges |= self._used_fixtures(name)
        if name.endswith("conftest"):
            edges.clear()

    def _module(self, dotted: str) -> str | None:
        """Return the module that a dotted name is or is in."""
        while "." in dotted and dotted not in self.paths:
            dotted = dotted.rpartition(".")[0]
        return dotted if dotted in self.paths and dotted not in PACKAGES else None

    def _commands(self, text: str) -> set[str]:
        """Return the modules of the commands that a text names, and the command line's own.

        The command line imports the module of a command when it is used.
        """
        names = set(re.findall(r'(?:"|paimon-features )([a-z-]+)\b', text))
        is_any = EVERY_COMMAND.search(text) is not None
        commands = {
            module
            for module in self.paths
            if module.startswith(f"{CLI}.")
            and (is_any or module.rpartition(".")[2].replace("_", "-") in names)
        }
        if AS_MODULE.search(text) or (COMMAND.search(text) and STARTS.search(text)):
            commands.add(CLI)
        return commands

    @cached_property
    def _stubs(self) -> dict[str, dict[str, str]]:
        """For each module with lazily imported names: name -> the module that defines it."""
        stubs = {}
        for name, path in self.paths.items():
            stub = path.with_suffix(".pyi")
            if stub.is_file() and "attach_stub" in self.texts[name]:
                stubs[name] = {
                    alias.name: node.module
                    for node in ast.parse(stub.read_text(encoding="utf-8")).body
                    if isinstance(node, ast.ImportFrom) and node.module is not None
                    for alias in node.names
                }
        return stubs

    def _lazily_imported(self, text: str) -> set[str]:
        """Return the modules of the lazy public names that a text uses."""
        modules = set()
        for package, homes in self._stubs.items():
            escaped = re.escape(package)
            names = set()
            for alias in re.findall(rf"\bimport {escaped}(?: as (\w+))?\b(?!\.)", text):
                names |= set(re.findall(rf"\b{alias or escaped}\.(\w+)", text))
            for listed in re.findall(rf"\bfrom {escaped} import ([^(\n]+|\([^)]+\))", text):
                names |= set(re.findall(r"\w+", listed))
            modules |= {homes[name] for name in names & homes.keys()}
        return modules

    @cached_property
    def _fixtures(self) -> dict[PurePosixPath, dict[str, tuple[set[str], bool]]]:
        """For each folder with a conftest: fixture -> (what it imports, whether all tests use it).

        What a conftest imports counts for the fixtures that use it, not for every test below.
        """
        folders = {}
        for path in (path for path in self.paths.values() if path.name == "conftest.py"):
            folder = PurePosixPath(path.parent.relative_to(ROOT).as_posix())
            folders[folder] = _fixtures_of(path.read_text(encoding="utf-8"), self._module)
        return folders

    def _used_fixtures(self, name: str) -> set[str]:
        words = set(re.findall(r"\w+", self.texts[name]))
        above = set(PurePosixPath(self.paths[name].relative_to(ROOT).as_posix()).parents)
        edges: set[str] = set()
        for folder in above & self._fixtures.keys():
            for fixture, (modules, is_automatic) in self._fixtures[folder].items():
                if is_automatic or fixture in words:
                    edges |= modules
        return edges

    def _is_test(self, name: str) -> bool:
        return self.paths[name].name.startswith("test_") and name.startswith("tests.")

    def _runs(self, name: str) -> bool:
        """Whether pytest collects something from a module or document."""
        if name.endswith(".md"):
            return "```python" in self.texts[name]
        in_package = name.startswith(("paimon_features", "trainer_bridge"))
        return self._is_test(name) or (in_package and ">>> " in self.texts[name])

    def changed_modules(self, files: Iterable[str]) -> set[str]:
        """Return the modules and documents that these changed files are, or count as."""
        by_path = {path.relative_to(ROOT).as_posix(): name for name, path in self.paths.items()}
        changed: set[str] = set()
        for file in map(PurePosixPath, files):
            top, name = file.parts[0], by_path.get(str(file))
            below = [path for path in by_path if PurePosixPath(path).is_relative_to(file.parent)]
            if name is not None:
                changed.add(name)
            if file.name == "conftest.py":
                changed |= {by_path[path] for path in below}
            elif top in ("paimon_features", "trainer_bridge"):
                if name is None:
                    changed |= {by_path[path] for path in below if self._is_next_to(path, file)}
            elif top == "tests":
                if name is None:
                    changed |= self._tests_around(file)
            else:
                changed |= set(self._naming(file))
        return changed

    @staticmethod
    def _is_next_to(path: str, file: PurePosixPath) -> bool:
        return PurePosixPath(path).parent == file.parent

    def _tests_around(self, file: PurePosixPath) -> set[str]:
        """Return the tests of the nearest folder above a data file that contains some."""
        for folder in file.parents:
            near = {
                n for n, p in self.paths.items() if p.parent == ROOT / folder and self._is_test(n)
            }
            if near:
                return near
        return set()

    def _naming(self, file: PurePosixPath) -> Iterator[str]:
        """Yield the modules whose text names a file, or in quotes the folder at its top.

        Comments of the product name tools and documents; it reads only its programs and examples.
        """
        top = file.parts[0]
        tail = "/".join(file.parts[-2:])
        names = [rf"\b{re.escape(tail)}\b", rf"\btool\(\"{re.escape(file.stem)}\"\)"]
        if len(file.parts) > 1 and top != "tools":
            names.append(f'"{re.escape(top)}"')
        if top != "docs":
            names.append(rf"[\"/]{re.escape(file.name)}\b")
        pattern = re.compile("|".join(names))
        for name, text in self.texts.items():
            reads = name.startswith("tests.") or (top in ("jobs", "examples") and "." in name)
            if reads and pattern.search(text):
                yield name

    def affected(self, changed: set[str]) -> list[Path]:
        """Return the paths to run: those that depend, directly or not, on a changed module."""
        importers: dict[str, set[str]] = {}
        for name, imported in self.edges.items():
            for other in imported:
                importers.setdefault(other, set()).add(name)
        seen, pending = set(changed), list(changed)
        while pending:
            for name in importers.get(pending.pop(), set()) - seen:
                seen.add(name)
                pending.append(name)
        return sorted(self.paths[name] for name in seen & self.paths.keys() if self._runs(name))


def _fixtures_of(
    source: str, module: Callable[[str], str | None]
) -> dict[str, tuple[set[str], bool]]:
    """Return the top-level functions of a conftest: name -> (what it imports, autouse or hook)."""
    tree = ast.parse(source)
    bound: dict[str, str] = {}
    for node in tree.body:
        inner = node.body if isinstance(node, ast.If) else [node]
        for statement in inner:
            bound.update(_bound_names(statement))
    parts = {
        part.name: part for part in tree.body if isinstance(part, ast.FunctionDef | ast.ClassDef)
    }
    words = {
        name: {n.id for n in ast.walk(part) if isinstance(n, ast.Name)}
        | ({a.arg for a in part.args.args} if isinstance(part, ast.FunctionDef) else set())
        for name, part in parts.items()
    }
    fixtures = {}
    for name in parts:
        used, pending = {name}, [name]
        while pending:
            more = words[pending.pop()] & parts.keys() - used
            used |= more
            pending += more
        imported = {bound[word] for part in used for word in words[part] & bound.keys()}
        for part in used:
            for node in ast.walk(parts[part]):
                imported |= set(_bound_names(node).values())
        header = " ".join(map(ast.unparse, parts[name].decorator_list))
        modules = set(filter(None, map(module, imported)))
        fixtures[_fixture_name(header) or name] = (modules, "autouse=True" in header)
    return fixtures


def _fixture_name(decorators: str) -> str | None:
    match = re.search(r"name='(\w+)'", decorators)
    return match[1] if match else None


def _bound_names(node: ast.AST) -> dict[str, str]:
    """Return the names that an import statement binds, with what is imported."""
    if isinstance(node, ast.Import):
        return {(a.asname or a.name.partition(".")[0]): a.name for a in node.names}
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        return {(a.asname or a.name): f"{node.module}.{a.name}" for a in node.names}
    return {}


def main() -> None:
    """Print the paths of the tests that the changes can affect."""
    parser = argparse.ArgumentParser(description="Select the tests that changes can affect.")
    parser.add_argument("--base", metavar="COMMIT", help="What the working tree is compared with.")
    base = parser.parse_args().base or default_base()
    files = changed_files(base)
    if any(map(GLOBAL.fullmatch, files)):
        print("\n".join(name for name in EVERYTHING if (ROOT / name).exists()))
        return
    repository = Repository()
    for path in repository.affected(repository.changed_modules(files)):
        print(path.relative_to(ROOT).as_posix())


if __name__ == "__main__":
    main()
