"""Keep pyarrow from loading pandas where it is installed: 40 MB and 0.4 s, for nothing here.

pyarrow's Python side looks for pandas at its first conversion and remembers that there was none;
its C++ side looks again whenever it has to infer a type. pyarrow itself is imported only when a
request or a reply is in its format.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_NAME = "pandas"


def forbid_pandas() -> None:
    """Let ``import pandas`` fail from now on, unless it was imported already."""
    # no entry of None in sys.modules: pyarrow's Python side would take it for a module
    if _NAME not in sys.modules and _BLOCKER not in sys.meta_path:
        sys.meta_path.insert(0, _BLOCKER)


@contextmanager
def pandas_allowed() -> Iterator[None]:
    """Let definitions import pandas within the block, which then stays importable."""
    if _BLOCKER in sys.meta_path:
        sys.meta_path.remove(_BLOCKER)
    try:
        yield
    finally:
        forbid_pandas()


class _NoPandas:
    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == _NAME:
            raise ModuleNotFoundError(name)


_BLOCKER = _NoPandas()
