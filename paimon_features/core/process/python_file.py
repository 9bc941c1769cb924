"""Run a user's Python file as a module, always from its source."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType


class _FromSource(SourceFileLoader):
    """Compiles the file each time: cached bytecode is chosen by the file's size and its time in
    whole seconds, and an edit can change neither."""

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def run_python_file(path: Path, name: str, *, importable: bool = False) -> ModuleType:
    """Run the file at ``path`` and return its module.

    ``name`` is the module's name; ``importable`` puts it into ``sys.modules`` before it runs, so
    that other files can import it and its classes can be pickled. Raises whatever the file raises;
    it is not in ``sys.modules`` then.
    """
    spec = importlib.util.spec_from_file_location(name, path, loader=_FromSource(name, str(path)))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if importable:
        sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if importable:
            sys.modules.pop(name, None)
        raise
    return module


def failure_text(error: BaseException, path: Path) -> str:
    """Return the message for a user's file that cannot be run: place, kind of error, its text.

    >>> failure_text(ValueError("no such column"), Path("features.py"))
    'features.py does not run: ValueError: no such column'
    """
    return f"{error_place(error, path)} does not run: {type(error).__name__}: {error}"


def error_place(error: BaseException, path: Path) -> str:
    """Return the file, and the line of it (or of a module next to it) that raised the error."""
    if isinstance(error, SyntaxError) and error.filename is not None and error.lineno is not None:
        return f"{error.filename}, line {error.lineno}"
    lines = [
        (frame.filename, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).parent == path.parent
    ]
    # the innermost one: a module next to the file, or a function in it
    return f"{lines[-1][0]}, line {lines[-1][1]}" if lines else str(path)
