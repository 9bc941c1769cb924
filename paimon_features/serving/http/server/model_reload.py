"""Models are loaded when others were published; requests continue with those that were there."""

from __future__ import annotations

import asyncio

from paimon_features.core.documents.redaction import redact
from paimon_features.core.errors import OnlineStoreError, PaimonFeaturesError
from paimon_features.core.extras import require
from paimon_features.models import ModelStates, VersionState
from paimon_features.online.store.published_models import AGAIN, ModelPlace
from paimon_features.serving.http.definitions.served_models import (
    LoadedModel,
    LoadedVersion,
    ModelSet,
)
from paimon_features.serving.http.logs import LOGGER
from paimon_features.serving.http.server.app import FeatureApp
from paimon_features.serving.http.server.reload import yielding_often
from paimon_features.serving.prediction.network import FIRST_RUN_S, OnnxNetwork
from paimon_features.serving.prediction.network_trial import try_network

POLL_S = 1.0


class ModelReloader:
    """Keeps an app up to date with the models of a place.

    A model's states are replaced as a whole: if one of its versions cannot be loaded, the model
    stays as it was, and ``GET /models`` says why. Of a model that was not here before, the versions
    that load are served if production is one of them. A network is tried in another process, for
    ``load_timeout_s``, before it is loaded in this one.
    """

    def __init__(
        self, place: ModelPlace, *, threads: int = 1, load_timeout_s: float = FIRST_RUN_S
    ) -> None:
        self._place = place
        self._threads = threads
        self._load_timeout_s = load_timeout_s
        self._lock = asyncio.Lock()

    def load(self, before: ModelSet) -> ModelSet:
        """Return the models that are published now.

        Never raises. Takes as long as loading takes.
        """
        try:
            stamp = self._place.stamp()
            if not stamp:
                # models are unpublished by an index without them: this one is lost
                lost = f"{self._place}: their index is lost, and what was loaded before is served; "
                lost += f"a materializer with --follow publishes it again, or {AGAIN}"
                return ModelSet(before.models, "", lost if before.models else None)
            index = self._place.read()
        except PaimonFeaturesError as error:
            # the store is away, or the index is damaged: what is served stays
            return ModelSet(before.models, before.stamp, redact(str(error)))
        models: dict[str, LoadedModel] = {}
        for name, states in sorted(index.models.items()):
            previous = before.models.get(name)
            try:
                models[name] = self._model(states, previous)
            except OnlineStoreError as error:
                return ModelSet(before.models, before.stamp, redact(str(error)))
        return ModelSet(models, stamp)

    def _model(self, states: ModelStates, previous: LoadedModel | None) -> LoadedModel:
        if previous is not None and previous.states == states and previous.problem is None:
            return previous
        loaded = {} if previous is None else {
            version.state.manifest: version for version in previous.versions.values()
        }  # fmt: skip
        versions: dict[int, LoadedVersion] = {}
        problems: list[str] = []
        for state in (*states.serving, *states.shadows):
            before = loaded.get(state.manifest)
            try:
                network = self._network(states.name, state) if before is None else before.network
            except OnlineStoreError:
                raise
            except (PaimonFeaturesError, MemoryError) as error:
                problem = redact(str(error) or "there is not enough memory for its networks")
                LOGGER.error("model %s: version %d is not loaded: %s", states.name, state.version,
                             problem)  # fmt: skip
                problems.append(problem)
            else:
                versions[state.version] = LoadedVersion(state, network)
        if not problems:
            return LoadedModel(states, versions)
        if previous is not None and previous.versions:
            return previous.with_problem("; ".join(problems))
        production = states.production
        if production is None or production.version not in versions:
            versions = {}
        return LoadedModel(states, versions, "; ".join(problems))

    def _network(self, name: str, state: VersionState) -> OnnxNetwork:
        model = self._place.load(name, state)
        require("onnxruntime", "predict", "serving models")
        try_network(model, self._load_timeout_s)
        return OnnxNetwork(model, threads=self._threads, first_run_s=self._load_timeout_s)

    async def watch(self, app: FeatureApp) -> None:
        """Reload whenever other models are published; checks once a second, until cancelled."""
        while True:
            await asyncio.sleep(POLL_S)
            if await asyncio.to_thread(self._changed, app.state.models):
                await self.reload(app)

    async def reload(self, app: FeatureApp) -> None:
        """Load what is published, and switch to it."""
        async with self._lock:
            before = app.state.models
            with yielding_often():
                after = await asyncio.to_thread(self.load, before)
            app.replace_models(after)
            if after.problem is not None and after.problem != before.problem:
                LOGGER.error("the models could not be read: %s", after.problem)
            for name, model in after.models.items():
                if model is not before.models.get(name) and model.problem is None:
                    LOGGER.info("model %s: %s", name, _said(model.states))

    def _changed(self, models: ModelSet) -> bool:
        try:
            return models.problem is not None or self._place.stamp() != models.stamp
        except PaimonFeaturesError:
            return False  # the store is away: there is nothing new


def _said(states: ModelStates) -> str:
    served = [f"{state.version} ({state.state})" for state in (*states.serving, *states.shadows)]
    return ", ".join(served) or "none served"
