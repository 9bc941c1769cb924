"""A cache of Parquet footers: each costs a request, or a millisecond."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

import pyarrow.parquet as pq

_MOST = 256


class Footers:
    """The last few hundred footers. A replaced file has another stamp."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[Hashable, pq.FileMetaData]] = OrderedDict()

    def __reduce__(self) -> tuple[type[Footers], tuple[()]]:
        return Footers, ()  # another process starts empty

    def open(
        self, path: str, stamp: Hashable, opened: Callable[[pq.FileMetaData | None], pq.ParquetFile]
    ) -> pq.ParquetFile:
        """The file that ``opened`` returns, which gets its cached footer if available."""
        with self._lock:
            known = self._kept.get(path)
        if known is not None and known[0] == stamp:
            return opened(known[1])
        file = opened(None)
        with self._lock:
            self._kept[path] = (stamp, file.metadata)
            self._kept.move_to_end(path)
            if len(self._kept) > _MOST:
                self._kept.popitem(last=False)
        return file
