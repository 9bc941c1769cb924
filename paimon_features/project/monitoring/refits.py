"""Versions of a transformer that is refitted periodically, and the drift since a version."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paimon_features.core.errors import SnapshotExpiredError, TransformError
from paimon_features.lake import Lake, latest_snapshot
from paimon_features.models.fitted_table import fitted_versions, save_fitted
from paimon_features.project.monitoring.drift import Drift, drift_of
from paimon_features.project.monitoring.fitting import Fit, distribution, same_data
from paimon_features.transformers import ColumnStatistics, FittedVersion
from paimon_features.transformers.fitted_version import canonical


@dataclass(frozen=True)
class Saved:
    """The version of a fit, new or existing (``is_new`` False), and the drift since another."""

    version: FittedVersion
    is_new: bool
    against: int | None = None
    drift: Sequence[Drift] = ()

    def to_document(self) -> dict[str, Any]:
        """Return the document in JSON values."""
        return {
            "name": self.version.name,
            "version": self.version.version,
            "is_new": self.is_new,
            "digest": self.version.digest,
            "rows": self.version.transformer.rows_seen,
            "fitted_on": dict(self.version.fitted_on),
            "against": self.against,
            "drift": [asdict(drift) for drift in self.drift],
        }


def save_fit(lake: Lake, name: str, fit: Fit, now_ms: int) -> tuple[FittedVersion, bool]:
    """Save the next version and return it with True; or the newest one with False, if equal.

    Raises
    ------
    OwnershipError
        If another process writes versions of it.
    """
    versions = fitted_versions(lake, name)
    newest = versions[-1] if versions else None
    params = canonical(fit.transformer.to_params())
    if newest and newest.params == params and same_data(newest.fitted_on, fit.fitted_on):
        return newest, False
    saved = save_fitted(lake, name, fit.transformer, fitted_on=fit.fitted_on, now_ms=now_ms)
    return saved, True


def drift_since(version: FittedVersion, statistics: Sequence[ColumnStatistics]) -> list[Drift]:
    """Return the drift of the data since a version was fitted against its training data.

    Counts in tiles only grow, so the new data are the difference of two counts. If that is not
    valid (other bins, retracted events), all values are compared instead.
    """
    fitted = version.fitted_on.get("distribution") or {}
    out = []
    for column in statistics:
        now, then = distribution(column), fitted.get(column.column)
        same = now is not None and then is not None and _bins(now) == _bins(then)
        if not same or now is None or then is None:
            out.append(Drift(column.column, column.count or 0, 0))
            continue
        counts, before = ([*of["bins"], of["nulls"] or 0] for of in (now, then))
        since = [here - earlier for here, earlier in zip(counts, before, strict=True)]
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
    """Fit now and after each new snapshot of ``table``, until ``stop`` is set.

    At most one fit every ``every_s`` seconds. Unchanged fits are yielded too, and so are errors
    (ILL_CONDITIONED, no values yet), which the next commit may resolve.
    """
    seen: str | None = None
    while not stop.is_set():
        newest = latest_snapshot(lake, table)
        if newest is not None and newest.commit != seen:
            seen = newest.commit
            outcome: Saved | TransformError | SnapshotExpiredError
            try:
                outcome = fit()
            except (TransformError, SnapshotExpiredError) as error:
                outcome = error
            yield outcome
        stop.wait(every_s)


def _bins(document: dict[str, Any]) -> Any:
    return document.get("edges", document.get("categories"))
