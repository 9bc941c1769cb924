"""Programs by name: a function of a module, or of a Python file."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paimon_features.core.errors import ConfigurationError, unknown_name
from paimon_features.core.process.python_file import failure_text, run_python_file


def load_program(program: str) -> Callable[[Any], Any]:
    """Return the function that ``module:function`` or ``file.py:function`` names.

    Raises
    ------
    ConfigurationError
        If there is no such file, module or function, or the file or module does not run.
    """
    place, separator, name = program.partition(":")
    name = name if separator else "build"
    if place.endswith(".py"):
        path = Path(place)
        if not path.is_file():
            raise ConfigurationError(f"program {program!r}: no such file: {path.absolute()}")
        try:
            module = run_python_file(path, path.stem, importable=True)
        except Exception as error:
            raise ConfigurationError(f"program {program!r}: {failure_text(error, path)}") from error
    else:
        sys.path.insert(0, "")
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{place}.".startswith(f"{error.name}."):
                raise _broken(program, place, error) from error
            raise ConfigurationError(
                f"program {program!r}: no module {place!r}; expected module:function or "
                "file.py:function"
            ) from error
        except Exception as error:
            raise _broken(program, place, error) from error
        finally:
            sys.path.remove("")
    build = getattr(module, name, None)
    if not callable(build):
        functions = [
            key
            for key, value in vars(module).items()
            if callable(value)
            and getattr(value, "__module__", None) == module.__name__
            and not key.startswith("_")
        ]
        raise ConfigurationError(
            f"program {program!r}: {unknown_name('function', name, functions, place)}"
        )
    return build  # type: ignore[no-any-return]


def _broken(program: str, place: str, error: Exception) -> ConfigurationError:
    return ConfigurationError(f"program {program!r}: {failure_text(error, Path(place))}")
