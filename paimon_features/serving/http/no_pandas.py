"""Keep pyarrow from loading pandas where it is installed: 40 MB and 0.4 s, for nothing here.

pyarrow's Python side looks for pandas at its first conversion and remembers that there was none;
its C++ side looks again whenever it has to infer a type, for a request's inputs say.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

_NAME = "pandas"


def forbid_pandas() -> None:
    """Let ``import pandas`` fail from now on, unless it was imported already."""
    if _NAME in sys.modules:
        return
    # its Python side would take an entry of None for a module, so it has to look before that
    blocker = _NoPandas()
    sys.meta_path.insert(0, blocker)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(blocker)
    sys.modules.setdefault(_NAME, None)  # type: ignore[arg-type]


@contextmanager
def pandas_allowed() -> Iterator[None]:
    """Within the block definitions may import pandas, which then stays importable."""
    if _NAME in sys.modules and sys.modules[_NAME] is None:
        del sys.modules[_NAME]
    try:
        yield
    finally:
        forbid_pandas()


class _NoPandas:
    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == _NAME:
            raise ModuleNotFoundError(name)
