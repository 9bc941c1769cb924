"""``project.derived``: the windows of tumbling and session views."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from paimon_features.definitions import CompiledDerived
from paimon_features.project.context import ProjectContext

if TYPE_CHECKING:
    import pyarrow as pa

    from paimon_features.lake.side_folder.generations import GenerationRecord
    from paimon_features.offline.derived_rows import DerivedRead
    from paimon_features.offline.derived_table import DerivedRefresh
    from paimon_features.offline.feature_file import WrittenFile
    from paimon_features.offline.reading.pinning import AsOf


class WindowKeywords(TypedDict, total=False):
    """Which windows, and the memory for them; see :meth:`DerivedViews.rows`."""

    from_ms: int | None
    to_ms: int | None
    include_open: bool
    memory_mb: float | None


class WindowsKeywords(WindowKeywords, total=False):
    """The same, and of which commits."""

    as_of: AsOf | str


class DerivedViews:
    """The windows of a project's derived views, as tables, streams, files, or in the lake."""

    def __init__(self, project: ProjectContext) -> None:
        self._project = project

    def rows(self, name: str, **options: Unpack[WindowsKeywords]) -> pa.Table:
        """Return the windows of a tumbling or session view, sorted by start, then keys.

        Parameters
        ----------
        from_ms, to_ms
            Range of window starts, UTC ms: from (inclusive), to (exclusive); all by default.
        include_open
            Include windows that end after the newest event in the tiles and can still grow.
        as_of
            Only tiles that had been committed by then, see ``OfflineStore``.
        memory_mb
            Approximate memory for the tiles in process, 1024 by default.

        Raises
        ------
        UnknownNameError, GenerationError
            For an undefined derived view, or a feature view that is not applied.
        SnapshotExpiredError
            If what had been committed by ``as_of`` can no longer be read.
        """
        return self._read(name, **options).table()

    def stream(self, name: str, **options: Unpack[WindowsKeywords]) -> pa.RecordBatchReader:
        """Return the windows of ``rows`` as a stream, computed some days at a time as it is
        read."""
        return self._read(name, **options).reader()

    def write(self, name: str, path: str | Path, **options: Unpack[WindowsKeywords]) -> WrittenFile:
        """Return the windows of ``rows`` as a file (.parquet, .csv, .csv.gz, .arrow, .feather),
        which appears when it is complete."""
        from paimon_features.offline.feature_file import WrittenFile, check_output, write_tables

        check_output(Path(path))
        read = self._read(name, **options)
        rows = write_tables(read.schema, read.tables(), Path(path))
        lacking = {read.view.name: read.not_included} if read.not_included else {}
        features = tuple(f.name for f in read.derived.features)
        return WrittenFile(Path(path), rows, features, (read.pin,), lacking)

    def refresh(
        self, name: str, *, replace: bool = False, **options: Unpack[WindowKeywords]
    ) -> DerivedRefresh:
        """Refresh the table ``features_<name>``; see ``derived_table.refresh``."""
        from paimon_features.offline.derived_table import refresh

        derived, record = self._view(name)
        return refresh(self._project.lake, derived, record, replace=replace, **options)

    def _read(
        self, name: str, *, as_of: AsOf | str = None, **options: Unpack[WindowKeywords]
    ) -> DerivedRead:
        from paimon_features.offline.derived_rows import DerivedRead

        derived, record = self._view(name)
        pinned = self._project.pinned(as_of)
        return DerivedRead(self._project.lake, derived, record, as_of=pinned, **options)

    def _view(self, name: str) -> tuple[CompiledDerived, GenerationRecord]:
        derived = self._project.definitions.derived_view(name).compiled
        return derived, self._project.generation(self._project.view(derived.view.name))
