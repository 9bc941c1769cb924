"""Rows of random records as a read of the store returns them, without a store.

>>> import random
>>> from tests.generators import random_view
>>> rng = random.Random(1)
>>> rows = StoredRows(random_view(rng).compiled)
>>> read = rows.read(rows.random_records(rng, 1_700_000_000_000, 3))
>>> len(read.part(0, 3))
3
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from paimon_features.core.columns.column import Column
from paimon_features.core.windows import DAY_MS
from paimon_features.definitions import CompiledView
from paimon_features.online.store.codec import HEADER, LIFETIME_KEY, RecordLayout, cell_key
from paimon_features.online.store.keys import ViewKeys
from paimon_features.online.store.markers import EpochContent, Marker
from paimon_features.serving.reading.entities import EntityKeys
from paimon_features.serving.reading.view_rows import ViewRows
from paimon_features.serving.reading.view_states import Epoch, ViewVariant

_FLOATS = (0.0, -0.0, 0.1, -1e6, 1e-310, 2.0**60)
_INTEGERS = (0, 1, -1, 10**6, 2**53 + 1, 2**62, -(2**63), 2**63 - 1)
_AGO_MS = (0, 1, 60_000, 3_600_000, DAY_MS, 8 * DAY_MS, 40 * DAY_MS)


class StoredRows:
    """Random records of one view, and reads of them."""

    def __init__(self, view: CompiledView) -> None:
        self.variant = ViewVariant(view, RecordLayout(view), 0)
        content = EpochContent(view.table(1), 1, 0, view.online_fingerprint, 1)
        self._epoch = Epoch(ViewKeys("shop", view.name), "1a2b3c4d", content, self.variant)

    def random_records(self, rng: random.Random, as_of_ms: int, count: int) -> list[bytes | None]:
        """Records with cells of all levels around and before a time; None: no record."""
        return [None if rng.random() < 0.2 else self._record(rng, as_of_ms) for _ in range(count)]

    def read(self, records: Sequence[bytes | None], high_ms: int = 0) -> ViewRows:
        """A read that found these records in one bucket, in which ``high_ms`` is applied."""
        names = [b"%d" % row for row in range(len(records))]
        parts = [[0] * len(records) for _ in self.variant.view.keys]
        columns = dict(zip(self.variant.view.keys, parts, strict=True))
        self._epoch.buckets._known.update(dict.fromkeys(names, 0))
        rows = ViewRows(self.variant.view.name, self._epoch, [EntityKeys(columns, parts, names)])
        marker = Marker(1, 0, 0, high_ms, high_ms, 0)
        rows.fill([marker.to_bytes(), *records])
        return rows

    def _record(self, rng: random.Random, as_of_ms: int) -> bytes:
        view, layout = self.variant.view, self.variant.layout
        cells: dict[int, int] = {}
        share = rng.choice((0.0, 0.3, 1.0))
        for _ in range(rng.choice((0, 1, 3, 30, 200))):
            level = rng.randrange(len(view.levels_ms))
            step = view.levels_ms[level]
            ago = rng.choice(_AGO_MS) + rng.randrange(-2, 20) * rng.choice(view.levels_ms)
            index = (as_of_ms - ago) // step
            cells[cell_key(level, index)] = index * step + rng.choice((0, step - 1))
        if rng.random() < 0.3:
            cells[LIFETIME_KEY] = as_of_ms - 50 * DAY_MS
        keys = np.array(sorted(cells), np.int64)
        columns = {p.name: self._column(rng, p.type.text, len(keys), share) for p in view.partials}
        times = np.array([cells[key] for key in sorted(cells)], np.int64)
        columns["p_event_time_max"] = Column(times)
        columns["p_rows"] = Column(np.ones(len(keys), np.int64))
        headers = np.zeros(1, HEADER)
        newest = int(times.max()) if len(times) else as_of_ms - 60 * DAY_MS
        headers["snapshot"], headers["event_high"] = rng.randrange(99), newest
        headers["pruned_high"] = as_of_ms - rng.choice((10, 90)) * DAY_MS
        headers["bucket_high"] = newest
        offsets = np.array([0, len(keys)], np.int64)
        [record] = layout.encode(headers, layout.cells(keys, columns), offsets)
        return record

    @staticmethod
    def _column(rng: random.Random, kind: str, count: int, share: float) -> Column:
        valid = np.array([rng.random() >= share for _ in range(count)], np.bool_)
        if kind == "int64":
            pool = [*_INTEGERS, *(rng.randrange(-99, 99) for _ in range(99))]
            if rng.random() < 0.7:
                pool = pool[len(_INTEGERS) :]
            values = np.array([rng.choice(pool) for _ in range(count)], np.int64)
        elif kind == "float64":
            values = np.array([rng.choice((*_FLOATS, rng.gauss(0, 9))) for _ in range(count)])
        else:
            # texts and sketches have formats of their own: none
            values = np.full(count, "" if kind == "string" else b"", object)
            valid = np.zeros(count, np.bool_)
        return Column(values, None if valid.all() else valid)
