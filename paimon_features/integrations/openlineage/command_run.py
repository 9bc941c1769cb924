"""Sends START and COMPLETE, FAIL or ABORT of a command, without ever failing or delaying it much.

Everything that may take time, reading tables and sending, is done in a thread. At the end of the
command that thread is waited for, for ``WAIT_S`` at most; what could not be sent by then is
reported in a line on stderr and forgotten.
"""

from __future__ import annotations

import datetime as dt
import logging
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from paimon_features._version import __version__
from paimon_features.core.configuration.project_config import ProjectConfig
from paimon_features.core.documents.redaction import redact
from paimon_features.core.errors import PaimonFeaturesError
from paimon_features.core.extras import require
from paimon_features.integrations.openlineage.datasets import (
    LineageDataset,
    command_datasets,
)
from paimon_features.project import Project

WAIT_S = 5.0
"""How long the end of a command waits for its events."""
_REQUEST_S = 2.0
PRODUCER = f"https://pypi.org/project/paimon-features/{__version__}"
_LONGEST_MESSAGE = 4_000

Warn = Callable[[str], None]


class CommandRun:
    """One run of a command; ``params`` are its parameters by name.

    ``warn`` gets a line for events that were not delivered. Call one of ``complete``, ``fail`` and
    ``abort`` at its end.

    Raises
    ------
    MissingExtraError
        Without the package ``openlineage-python``.
    """

    def __init__(
        self, config: ProjectConfig, command: str, params: Mapping[str, Any], warn: Warn
    ) -> None:
        require("openlineage", "openlineage", "[lineage] openlineage")
        self._config, self._command, self._params, self._warn = config, command, params, warn
        self._problem: str | None = None
        self._sender = _EventSender(config, command, params)
        self._start = threading.Thread(
            target=self._guarded, args=(self._sender.start, _now()), daemon=True
        )
        self._start.start()

    def complete(self) -> None:
        """Report that the command succeeded."""
        self._end("COMPLETE", None)

    def fail(self, message: str) -> None:
        """Report that the command failed with this message."""
        self._end("FAIL", redact(message)[:_LONGEST_MESSAGE])

    def abort(self) -> None:
        """Report that the command was interrupted."""
        self._end("ABORT", None)

    def _end(self, kind: str, message: str | None) -> None:
        at = _now()

        def send() -> None:
            self._start.join()
            self._sender.end(kind, at, message)

        worker = threading.Thread(target=self._guarded, args=(send,), daemon=True)
        worker.start()
        worker.join(WAIT_S)
        if worker.is_alive():
            self._problem = f"no answer within {WAIT_S:.0f} s"
        if self._problem is not None:
            self._warn(f"warning: lineage events were not delivered: {self._problem}")

    def _guarded(self, call: Callable[..., None], *arguments: Any) -> None:
        try:
            call(*arguments)
        except Exception as error:  # whatever a transport raises, the command continues
            self._problem = redact(f"{type(error).__name__}: {error}")[:300]


class _EventSender:
    """Builds the events and sends them; imports the library in the thread that needs it."""

    def __init__(self, config: ProjectConfig, command: str, params: Mapping[str, Any]) -> None:
        self._config, self._command, self._params = config, command, params
        self._client: Any = None
        self._run: Any = None

    def start(self, at: str) -> None:
        from openlineage.client import OpenLineageClient
        from openlineage.client.uuid import generate_new_uuid

        class EventClient(OpenLineageClient):
            """Reads no file of the current folder: it could name classes, and where events go."""

            @staticmethod
            def _find_yaml_config_path() -> str | None:
                return user_configuration(os.environ)

        # it logs what it raises, too
        logging.getLogger("openlineage").setLevel(logging.CRITICAL)
        transport = _transport(self._config)
        if transport is None:
            self._client = EventClient()
        else:
            self._client = EventClient(config={"transport": transport})
        self._run = str(generate_new_uuid())
        self._emit("START", at, None, ([], []))

    def end(self, kind: str, at: str, message: str | None) -> None:
        if self._client is None:
            return  # START says why
        try:
            datasets = command_datasets(Project(self._config), self._command, self._params)
        except (PaimonFeaturesError, KeyError):
            if kind == "COMPLETE":
                raise
            datasets = ([], [])  # most probably what the command failed for
        self._emit(kind, at, message, datasets)
        self._client.close(WAIT_S)

    def _emit(
        self,
        kind: str,
        at: str,
        message: str | None,
        found: tuple[list[LineageDataset], list[LineageDataset]],
    ) -> None:
        from openlineage.client import event_v2, facet_v2

        facet_v2.set_producer(PRODUCER)
        name = _job_name(self._command, self._params)
        follows = bool(self._params.get("follow")) or (
            self._command == "submit" and not self._params.get("bounded")
        )
        job = event_v2.Job(
            self._config.name,
            name,
            {
                "jobType": facet_v2.job_type_job.JobTypeJobFacet(
                    "STREAMING" if follows else "BATCH", "PAIMON_FEATURES", "COMMAND"
                )
            },
        )
        facets: dict[str, Any] = {
            "processing_engine": facet_v2.processing_engine_run.ProcessingEngineRunFacet(
                __version__, "paimon-features"
            )
        }
        if message is not None:
            error = facet_v2.error_message_run.ErrorMessageRunFacet(message, "PYTHON")
            facets["errorMessage"] = error
        run = event_v2.Run(self._run, facets)
        inputs, outputs = found
        event = event_v2.RunEvent(
            eventType=event_v2.RunState[kind],
            eventTime=at,
            run=run,
            job=job,
            producer=PRODUCER,
            inputs=[event_v2.InputDataset(d.namespace, d.name, facets=_facets(d)) for d in inputs],
            outputs=[
                event_v2.OutputDataset(d.namespace, d.name, facets=_facets(d)) for d in outputs
            ],
        )
        self._client.emit(event)


def user_configuration(environ: Mapping[str, str]) -> str | None:
    """Return the path of the library's configuration of this user."""
    home = Path(environ.get("HOME", "/")) / ".openlineage" / "openlineage.yml"
    named = environ.get("OPENLINEAGE_CONFIG")
    return next((str(p) for p in (named and Path(named), home) if p and p.is_file()), None)


def _transport(config: ProjectConfig) -> dict[str, Any] | None:
    """Return the transport of ``[lineage] openlineage``; None: as the library finds it."""
    where = config.openlineage
    if where is None:
        return None
    if not where.startswith(("http://", "https://")):
        return {"type": "file", "log_file_path": where, "append": True}
    transport: dict[str, Any] = {
        "type": "http",
        "url": where,
        "timeout": _REQUEST_S,
        "retry": {"total": 0},
    }
    if key := os.environ.get("OPENLINEAGE_API_KEY"):
        transport["auth"] = {"type": "api_key", "apiKey": key}
    return transport


def _job_name(command: str, params: Mapping[str, Any]) -> str:
    """Return the command, and what it is about: ``backfill.customer_spend``."""
    about = params.get("view") or params.get("source") or params.get("name")
    if about is None and isinstance(params.get("config"), Path):
        about = params["config"].stem
    return f"{command}.{about}" if about else command


def _facets(dataset: LineageDataset) -> dict[str, Any]:
    from openlineage.client import facet_v2

    facets: dict[str, Any] = {
        "dataSource": facet_v2.datasource_dataset.DatasourceDatasetFacet(
            dataset.source, dataset.source if "://" in dataset.source else f"file:{dataset.source}"
        )
    }
    if dataset.fields:
        schema = facet_v2.schema_dataset
        facets["schema"] = schema.SchemaDatasetFacet(
            [schema.SchemaDatasetFacetFields(name, kind or None) for name, kind in dataset.fields]
        )
    if dataset.version is not None:
        version = facet_v2.dataset_version_dataset.DatasetVersionDatasetFacet(dataset.version)
        facets["version"] = version
    if dataset.alias is not None:
        symlinks = facet_v2.symlinks_dataset
        alias = symlinks.Identifier(dataset.source, dataset.alias, "TABLE")
        facets["symlinks"] = symlinks.SymlinksDatasetFacet([alias])
    if dataset.columns:
        lineage = facet_v2.column_lineage_dataset
        facets["columnLineage"] = lineage.ColumnLineageDatasetFacet(
            {
                column: lineage.Fields(
                    [lineage.InputField(d.namespace, d.name, name) for d, name in parts]
                )
                for column, parts in dataset.columns.items()
                if parts
            }
        )
    return facets


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat()
