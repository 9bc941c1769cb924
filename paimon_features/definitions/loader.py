"""Reading a definitions file: a Python file whose top level contains definitions."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import paimon_features
from paimon_features.core.errors import DefinitionError
from paimon_features.core.process.python_file import error_place, failure_text, run_python_file
from paimon_features.core.suggestions import did_you_mean
from paimon_features.definitions.collection import Definitions
from paimon_features.definitions.feature_view import FeatureView
from paimon_features.transformers.fitted_version import FOLDER


def load_definitions(path: Path) -> Definitions:
    """Run the Python file at ``path`` and collect the definitions at its top level.

    Versions of fitted transformers are read from the folder ``fitted`` next to it.

    Raises
    ------
    DefinitionError
        If the file is missing, does not run, contains no definition, or as ``Definitions.of``.
    """
    if not path.is_file():
        raise DefinitionError(
            f"no such definitions file: {path}; 'paimon-features init' writes an example"
        )
    # the file may import modules next to it
    sys.path.insert(0, str(path.parent))
    names: dict[str, Any] = {}
    try:
        module = run_python_file(path, "paimon_features_definitions")
        names = dict(vars(module))
        definitions = Definitions.of(names.values(), fitted=path.parent / FOLDER)
    except DefinitionError as error:
        concerns = error.concerns
        place = error_place(error, path) if concerns is None else _defined(concerns, path, names)
        error.add_note(f"while reading {place}")
        raise
    except Exception as error:
        raise DefinitionError(
            f"{failure_text(error, path)}"
            f"{_unknown_argument(error)}{_feature_of_a_view(error)}{_unknown_name(error)}"
        ) from error
    finally:
        sys.path.remove(str(path.parent))
    if not definitions.views and not definitions.sources:
        raise DefinitionError(f"{path} contains no EventSource and no FeatureView at its top level")
    return definitions


def _defined(concerns: tuple[str, str], path: Path, names: Mapping[str, Any]) -> str:
    """Return the file, and the line at which it assigns a definition to a variable."""
    kind, name = concerns
    variables = {
        variable
        for variable, value in names.items()
        if type(value).__name__ == kind and getattr(value, "name", None) == name
    }
    lines = [
        statement.lineno
        for statement in ast.parse(path.read_bytes()).body
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in variables
    ]
    return f"{path}, line {lines[-1]}" if lines else str(path)


def _unknown_name(error: Exception) -> str:
    """Return what a misspelt variable may mean: one of the file, or one of the package."""
    if not isinstance(error, NameError) or error.name is None or error.__traceback__ is None:
        return ""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    variables = {name: name for name in frame.f_globals if not name.startswith("_")}
    package = {name: f"pf.{name}" for name in dir(paimon_features) if not name.startswith("_")}
    meant = did_you_mean(error.name, variables) or did_you_mean(error.name, package)
    close = re.fullmatch(r"; did you mean '(\w+)'\?", meant)
    if close is None or close[1] in variables:
        return meant
    return f"; did you mean '{package[close[1]]}' (import paimon_features as pf)?"


def _unknown_argument(error: Exception) -> str:
    """Return what an unknown argument of one of our classes may mean, and the known ones."""
    match = _UNKNOWN_ARGUMENT.match(str(error)) if isinstance(error, TypeError) else None
    if match is None or match[1] not in dir(paimon_features):
        return ""
    arguments = [*inspect.signature(getattr(paimon_features, match[1])).parameters]
    return f"{did_you_mean(match[2], arguments)} (arguments: {', '.join(arguments)})"


def _feature_of_a_view(error: Exception) -> str:
    if isinstance(error, AttributeError) and isinstance(error.obj, FeatureView):
        return f"; refer to a feature by view[{error.name!r}], or 'name_of_the_view:{error.name}'"
    return ""


_UNKNOWN_ARGUMENT = re.compile(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'")
