"""Views copied into memory, so that their values can be shown and explained."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from paimon_features.core.errors import RequestError
from paimon_features.definitions import CompiledView
from paimon_features.lake import latest_snapshot
from paimon_features.online.materialize.snapshot_copy import copy_snapshot
from paimon_features.online.store import MemoryStore
from paimon_features.project import Project
from paimon_features.serving.reading.fetcher import FeatureFetcher

MOST_ROWS = 2_000_000
"""Views with more rows of tiles are not copied: about 1 GB of memory."""
MOST_COPIED_ROWS = 4_000_000
"""The copies that are kept have at most this many rows together."""


@dataclass(frozen=True)
class _Copy:
    commit: str
    rows: int
    fetcher: FeatureFetcher


class ViewCopies:
    """Copies of the newest snapshots of views, made when they are read. Not thread-safe."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._copies: OrderedDict[str, _Copy] = OrderedDict()

    def fetcher(self, view: CompiledView) -> FeatureFetcher:
        """Return a fetcher that reads the view as of its newest snapshot.

        Raises
        ------
        RequestError
            For a view that can only be read offline, has no tiles yet, or more than ``MOST_ROWS``.
        GenerationError, TableError
            If the view is not applied, or its table cannot be read.
        """
        view.check_online()
        record = self._project.generation(view)
        newest = latest_snapshot(self._project.lake, record.table)
        if newest is None:
            raise RequestError(
                f"feature view {view.name!r} has no tiles yet; run 'paimon-features backfill "
                f"{view.name}'"
            )
        commit = f"{record.table}/{record.incarnation}/{newest.ref}/{view.online_fingerprint}"
        view_copy = self._copies.get(view.name)
        if view_copy is None or view_copy.commit != commit:
            if newest.total_records > MOST_ROWS:
                raise RequestError(
                    f"feature view {view.name!r} has {newest.total_records:,} rows of tiles, at "
                    f"most {MOST_ROWS:,} are read into memory; 'paimon-features materialize' and "
                    "'serve' explain its values"
                )
            self._copies.pop(view.name, None)
            store = MemoryStore()
            copy_snapshot(self._project.lake, self._project.name, view, record, store)
            fetcher = FeatureFetcher(self._project.name, [view], store)
            view_copy = _Copy(commit, newest.total_records, fetcher)
            self._copies[view.name] = view_copy
        self._copies.move_to_end(view.name)
        while sum(copy.rows for copy in self._copies.values()) > MOST_COPIED_ROWS:
            self._copies.popitem(last=False)
        return view_copy.fetcher
