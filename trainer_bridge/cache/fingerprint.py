"""Fingerprint of a function, so that a changed function does not match stale cache entries.

It covers the function's code and everything the code refers to: defaults, closures, globals,
other functions, constants, arrays, and the version of modules (or, for the user's own modules,
the source text). Imports of such a module are not followed: a function with dependencies that
its code does not show declares ``version=`` instead, and is then identified by its name and
version.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import pickle
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.core.errors import ConfigurationError

_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), range)


def fingerprint(function: Callable[..., Any], version: str | None = None) -> str:
    """Return 16 hex digits that change when the result of the function may change.

    Raises
    ------
    ConfigurationError
        If the function refers to an object whose contents cannot be hashed (an open file, a
        lock, a model): pass ``version=``.

    Examples
    --------
    >>> def scaled(factor):
    ...     return lambda rows: {"x": rows["x"] * factor}
    >>> fingerprint(scaled(2)) == fingerprint(scaled(2))
    True
    >>> fingerprint(scaled(2)) == fingerprint(scaled(3))
    False
    >>> fingerprint(scaled(2), version="1") == fingerprint(scaled(3), version="1")
    True
    """
    digest = hashlib.blake2b(digest_size=8)
    if version is None:
        digest.update(f"python {sys.version_info[:2]}".encode())
        _Walk(digest, name_of(function)).add(function)
    else:
        digest.update(f"declared {name_of(function)} {version}".encode())
    return digest.hexdigest()


def name_of(function: Callable[..., Any]) -> str:
    """Return the function's name for messages."""
    if isinstance(function, functools.partial):
        return name_of(function.func)
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    return str(name).rsplit("<locals>.", 1)[-1]


class _Walk:
    """Updates a digest with everything reachable from a function."""

    def __init__(self, digest: Any, whose: str) -> None:
        self._digest = digest
        self._whose = whose
        self._seen: dict[int, int] = {}
        self._kept: list[Any] = []  # keeps the objects alive, so that no id is reused

    def add(self, value: Any) -> None:
        if isinstance(value, _PLAIN):
            self._write(f"{type(value).__name__} {value!r}")
            return
        if id(value) in self._seen:
            self._write(f"again {self._seen[id(value)]}")
            return
        self._seen[id(value)] = len(self._seen)
        self._kept.append(value)
        self._compound(value)

    def _write(self, text: str) -> None:
        self._digest.update(text.encode() + b"\0")

    def _compound(self, value: Any) -> None:
        match value:
            case types.FunctionType():
                self._function(value)
            case types.CodeType():
                self._code(value)
            case types.MethodType():
                self._all("method", value.__func__, value.__self__)
            case functools.partial():
                self._all("partial", value.func, value.args, value.keywords)
            case types.ModuleType():
                self._module(value)
            case type():
                self._class(value)
            case types.BuiltinFunctionType() | np.ufunc():
                self._write(f"built in {getattr(value, '__module__', '')} {value.__name__}")
            case list() | tuple():
                self._all(f"{type(value).__name__} {len(value)}", *value)
            case dict():
                self._write(f"dict {len(value)}")
                for key, item in value.items():
                    self._all("item", key, item)
            case set() | frozenset():
                # the iteration order of a set of strings differs between processes
                self._all(f"set {len(value)}", *sorted(value, key=repr))
            case np.ndarray() | np.generic() if value.dtype != object:
                self._write(f"array {value.dtype.str} {value.shape}")
                self._digest.update(np.ascontiguousarray(value).tobytes())
            case np.dtype():
                self._write(f"dtype {value.str}")
            case pa.DataType() | pa.Field() | pa.Schema():
                self._write(f"arrow {value}")
            case pa.Array() | pa.Scalar():
                self._all(
                    f"arrow {value.type}",
                    value.to_pylist() if hasattr(value, "to_pylist") else value.as_py(),
                )
            case _:
                self._object(value)

    def _all(self, kind: str, *values: Any) -> None:
        self._write(kind)
        for value in values:
            self.add(value)

    def _function(self, function: types.FunctionType) -> None:
        self._all("function", function.__code__, function.__defaults__, function.__kwdefaults__)
        for cell in function.__closure__ or ():
            try:
                contents = cell.cell_contents
            except ValueError:
                self._write("empty cell")
                continue
            self.add(contents)
        for name in sorted(_global_names(function.__code__)):
            if name in function.__globals__:
                self._write(f"global {name}")
                self.add(function.__globals__[name])

    def _code(self, code: types.CodeType) -> None:
        self._digest.update(code.co_code)
        self._write(f"{code.co_names} {code.co_varnames} {code.co_freevars}")
        self._all(f"constants {len(code.co_consts)}", *code.co_consts)

    def _module(self, module: types.ModuleType) -> None:
        self._write(f"module {module.__name__}")
        root = sys.modules.get(module.__name__.partition(".")[0])
        version = getattr(root, "__version__", None)
        path = getattr(module, "__file__", None)
        if isinstance(version, str):
            self._write(version)
        elif path and module.__name__.partition(".")[0] not in sys.stdlib_module_names:
            self._digest.update(Path(path).read_bytes())

    def _class(self, kind: type) -> None:
        self._write(f"class {kind.__module__}.{kind.__qualname__}")
        if not _of_user(kind):
            root = sys.modules.get(kind.__module__.partition(".")[0])
            self._write(str(getattr(root, "__version__", "")))
            return
        for name, member in sorted(vars(kind).items()):
            plain = member.__func__ if isinstance(member, classmethod | staticmethod) else member
            if isinstance(plain, property):
                self._all(name, plain.fget)
            elif isinstance(plain, (types.FunctionType, *_PLAIN)):
                self._all(name, plain)
        for base in kind.__bases__:
            self.add(base)

    def _object(self, value: Any) -> None:
        """Hash an instance: of a user's class by its attributes, otherwise by its pickle."""
        self.add(type(value))
        state = getattr(value, "__dict__", None)
        slots = [n for k in type(value).__mro__ for n in getattr(k, "__slots__", ()) or ()]
        if _of_user(type(value)) and (state is not None or slots):
            self.add({name: getattr(value, name) for name in slots if hasattr(value, name)})
            self.add(dict(state or {}))
            return
        try:
            self._digest.update(pickle.dumps(value, protocol=4))
        except Exception as error:  # pickling runs the object's own code
            raise ConfigurationError(
                f"function {self._whose!r} refers to a {type(value).__qualname__}, whose contents "
                "cannot be hashed; pass version='...' to the stage, and change it whenever the "
                "function changes"
            ) from error


def _of_user(kind: type) -> bool:
    """Return whether a class is neither from Python nor from a library with a version."""
    root = kind.__module__.partition(".")[0]
    return root not in sys.stdlib_module_names and not hasattr(sys.modules.get(root), "__version__")


def _global_names(code: types.CodeType) -> set[str]:
    """Return the globals that a function and its nested functions look up."""
    names = {
        str(step.argval)
        for step in dis.get_instructions(code)
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names
