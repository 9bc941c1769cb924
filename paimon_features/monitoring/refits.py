"""Versions of a transformer that is fitted again and again, and how the data moved since one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paimon_features.errors import SnapshotExpiredError, TransformError
from paimon_features.monitoring.drift import Drift, drift_of
from paimon_features.monitoring.fitting import Fit, distribution, same_data
from paimon_features.tables import Lake, latest_snapshot
from paimon_features.tables.fitted import fitted_versions, save_fitted
from paimon_features.transformers import ColumnStatistics, FittedVersion
from paimon_features.transformers.fitted_version import canonical


@dataclass(frozen=True)
class Saved:
    """A version that a fit gave, or found there (``is_new`` False), and the drift since another."""

    version: FittedVersion
    is_new: bool
    against: int | None = None
    drift: Sequence[Drift] = ()

    def to_document(self) -> dict[str, Any]:
        """In values of JSON."""
        return {
            "name": self.version.name,
            "version": self.version.version,
            "is_new": self.is_new,
            "digest": self.version.digest,
            "rows": self.version.transformer.rows_seen,
            "fitted_on": dict(self.version.fitted_on),
            "against": self.against,
            "drift": [asdict(each) for each in self.drift],
        }


def save_fit(lake: Lake, name: str, fit: Fit, now_ms: int) -> tuple[FittedVersion, bool]:
    """The next version, and True; or the newest one and False, if it learnt the same already.

    Raises
    ------
    OwnershipError
        If another process writes versions of it.
    """
    known = fitted_versions(lake, name)
    newest = known[-1] if known else None
    params = canonical(fit.transformer.to_params())
    if newest and newest.params == params and same_data(newest.fitted_on, fit.fitted_on):
        return newest, False
    saved = save_fitted(lake, name, fit.transformer, fitted_on=fit.fitted_on, now_ms=now_ms)
    return saved, True


def drift_since(version: FittedVersion, statistics: Sequence[ColumnStatistics]) -> list[Drift]:
    """How far what came since a version was fitted is from what it was fitted on.

    Tiles only grow, so what came since is the difference of two counts. Where they are not those
    of one growing range (other bins; events were withdrawn), all values are compared instead.
    """
    known = version.fitted_on.get("distribution") or {}
    out = []
    for column in statistics:
        now, then = distribution(column), known.get(column.column)
        same = now is not None and then is not None and _bins(now) == _bins(then)
        if not same or now is None or then is None:
            out.append(Drift(column.column, column.count or 0, 0))
            continue
        counts, before = ([*of["bins"], of["nulls"] or 0] for of in (now, then))
        since = [here - there for here, there in zip(counts, before, strict=True)]
        if min(since) < 0:
            since = counts
        nulls = since.pop(), before.pop()
        out.append(drift_of(column.column, since, before, "edges" in now, nulls))
    return out


def follow(
    lake: Lake,
    table: str,
    every_s: float,
    stop: threading.Event,
    fit: Callable[[], Saved],
) -> Iterator[Saved | TransformError | SnapshotExpiredError]:
    """A fit now, and one whenever ``table`` has another snapshot, until ``stop`` is set.

    At most one every ``every_s`` seconds. Fits that learnt nothing new are given, too, and the
    error of one that cannot be told (ILL_CONDITIONED, no value yet): the next commit may mend it.
    """
    seen: int | None = None
    while not stop.is_set():
        newest = latest_snapshot(lake, table)
        if newest is not None and newest.id != seen:
            seen = newest.id
            found: Saved | TransformError | SnapshotExpiredError
            try:
                found = fit()
            except (TransformError, SnapshotExpiredError) as error:
                found = error
            yield found
        stop.wait(every_s)


def _bins(document: dict[str, Any]) -> Any:
    return document.get("edges", document.get("categories"))
