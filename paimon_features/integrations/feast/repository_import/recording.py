"""Reads a Feast repository without Feast: its files run against a recording module.

A repository is Python code that builds objects. Here ``import feast`` returns names that record
how they are called, so the user's loops, helpers and constants work as with any version of Feast,
which does not have to be installed.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Iterator, MutableSequence, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from paimon_features.core.errors import DefinitionError
from paimon_features.core.process.python_file import failure_text, run_python_file

SKIPPED_FOLDERS = {"tests", "test", "venv", ".venv", "__pycache__", "site-packages"}


@dataclass(eq=False, repr=False)
class Recorded:
    """An object of the repository: the Feast name that was called, and its arguments."""

    kind: str
    args: tuple[Any, ...] = ()
    given: dict[str, Any] = field(default_factory=dict)
    selected: tuple[str, ...] | None = None

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument by its name."""
        return self.given.get(name, default)

    @property
    def name(self) -> str:
        """The object's name: ``name=``, else the first argument."""
        return str(self.given.get("name", self.args[0] if self.args else ""))

    def __repr__(self) -> str:
        return self.kind

    def __getitem__(self, selected: Sequence[str]) -> Recorded:
        """Return a projection, as in ``view[["a", "b"]]``."""
        return Recorded(self.kind, self.args, self.given, tuple(selected))

    def __call__(self, function: Any) -> Recorded:
        """Act as a decorator: the function names the object."""
        name = self.given.get("name", getattr(function, "__name__", ""))
        return Recorded(self.kind, self.args, {**self.given, "name": name})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in self.given:
            return self.given[name]
        return FeastName(f"{self.kind}.{name}")


class FeastName:
    """A name of Feast: a class, a function, or a value such as ``Float32``."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __call__(self, *args: Any, **given: Any) -> Recorded:
        return Recorded(self.text.rsplit(".", 1)[-1], args, given)

    def __getattr__(self, name: str) -> FeastName:
        if name.startswith("__"):
            raise AttributeError(name)
        return FeastName(f"{self.text}.{name}")

    def __repr__(self) -> str:
        return self.text.rsplit(".", 1)[-1]


class _Module(ModuleType):
    __path__: MutableSequence[str] = []  # noqa: RUF012 - what makes a module a package

    def __getattr__(self, name: str) -> FeastName:
        if name.startswith("__"):
            raise AttributeError(name)
        return FeastName(name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds ``feast`` and everything below it."""

    def find_spec(
        self, fullname: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != "feast":
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Run nothing."""


def read_repository(path: Path) -> list[Recorded]:
    """Run a file, or every Python file below a folder, and return their objects in order.

    Only objects assigned to a name at the top level of a file count, each once.

    Raises
    ------
    DefinitionError
        If the path does not exist, or a file fails.
    """
    path = path.absolute()
    if path.is_file():
        root, files = path.parent, [path]
    elif path.is_dir():
        root = path
        files = sorted(
            file
            for file in path.rglob("*.py")
            if not SKIPPED_FOLDERS & set(file.relative_to(path).parts)
        )
    else:
        raise DefinitionError(f"the Feast repository {path} does not exist")
    recorded: dict[int, Recorded] = {}
    with _recording(root):
        for file in files:
            for value in _run(file, root):
                if isinstance(value, Recorded):
                    recorded.setdefault(id(value), value)
    return list(recorded.values())


@contextmanager
def _recording(root: Path) -> Iterator[None]:
    """Replace ``feast`` by the recording module, and make the repository importable."""
    before = dict(sys.modules)
    for name in [n for n in sys.modules if n.partition(".")[0] == "feast"]:
        del sys.modules[name]
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    sys.path.insert(0, str(root))
    try:
        # as 'feast apply' does: relative paths are relative to the repository
        with contextlib.chdir(root):
            yield
    finally:
        sys.path.remove(str(root))
        sys.meta_path.remove(finder)
        # modules of this repository would shadow those of another one
        for name in [n for n in sys.modules if n not in before and _belongs(n, root)]:
            del sys.modules[name]
        sys.modules.update({n: m for n, m in before.items() if n.partition(".")[0] == "feast"})


def _belongs(name: str, root: Path) -> bool:
    module = sys.modules[name]
    origin = getattr(module, "__file__", None)
    return isinstance(module, _Module) or (origin is not None and root in Path(origin).parents)


def _run(file: Path, root: Path) -> list[Any]:
    """Return the values at the top level of a file."""
    # under the name by which other files import it, so that they share its objects
    name = ".".join(file.relative_to(root).with_suffix("").parts)
    try:
        if getattr(sys.modules.get(name), "__file__", None) != str(file):
            if name in sys.modules:  # e.g. the name of a module of the standard library
                name = f"feast_repository.{name}"
            run_python_file(file, name, importable=True)
    except Exception as error:
        sys.modules.pop(name, None)
        raise DefinitionError(failure_text(error, file)) from error
    return list(vars(sys.modules[name]).values())
