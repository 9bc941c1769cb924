"""A cache of Parquet footers: each costs a request, or a millisecond."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable

from paimon_features.lake.storage.pages import KnownFooter
from paimon_features.lake.storage.verified import VerifiedParquetFile

_MOST_BYTES = 24 << 20


class Footers:
    """The last footers, up to 24 MB in memory. A replaced file has another stamp."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[Hashable, KnownFooter]] = OrderedDict()
        self._bytes = 0

    def __reduce__(self) -> tuple[type[Footers], tuple[()]]:
        return Footers, ()  # another process starts empty

    def open(
        self,
        path: str,
        stamp: Hashable,
        opened: Callable[[KnownFooter | None], VerifiedParquetFile],
    ) -> VerifiedParquetFile:
        """Return the file that ``opened`` returns, which gets its cached footer if available."""
        with self._lock:
            entry = self._kept.get(path)
        if entry is not None and entry[0] == stamp:
            return opened(entry[1])
        file = opened(None)
        with self._lock:
            replaced = self._kept.pop(path, None)
            if replaced is not None:
                self._bytes -= replaced[1].size
            self._kept[path] = (stamp, file.footer)
            self._bytes += file.footer.size
            while self._bytes > _MOST_BYTES and len(self._kept) > 1:
                _, (_, dropped) = self._kept.popitem(last=False)
                self._bytes -= dropped.size
        return file
