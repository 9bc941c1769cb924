"""Reading a definitions file: a Python file whose top level contains definitions."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from paimon_features.definitions.collection import Definitions
from paimon_features.errors import DefinitionError
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
            f"there is no definitions file {path}; 'paimon-features init' writes an example"
        )
    spec = importlib.util.spec_from_file_location("paimon_features_definitions", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # the file may import modules next to it
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except DefinitionError as error:
        error.add_note(f"while reading {path}")
        raise
    except Exception as error:
        raise DefinitionError(f"{path} does not run: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(path.parent))
    found: list[Any] = list(vars(module).values())
    definitions = Definitions.of(found, fitted=path.parent / FOLDER)
    if not definitions.views and not definitions.sources:
        raise DefinitionError(f"{path} contains no EventSource and no FeatureView at its top level")
    return definitions
