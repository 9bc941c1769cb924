"""Import pypaimon without pandas and polars, for commands: 2 s of processor time, for nothing here.

pypaimon imports both at the top of modules that every read uses, for conversions that no command
asks for, and pyarrow looks for pandas at its first conversion. A program that uses this package as
a library may ask for them, so it is for a process of ours only.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from types import ModuleType
from typing import Any

_FRAMES = ("pandas", "polars")
_READERS = (
    "pypaimon.read.table_read",
    "pypaimon.read.reader.filter_record_batch_reader",
    "pypaimon.table.format.format_table_read",
    "pypaimon.table.object.object_table_read",
    "pypaimon.table.system.system_table_read",
)
"""The modules of pypaimon that import pandas or polars at their top."""


_enabled = False


def enable() -> None:
    """Let the first table that this process opens import pypaimon lightly."""
    global _enabled
    _enabled = True


def before_pypaimon() -> None:
    """Import pypaimon lightly, in a process that enabled it."""
    if _enabled:
        import_lightly()


class _StandIn(ModuleType):
    """Stands in pypaimon's modules for a package that is imported when it is really used."""

    importing = True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if type(self).importing:
            return object  # the annotation of a method
        return getattr(importlib.import_module(self.__name__), name)


class _NotNow:
    """Lets the import of pandas fail, so that pyarrow remembers that there is none."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def import_lightly() -> None:
    """Import what reads the lake, without data frames; where they are imported already, no less.

    Repeating it is harmless. pandas and polars stay importable afterwards.
    """
    if any(name in sys.modules for name in (*_FRAMES, *_READERS)):
        return
    import pyarrow as pa

    blocker = _NotNow()
    sys.meta_path.insert(0, blocker)
    try:
        pa.array([0])
        importlib.import_module("pyarrow.dataset")
    finally:
        sys.meta_path.remove(blocker)
    stand_ins = {name: _StandIn(name) for name in _FRAMES}
    sys.modules.update(stand_ins)
    try:
        for name in _READERS:
            # a later version may have moved one: then it is imported as ever
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(name)
    finally:
        _StandIn.importing = False
        for name in _FRAMES:
            if sys.modules.get(name) is stand_ins[name]:
                del sys.modules[name]
