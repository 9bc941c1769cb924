"""Modules that are no part of a package, and the sources of the tests."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

TESTS = Path(__file__).parent


def load_file(name: str, path: Path | str) -> ModuleType:
    """The module in a file."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def found_in_tests(lines_of: Callable[[str], Iterable[int]]) -> set[str]:
    """``file:line`` of what a search of a source finds in those of all tests."""
    return {
        f"{path.relative_to(TESTS)}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        for line in lines_of(path.read_text())
    }
