"""MLflow as a second place for runs and model versions; the lake stays the first one.

A registered version becomes a finished run (parameters, losses by batch, metrics, pins as tags,
report) and a version of the registered model ``PROJECT.MODEL``; promotions become aliases. MLflow
is a copy for people to look at: whatever it does, a training run and a promotion succeed.
"""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from paimon_features.core.configuration.project_config import ProjectConfig
from paimon_features.core.documents.redaction import redact
from paimon_features.models import ModelManifest, ModelStates

_LOG = logging.getLogger(__name__)
URI = "MLFLOW_TRACKING_URI"
ARTIFACTS = ("network.onnx", "config.json", "report.html")
TIMEOUT_S = 30.0
"""So long a change may take; then it is given up and reported."""
_ALIASES = ("production", "challenger", "shadow")
_TAG = "paimon_features"
_ENVIRONMENT = {
    # MLflow itself would try for minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    # the output of a command with --json is its document alone
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    # nothing is sent to anybody but the server
    "MLFLOW_DISABLE_TELEMETRY": "true",
}
_PARAMS, _METRICS, _TEXT = 100, 1_000, 500
"""Parameters and metrics of one request, and characters of a value, that every server takes."""

History = Sequence[Mapping[str, float]]
"""Losses: ``batch`` with ``train_loss`` or ``val_loss``."""


class Tracker:
    """Writes to the MLflow server of a project; without one nothing happens.

    ``[models] mlflow`` in the project's file is its address, or ``MLFLOW_TRACKING_URI``, which
    wins. A server that fails is reported in the log, once for each change.
    """

    def __init__(self, config: ProjectConfig, timeout_s: float | None = None) -> None:
        self.project = config.name
        self.uri = os.environ.get(URI) or config.mlflow
        self.timeout_s = TIMEOUT_S if timeout_s is None else timeout_s

    def registered(
        self, manifest: ModelManifest, read: Callable[[str], bytes], history: History = ()
    ) -> None:
        """Copy a version: ``read`` returns the content of one of its files."""
        self._try(f"model {manifest}", lambda: self._version(manifest, read, history))

    def promoted(
        self,
        states: ModelStates,
        manifest: Callable[[int], ModelManifest],
        read: Callable[[ModelManifest, str], bytes],
    ) -> None:
        """Copy the states of all versions; of those that serve, also what is not there yet.

        Versions have their state as a tag. The aliases ``production``, ``challenger`` and
        ``shadow`` are the newest version in that state.
        """
        self._try(f"model {states.name!r}", lambda: self._states(states, manifest, read))

    # -- below: in a thread, with an error for whatever happens --------------------------------

    def _try(self, what: str, work: Callable[[], object]) -> None:
        if not self.uri:
            return
        failures: list[Exception] = []

        def run() -> None:
            try:
                with _environment():
                    work()
            except Exception as error:  # MLflow, its server or the network: nothing stops for it
                failures.append(error)

        # a daemon: a request that hangs must not keep the process
        thread = threading.Thread(target=run, name="mlflow", daemon=True)
        thread.start()
        thread.join(self.timeout_s)
        if thread.is_alive():
            failures.append(TimeoutError(f"no end within {self.timeout_s:g} s"))
        for error in failures[:1]:
            if isinstance(error, ModuleNotFoundError) and (error.name or "").startswith("mlflow"):
                reason = "pip install 'paimon-features[mlflow]'"
            else:
                reason = redact(f"{type(error).__name__}: {str(error).strip()[:300]}")
            _LOG.warning("%s is not in MLflow (%s): %s", what, redact(str(self.uri)), reason)

    def _client(self) -> Any:
        import mlflow

        return mlflow.MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)

    def _name(self, model: str) -> str:
        return f"{self.project}.{model}"

    def _version(
        self, manifest: ModelManifest, read: Callable[[str], bytes], history: History
    ) -> str:
        client = self._client()
        name = self._name(manifest.name)
        self._ensure_model(client, name)
        versions = self._known(client, name)
        if str(manifest.version) in versions:
            return versions[str(manifest.version)]
        run_id = self._run(client, manifest, read, history)
        created = client.create_model_version(
            name,
            f"runs:/{run_id}/model",
            run_id,
            tags={f"{_TAG}.version": str(manifest.version)},
            description=f"{manifest}, {manifest.kind}",
            await_creation_for=0,
        )
        return str(created.version)

    def _run(
        self, client: Any, manifest: ModelManifest, read: Callable[[str], bytes], history: History
    ) -> str:
        from mlflow.entities import Metric, Param, RunTag

        experiment = client.get_experiment_by_name(self.project)
        experiment_id = (
            client.create_experiment(self.project) if experiment is None
            else experiment.experiment_id
        )  # fmt: skip
        training = manifest.training
        started = manifest.created_at_ms if training is None else training.started_at_ms
        ended = manifest.created_at_ms if training is None else training.finished_at_ms
        tags = {f"{_TAG}.version": str(manifest), f"{_TAG}.parents": ",".join(manifest.parents)}
        tags |= {f"{_TAG}.{name}": value for name, value in _flat(_pins(manifest))}
        run = client.create_run(
            experiment_id, start_time=started, run_name=str(manifest),
            tags={name: value for name, value in tags.items() if value},
        )  # fmt: skip
        run_id = str(run.info.run_id)
        try:
            params = [Param(name, value) for name, value in _params(manifest, read)]
            for start in range(0, len(params), _PARAMS):
                client.log_batch(run_id, params=params[start : start + _PARAMS])
            metrics = [
                Metric(name, value, started, int(row["batch"]))
                for row in history
                for name, value in row.items()
                if name != "batch"
            ]
            metrics += [Metric(name, m.value, ended, 0) for name, m in manifest.metrics.items()]
            for start in range(0, len(metrics), _METRICS):
                client.log_batch(run_id, metrics=metrics[start : start + _METRICS])
            client.log_batch(run_id, tags=[RunTag("mlflow.note.content", manifest.card[:5_000])])
            with tempfile.TemporaryDirectory() as folder:
                for file in ARTIFACTS:
                    if file in manifest.files:
                        (Path(folder) / file).write_bytes(read(file))
                (Path(folder) / "manifest.json").write_bytes(manifest.to_bytes())
                client.log_artifacts(run_id, folder, "model")
        except BaseException:
            client.set_terminated(run_id, "FAILED")
            raise
        client.set_terminated(run_id, "FINISHED", end_time=ended)
        return run_id

    def _states(
        self,
        states: ModelStates,
        manifest: Callable[[int], ModelManifest],
        read: Callable[[ModelManifest, str], bytes],
    ) -> None:
        client, name = self._client(), self._name(states.name)
        self._ensure_model(client, name)
        numbers = self._known(client, name)
        aliases: dict[str, str] = {}
        for entry in states.versions:
            number = str(entry.version)
            if number not in numbers and entry.state in _ALIASES:
                missing = manifest(entry.version)
                numbers[number] = self._version(missing, partial(read, missing), ())
            if number in numbers:
                client.set_model_version_tag(name, numbers[number], f"{_TAG}.state", entry.state)
                if entry.state in _ALIASES:
                    aliases[entry.state] = numbers[number]
        for alias in client.get_registered_model(name).aliases:
            if alias in _ALIASES and alias not in aliases:
                client.delete_registered_model_alias(name, alias)
        for alias, version in aliases.items():
            client.set_registered_model_alias(name, alias, version)

    def _ensure_model(self, client: Any, name: str) -> None:
        from mlflow.exceptions import MlflowException

        try:
            client.create_registered_model(name, description="A copy; the lake has the versions.")
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise

    def _known(self, client: Any, name: str) -> dict[str, str]:
        """Return the versions in MLflow by their numbers here."""
        versions: dict[str, str] = {}
        token = None
        while True:
            page = client.search_model_versions(f"name = '{name}'", page_token=token)
            for model_version in page:
                if f"{_TAG}.version" in model_version.tags:
                    versions[model_version.tags[f"{_TAG}.version"]] = str(model_version.version)
            token = page.token
            if not token:
                return versions


@contextmanager
def _environment() -> Iterator[None]:
    """Set our defaults of MLflow in the block, unless the environment has other values."""
    added = {name: value for name, value in _ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


def _pins(manifest: ModelManifest) -> dict[str, Any]:
    return {} if manifest.training is None else asdict(manifest.training)


def _params(manifest: ModelManifest, read: Callable[[str], bytes]) -> Iterator[tuple[str, str]]:
    import json

    yield "kind", manifest.kind
    if "config.json" in manifest.files:
        for name, value in _flat(json.loads(read("config.json"))):
            if name not in ("name", "card", "parents"):
                yield name, value


def _flat(document: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(document, Mapping):
        for name, value in document.items():
            yield from _flat(value, f"{prefix}.{name}" if prefix else str(name))
    elif document not in (None, "", [], ()):
        yield prefix, redact(str(document))[:_TEXT]
