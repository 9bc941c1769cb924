"""The engines that ingest files and compute tiles and historical features, by name.

An engine is a module of this distribution with the functions of ``Engine``. It is imported when
it is used, so that a host needs the packages of the engines it uses, and nothing here depends on
an engine: import direction is engine -> the rest.

>>> resolve_engine("duckdb")
Traceback (most recent call last):
    ...
paimon_features.core.errors.RequestError: engine 'duckdb'; expected 'local' or 'flink'
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypedDict, Unpack, cast

from paimon_features.core.configuration.project_config import ProjectConfig
from paimon_features.core.errors import RequestError
from paimon_features.core.process.callbacks import OnMessage
from paimon_features.definitions import EventSource
from paimon_features.ingest.file_ingestion import IngestResult
from paimon_features.lake import Lake
from paimon_features.offline.reading.engine import OfflineEngine
from paimon_features.tiles.jobs.backfill import TileJobResult
from paimon_features.tiles.jobs.target import TileTarget

if TYPE_CHECKING:
    from paimon_features.core.configuration.input_settings import InputSettings
    from paimon_features.ingest.flink.job import ChoosePartitions
    from paimon_features.ingest.ingest_progress import OnIngestProgress

EngineName = Literal["local", "flink"]

ENGINES = {
    "local": "paimon_features.project.engines_local",
    "flink": "paimon_features.project.engines_flink",
}
"""Engine -> the module with its functions. To add one, name its module here."""


class BackfillKeywords(TypedDict, total=False):
    """Options of a backfill: ``memory``, ``threads`` and ``progress`` of the local engine,
    ``cluster`` of Flink."""

    memory: str | None
    threads: int | None
    progress: Callable[..., None]
    cluster: str | None
    on_message: OnMessage


class IngestKeywords(TypedDict, total=False):
    """Options of an ingestion: ``threads`` and ``settings`` of the local engine, ``parallelism``,
    ``cluster`` and ``choose_partitions`` of Flink, the others of both."""

    again: bool
    progress: OnIngestProgress | None
    max_line_bytes: int
    threads: int | None
    settings: InputSettings | None
    parallelism: int
    cluster: str | None
    choose_partitions: ChoosePartitions | None


class Engine(Protocol):
    """What the module of an engine provides."""

    def backfill(
        self, target: TileTarget, *, rebuild: bool = False, **options: Unpack[BackfillKeywords]
    ) -> TileJobResult:
        """Compute the tiles of all past events in one commit; ``options`` are the engine's own."""
        ...

    def ingest_files(
        self,
        lake: Lake,
        source: EventSource,
        paths: Iterable[Path],
        mapping: Mapping[str, str] | None = None,
        *,
        state_dir: Path,
        **options: Unpack[IngestKeywords],
    ) -> IngestResult:
        """Load files into a source's events table; see ``ingest.file_ingestion.ingest_by``."""
        ...

    def history_engine(
        self, config: ProjectConfig, cluster: str | None, on_message: OnMessage | None
    ) -> OfflineEngine | None:
        """Return the engine of historical features; None is the join in this process.

        Raises
        ------
        RequestError
            If the engine does not run on clusters and one is given.
        """
        ...


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Which engine computes historical features, and where.

    ``cluster`` is the ``host:port`` of a Flink session cluster; ``on_message`` gets a line of
    text at each stage. Where these are not needed, the engine's name will do.

    >>> EngineOptions("flink", cluster="127.0.0.1:8081").name
    'flink'
    """

    name: EngineName = "local"
    cluster: str | None = None
    on_message: OnMessage | None = None


def resolve_engine(name: str) -> Engine:
    """Import the engine of that name.

    Raises
    ------
    RequestError
        For an unknown name.
    """
    module = ENGINES.get(name)
    if module is None:
        raise RequestError(f"engine {name!r}; expected {' or '.join(map(repr, ENGINES))}")
    return cast(Engine, importlib.import_module(module))


def history_engine(
    engine: EngineName | EngineOptions, config: ProjectConfig
) -> OfflineEngine | None:
    """Return the engine for one read of historical features; None is the join in this process.

    Raises
    ------
    RequestError
        For an unknown name, or a cluster where the engine does not run on one.
    MissingExtraError
        If the engine is not installed.
    """
    options = engine if isinstance(engine, EngineOptions) else EngineOptions(engine)
    chosen = resolve_engine(options.name)
    return chosen.history_engine(config, options.cluster, options.on_message)
