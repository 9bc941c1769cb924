"""A cache of Parquet footers: each costs a request, or a millisecond."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

import pyarrow.parquet as pq

_MOST = 256


class Footers:
    """The last few hundred footers. A replaced file has another stamp."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[Hashable, pq.FileMetaData]] = OrderedDict()

    def __reduce__(self) -> tuple[type[Footers], tuple[()]]:
        return Footers, ()  # another process starts empty

    def open(self, path: str, stamp: Hashable, source: Any, **options: Any) -> pq.ParquetFile:
        """The file in ``source``, with its cached footer if available."""
        with self._lock:
            known = self._kept.get(path)
        if known is not None and known[0] == stamp:
            return pq.ParquetFile(source, metadata=known[1], **options)
        file = pq.ParquetFile(source, **options)
        with self._lock:
            self._kept[path] = (stamp, file.metadata)
            self._kept.move_to_end(path)
            if len(self._kept) > _MOST:
                self._kept.popitem(last=False)
        return file
