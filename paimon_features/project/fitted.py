"""``project.fitted``: fitted transformers, in the lake and as files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from paimon_features.core.errors import RequestError
from paimon_features.core.process.callbacks import OnProgress, ignore_progress
from paimon_features.core.times.clock import now_ms
from paimon_features.project.context import ProjectContext
from paimon_features.transformers.fitted_version import FOLDER

if TYPE_CHECKING:
    from paimon_features.lake.metadata.snapshots import SnapshotRef
    from paimon_features.project.monitoring.fitting import Fit
    from paimon_features.transformers import (
        FeatureTransformer,
        FittedVersion,
        StoredTransformer,
    )


class FitKeywords(TypedDict, total=False):
    """The keywords of :meth:`FittedTransformers.fit_view`; documented there."""

    columns: Sequence[str] | None
    features: Sequence[str] | None
    rows: Any
    as_of_ms: int | None
    origin: Literal["tiles", "events"] | None
    progress: OnProgress


class FittedTransformers:
    """The fitted transformers of a project, by name and version."""

    def __init__(self, project: ProjectContext) -> None:
        self._project = project

    @property
    def folder(self) -> Path:
        """The folder of exported versions, next to the definitions file."""
        return self._project.config.definitions.parent / FOLDER

    def save(
        self,
        name: str,
        transformer: FeatureTransformer,
        *,
        table: str | None = None,
        snapshot_id: SnapshotRef | None = None,
    ) -> int:
        """Save a fitted transformer to the table ``fitted_<name>``; returns its version number.

        ``table`` names the table of the lake that it was fitted on, such as ``training_churn``, at
        ``snapshot_id`` (a number or ``number@commit``, the newest by default). Saving an equal
        transformer again returns the same version.

        Raises
        ------
        TransformError
            If it is not fitted, or cannot be stored.
        UnknownNameError, SnapshotExpiredError
            If there is no such table or snapshot.
        OwnershipError
            If another process is saving a version of it.
        """
        from paimon_features.lake import latest_snapshot
        from paimon_features.lake.metadata.snapshots import pinned
        from paimon_features.lake.specs import TRAINING_VALUES
        from paimon_features.models.fitted_table import save_fitted
        from paimon_features.offline.reading.pinning import Pin

        fitted_on: dict[str, Any] = {}
        if table is not None:
            self._project.lake.table(table)  # UnknownNameError where there is none
            read = latest_snapshot(self._project.lake, table)
            if snapshot_id is not None:
                read = pinned(self._project.lake, table, snapshot_id)
            fitted_on = Pin.of(table, read).to_document()
            lake = self._project.lake
            # imported here: a project can be opened without the packages of the lake
            from paimon_features.lake import table_options

            values = json.loads(table_options.properties(lake, table).get(TRAINING_VALUES, "{}"))
            names = getattr(transformer, "names", None) or ()
            if definitions := {name: values[name] for name in names if name in values}:
                fitted_on["definitions"] = definitions
        elif snapshot_id is not None:
            raise RequestError(f"snapshot_id={snapshot_id} goes with table=, the table it is of")
        saved = save_fitted(
            self._project.lake, name, transformer, fitted_on=fitted_on, now_ms=now_ms()
        )
        return saved.version

    def load(self, name: str, version: int | None = None) -> FittedVersion:
        """Return a version of a fitted transformer from the lake, the newest by default.

        Raises
        ------
        UnknownNameError
            If there is no such transformer or version.
        """
        from paimon_features.models.fitted_table import load_fitted

        return load_fitted(self._project.lake, name, version)

    def export(self, name: str, version: int | None = None) -> Path:
        """Write a version as ``fitted/<name>/v<version>.json``, which definitions read.

        Raises
        ------
        UnknownNameError
            If there is no such transformer or version.
        DefinitionError
            If the file exists with different content.
        """
        from paimon_features.transformers.fitted_version import write_version

        return write_version(self.folder, self.load(name, version))

    def fit(
        self, name: str, transformer: StoredTransformer, view: str, **of: Unpack[FitKeywords]
    ) -> FittedVersion:
        """Fit on a view and save the result as the next version of ``name``; see ``fit_view``.

        Returns the newest version where that was fitted to the same data with the same result.
        """
        from paimon_features.project.monitoring.refits import save_fit

        fit = self.fit_view(transformer, view, **of)
        version, _ = save_fit(self._project.lake, name, fit, now_ms())
        return version

    def fit_view(
        self,
        transformer: StoredTransformer,
        view: str,
        *,
        columns: Sequence[str] | None = None,
        features: Sequence[str] | None = None,
        rows: Any = None,
        as_of_ms: int | None = None,
        origin: Literal["tiles", "events"] | None = None,
        progress: OnProgress = ignore_progress,
    ) -> Fit:
        """Fit a transformer on columns of a view's events, or on its features.

        Parameters
        ----------
        columns
            Columns of the source, or derived ones; over all events that enter the view's tiles.
        features
            Features of the view, for all entities known at ``as_of_ms`` (by default just after
            the newest event), or at the entity ``rows``, as for ``get_historical_features``.
        as_of_ms
            Only events before this time (exclusive), UTC ms.
        origin
            ``tiles`` or ``events``; by default tiles where they contain the needed partials.

        Raises
        ------
        RequestError
            Unless exactly one of ``columns`` and ``features`` is passed; where tiles lack the
            needed partials.
        TransformError
            If the transformer cannot be fitted to the values, or they are ILL_CONDITIONED.
        """
        from paimon_features.project.monitoring import feature_values as points
        from paimon_features.project.monitoring import fitting

        reader = self._project.view_reader(view)
        if (columns is None) == (features is None):
            raise RequestError("pass exactly one of columns= or features=")
        if columns is not None:
            return fitting.fit_columns(
                reader, transformer, columns, until_ms=as_of_ms, origin=origin, progress=progress
            )
        origin_of_rows: dict[str, Any]
        if rows is not None:
            origin_of_rows = {"rows": rows if isinstance(rows, str) else type(rows).__name__}
            entity_rows: Any = points.requested_rows(self._project.lake, reader.view, rows)
        else:
            newest = points.newest_event_ms
            at = newest(self._project.lake, reader.tiles) + 1 if as_of_ms is None else as_of_ms
            origin_of_rows = {"at_ms": at}
            entity_rows = points.entity_rows(self._project.lake, reader.view, reader.tiles, at)
        names = list(features or ())
        offline = self._project.offline
        tables = points.feature_rows(offline, reader.view, names, entity_rows, progress)
        return fitting.fit_features(transformer, reader.view, names, *tables, origin_of_rows)
