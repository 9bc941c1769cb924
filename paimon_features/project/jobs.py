"""``project.jobs``: computing tiles from Python."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from paimon_features.core.notebook import ProgressBar
from paimon_features.core.process.callbacks import OnProgress
from paimon_features.core.times.clock import now_ms
from paimon_features.project.context import ProjectContext

if TYPE_CHECKING:
    from paimon_features.ingest.file_ingestion import IngestResult
    from paimon_features.offline.rollup import RollupSummary
    from paimon_features.project.engines import BackfillKeywords, EngineName, IngestKeywords
    from paimon_features.tiles.jobs.backfill import TileJobResult


class ProjectJobs:
    """Backfills and rollups of a project's views."""

    def __init__(self, project: ProjectContext) -> None:
        self._project = project

    def ingest(
        self,
        source: str,
        paths: str | Path | Iterable[str | Path],
        *,
        columns: Mapping[str, str] | None = None,
        **options: Unpack[IngestKeywords],
    ) -> IngestResult:
        """Ingest files into a source's events, as ``ingest files --engine local`` does.

        Each file once, all rows in one commit; rows that are no events are kept in
        ``rejected_<source>`` with the reason. ``columns`` has the names that columns have in the
        files, by their names in the source. ``again`` ingests files a second time. Both options
        and ``threads=``, ``max_line_bytes=``, ``progress=`` are those of the local engine. A
        notebook shows the progress.

        Raises
        ------
        UnknownNameError
            For a source that is not defined or not applied.
        ConfigurationError
            For files that do not exist or are of another kind.
        OwnershipError
            If another process owns the tables.
        """
        from paimon_features.project.engines import resolve_engine

        listed = [paths] if isinstance(paths, str | Path) else list(paths)
        project = self._project
        with ProgressBar(f"ingest {source}") as bar:
            options = {"progress": bar, **options}
            return resolve_engine("local").ingest_files(
                project.lake,
                project.definitions.source(source),
                [Path(path) for path in listed],
                columns,
                state_dir=project.config.state_dir,
                **options,
            )

    def backfill(
        self,
        view: str,
        *,
        engine: EngineName = "local",
        generation: int | None = None,
        rebuild: bool = False,
        **options: Unpack[BackfillKeywords],
    ) -> TileJobResult:
        """Compute the tiles of all past events of a view in one commit, as the command does.

        ``local`` is DuckDB in this process: no Java, and ``memory="4GB"`` and ``threads=`` bound
        it. ``flink`` takes ``cluster="host:port"``. Both take ``on_message=`` (a line of
        text for each decision), ``local`` also ``progress=`` (progress; by default a notebook shows
        it). ``rebuild`` empties the generation first.

        Raises
        ------
        OwnershipError, GenerationError, JobError
            If another process owns the tables, they are not empty, or the computation fails.
        MissingExtraError
            If the engine is not installed.
        """
        from paimon_features.project.engines import resolve_engine
        from paimon_features.tiles.jobs.target import TileTarget

        target = TileTarget.of(self._project, view, generation)
        with ProgressBar(f"backfill {view}") as bar:
            if engine == "local":
                options = {"progress": bar, **options}
            return resolve_engine(engine).backfill(target, rebuild=rebuild, **options)

    def roll_up(self, view: str, progress: OnProgress | None = None) -> RollupSummary:
        """Create the missing rollups of a view's tiles, so that lifetime windows stay cheap.

        ``progress`` is called with the units checked so far and in total; by default a notebook
        shows it. See ``offline.rollup``.

        Raises
        ------
        GenerationError
            If the view is not applied, or its definition means other tiles.
        OwnershipError
            If another process is rolling these tiles up.
        """
        from paimon_features.offline.rollup import roll_up

        compiled = self._project.view(view)
        record = self._project.filled_generation(compiled)
        with ProgressBar(f"roll up {view}") as bar:
            return roll_up(self._project.lake, compiled, record, now_ms(), progress or bar)
