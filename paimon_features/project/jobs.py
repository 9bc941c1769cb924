"""``project.jobs``: computing tiles from Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paimon_features.callbacks import OnProgress, ignore_progress
from paimon_features.clock import now_ms
from paimon_features.project.context import ProjectContext

if TYPE_CHECKING:
    from paimon_features.engines import EngineName
    from paimon_features.job_control.backfill import TileJobResult
    from paimon_features.offline.rollup import RollupSummary


class ProjectJobs:
    """Backfills and rollups of a project's views."""

    def __init__(self, project: ProjectContext) -> None:
        self._project = project

    def backfill(
        self,
        view: str,
        *,
        engine: EngineName = "local",
        generation: int | None = None,
        rebuild: bool = False,
        **options: Any,
    ) -> TileJobResult:
        """Compute the tiles of all past events of a view in one commit, as the command does.

        ``local`` is DuckDB in this process: no Java, and ``memory="4GB"`` and ``threads=`` bound
        it. ``flink`` takes ``cluster="host:port"``. Both take ``on_message=`` (a line of
        text for each decision), ``local`` also ``report=`` (progress). ``rebuild`` empties the
        generation first.

        Raises
        ------
        OwnershipError, GenerationError, JobError
            If another process owns the tables, they are not empty, or the computation fails.
        MissingExtraError
            If the engine is not installed.
        """
        from paimon_features.engines import resolve_engine
        from paimon_features.job_control.target import TileTarget

        target = TileTarget.of(self._project, view, generation)
        return resolve_engine(engine).backfill(target, rebuild=rebuild, **options)

    def roll_up(self, view: str, progress: OnProgress = ignore_progress) -> RollupSummary:
        """Create the missing rollups of a view's tiles, so that lifetime windows stay cheap.

        ``progress`` is called with the units checked so far and in total. See ``offline.rollup``.

        Raises
        ------
        GenerationError
            If the view is not applied, or its definition means other tiles.
        OwnershipError
            If another process is rolling these tiles up.
        """
        from paimon_features.offline.rollup import roll_up

        compiled = self._project.view(view)
        return roll_up(
            self._project.lake, compiled, self._project.generation(compiled), now_ms(), progress
        )
