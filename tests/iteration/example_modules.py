"""The modules of examples/iterative, which is no package: loaded as its users load them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[2] / "examples" / "iterative"


@contextmanager
def example(*names: str) -> Iterator[list[ModuleType]]:
    """Import modules of the example's folder, and forget them afterwards."""
    before = set(sys.modules)
    sys.path.insert(0, str(FOLDER))
    try:
        yield [importlib.import_module(name) for name in names]
    finally:
        sys.path.remove(str(FOLDER))
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(FOLDER)):
                del sys.modules[name]
