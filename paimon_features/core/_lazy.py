"""Public names of a package, listed once in its ``__init__.pyi`` and imported when first used.

The stub is what type checkers and editors read, so the list cannot differ from what they see.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Callable

from paimon_features.core.extras import missing_extra
from paimon_features.core.suggestions import did_you_mean

SYNONYMS = {
    "avg": "Mean",
    "average": "Mean",
    "boolean": "Bool",
    "double": "Float64",
    "float": "Float64",
    "int": "Int64",
    "integer": "Int64",
    "long": "Int64",
    "nunique": "ApproxCountDistinct",
    "std": "StdDev",
    "stddevpop": "StdDev",
    "str": "String",
    "var": "Variance",
}
"""Names of other libraries, in lower case, and ours."""


def attach_stub(
    package: str, stub_file: str = "__init__.pyi"
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package or module from its stub.

    ``stub_file`` is next to its source file; for a module ``m`` it is ``m.pyi``.

    A public name is one that the stub imports ``from <module> import <name> as <name>``.

    >>> getattr_, dir_, names = attach_stub("paimon_features")
    >>> "Sum" in names, getattr_("Sum").__module__
    (True, 'paimon_features.definitions.aggregates.basic')
    """
    stub = pkgutil.get_data(package, stub_file)
    assert stub is not None, package
    homes = {
        alias.name: node.module
        for node in ast.parse(stub).body
        if isinstance(node, ast.ImportFrom) and node.module is not None
        for alias in node.names
        if alias.asname == alias.name
    }
    names = sorted(homes)

    def getattr_(name: str) -> object:
        if name not in homes:
            meant = did_you_mean(name, names, SYNONYMS)
            raise AttributeError(f"module {package!r} has no attribute {name!r}{meant}")
        if homes[name] == package:
            return importlib.import_module(f"{package}.{name}")
        try:
            module = importlib.import_module(homes[name])
        except ModuleNotFoundError as error:
            missing = missing_extra(error, f"{package}.{name}")
            if missing is None:
                raise
            raise missing from error
        value: object = getattr(module, name)
        # found without this function from now on
        setattr(importlib.import_module(package), name, value)
        return value

    def dir_() -> list[str]:
        return sorted({*vars(importlib.import_module(package)), *names})

    return getattr_, dir_, names
