"""Lag and freshness of each view: what its tile table has, and what the online store has of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from paimon_features.core.configuration.project_config import ProjectConfig
from paimon_features.core.errors import PaimonFeaturesError
from paimon_features.definitions import CompiledView
from paimon_features.lake import Lake, latest_snapshot
from paimon_features.lake.side_folder import generations
from paimon_features.lake.side_folder.generations import GenerationRecord
from paimon_features.online.materialize.epochs import Epochs
from paimon_features.online.store import OnlineSettings, OnlineStore, open_store
from paimon_features.online.store.keys import ViewKeys
from paimon_features.online.store.store import evicted_keys, may_evict
from paimon_features.serving.reading.view_rows import is_behind, worst_freshness


@dataclass(frozen=True, slots=True)
class OnlineStatus:
    """Whether the online store responds; ``error`` says why it does not, or is not usable."""

    where: str
    reachable: bool
    error: str | None = None
    evicted_keys: int = 0
    maxmemory_policies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ViewStatus:
    """One view; times are UTC ms, None where they are unknown.

    ``committed_snapshot`` is the newest one of the table of the active generation.
    ``applied_snapshot`` is the one that all buckets of the online store have at least, and
    ``newest_applied_snapshot`` the newest that any bucket has; ``lag_snapshots`` is the distance
    from the first to the committed one. ``low_mark_ms`` and ``high_mark_ms`` are the oldest and the
    newest of the buckets' newest event times. ``current_ms`` is when the materializer last knew the
    view to be up to date, ``behind_s`` the seconds since. ``problem`` says why the store's part
    is missing or not usable, None if it is.
    """

    view: str
    generation: int | None = None
    table: str | None = None
    committed_snapshot: int | None = None
    committed_ms: int | None = None
    newest_applied_snapshot: int | None = None
    applied_snapshot: int | None = None
    lag_snapshots: int | None = None
    low_mark_ms: int | None = None
    high_mark_ms: int | None = None
    current_ms: int | None = None
    behind_s: float | None = None
    stale: bool | None = None
    behind: bool = False
    problem: str | None = None

    @property
    def attention(self) -> str | None:
        """What is wrong with it, None if nothing is."""
        if self.problem is not None:
            return f"view {self.view}: {self.problem}"
        if self.stale and not self.lag_snapshots:
            return (
                f"view {self.view}: nothing is behind, and its values are STALE, because no "
                f"materializer has confirmed it for {self.behind_s:,.0f} s (max_staleness); "
                f"'paimon-features materialize {self.view} --follow' does"
            )
        if self.stale or self.behind:
            return (
                f"view {self.view}: {self.behind_s:,.0f} s behind its tile table; its materializer "
                "has stopped or is too slow"
            )
        return None


class OnlineReader:
    """Reads the states and markers of views, with one connection that is opened when it is used."""

    def __init__(self, config: ProjectConfig) -> None:
        self._config = config
        self._store: OnlineStore | None = None
        self._settings: OnlineSettings | None = None

    def read(
        self, lake: Lake, views: Mapping[str, CompiledView], online: bool, now_ms: int
    ) -> tuple[OnlineStatus | None, list[ViewStatus]]:
        """Return the store, and all views that have generations or are defined, by name.

        ``online`` is false to leave the store out; its status is None then.
        """
        names = sorted({*generations.views(lake), *views})
        if not online:
            return None, [_committed(lake, name)[0] for name in names]
        try:
            store = self._open()
            servers = store.evictions()
        except PaimonFeaturesError as error:
            statuses = [_committed(lake, name)[0] for name in names]
            return OnlineStatus(self._where, False, str(error)), statuses
        policies = sorted({str(server.policy) for server in servers})
        unsafe = [str(server.policy) for server in servers if not server.is_safe]
        evicted = evicted_keys(servers)
        status = OnlineStatus(
            self._where,
            True,
            may_evict("the online store", unsafe[0]) if unsafe else None,
            sum(evicted.values()),
            tuple(policies),
        )
        return status, [
            self._view(lake, store, name, views.get(name), evicted, now_ms) for name in names
        ]

    def close(self) -> None:
        """Close the connection."""
        if self._store is not None:
            self._store.close()

    @property
    def _where(self) -> str:
        return "unknown" if self._settings is None else self._settings.where

    def _open(self) -> OnlineStore:
        if self._store is None:
            settings = OnlineSettings.of(self._config.online, root=self._config.root)
            self._settings = settings
            self._store = open_store(settings)
        return self._store

    def _view(
        self,
        lake: Lake,
        store: OnlineStore,
        name: str,
        view: CompiledView | None,
        evicted: Mapping[str, int],
        now_ms: int,
    ) -> ViewStatus:
        status, record = _committed(lake, name)
        if status.problem is not None or record is None:
            return status
        if view is None:
            return replace(status, problem="it is not in the definitions file any more")
        if not view.is_online:
            return status  # exact windows are read from the lake
        try:
            return _of_store(status, record, store, self._config.name, view, evicted, now_ms)
        except PaimonFeaturesError as error:
            return replace(status, problem=str(error))


def _committed(lake: Lake, name: str) -> tuple[ViewStatus, GenerationRecord | None]:
    try:
        record = generations.active(lake, name)
        if record is None:
            return ViewStatus(name, problem="it is not applied; run 'paimon-features apply'"), None
        newest = latest_snapshot(lake, record.table)
    except (PaimonFeaturesError, OSError) as error:
        return ViewStatus(name, problem=str(error)), None
    at = 0 if newest is None else newest.id
    time_ms = None if newest is None else newest.time_ms
    return ViewStatus(name, record.generation, record.table, at, time_ms), record


def _of_store(
    status: ViewStatus,
    record: GenerationRecord,
    store: OnlineStore,
    project: str,
    view: CompiledView,
    evicted: Mapping[str, int],
    now_ms: int,
) -> ViewStatus:
    epochs = Epochs(store, ViewKeys(project, view.name, store.key_prefix))
    state = epochs.state()
    if state.epoch is None or state.content is None:
        building = "it is being built" if state.building else "is its materializer running?"
        return replace(status, problem=f"it is not in the online store yet; {building}")
    content = state.content
    markers = epochs.markers(state.epoch, range(content.buckets))
    complete = [marker for marker in markers if marker is not None and marker.complete]
    if len(complete) < len(markers):
        lost = len(markers) - len(complete)
        return replace(
            status, problem=f"the online store has lost {lost} of {len(markers)} markers"
        )
    if count := state.evicted_since(evicted):
        return replace(status, problem=f"the online store has evicted {count} keys")
    freshness = worst_freshness(view, complete, now_ms)
    of_active = (content.table, content.incarnation) == (record.table, record.incarnation)
    committed = status.committed_snapshot or 0
    return replace(
        status,
        newest_applied_snapshot=max(marker.applied_snapshot for marker in complete),
        applied_snapshot=freshness.applied_snapshot,
        lag_snapshots=max(0, committed - freshness.applied_snapshot) if of_active else None,
        low_mark_ms=freshness.event_time_low_ms,
        high_mark_ms=freshness.event_time_high_ms,
        current_ms=freshness.current_ms,
        behind_s=round(max(0, now_ms - freshness.current_ms) / 1_000, 1),
        stale=freshness.stale,
        # after a one-shot 'materialize' nothing is behind, however long ago that was
        behind=view.max_staleness_ms is None
        and freshness.applied_snapshot < committed
        and is_behind(freshness, now_ms),
        problem=None
        if of_active
        else f"the online store has generation {content.generation} (incarnation "
        f"{content.incarnation}), the active one is {record.generation} "
        f"(incarnation {record.incarnation})",
    )
