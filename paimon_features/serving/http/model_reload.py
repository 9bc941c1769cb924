"""Models are loaded when others were published; requests continue with those that were there."""

from __future__ import annotations

import asyncio

from paimon_features.errors import OnlineStoreError, PaimonFeaturesError
from paimon_features.models import ModelStates
from paimon_features.online.models import ModelPlace
from paimon_features.redaction import redact
from paimon_features.serving.http.app import FeatureApp
from paimon_features.serving.http.logs import LOGGER
from paimon_features.serving.http.reload import yielding_often
from paimon_features.serving.http.served_models import LoadedModel, LoadedVersion, ModelSet
from paimon_features.serving.prediction.network import OnnxNetwork

POLL_S = 1.0


class ModelReloader:
    """Keeps an app up to date with the models of a place.

    A model's states are replaced as a whole: if one of its versions cannot be loaded, the model
    stays as it was, and ``GET /models`` says why.
    """

    def __init__(self, place: ModelPlace, *, threads: int = 1) -> None:
        self._place = place
        self._threads = threads
        self._lock = asyncio.Lock()

    def load(self, before: ModelSet) -> ModelSet:
        """The models that are published now; never raises. Takes as long as loading takes."""
        try:
            stamp = self._place.stamp()
            if not stamp:
                return ModelSet()
            index = self._place.read()
        except PaimonFeaturesError as error:
            # the store is away, or the index is damaged: what is served stays
            return ModelSet(before.models, before.stamp, redact(str(error)))
        models: dict[str, LoadedModel] = {}
        for name, states in sorted(index.models.items()):
            known = before.models.get(name)
            try:
                models[name] = self._model(states, known)
            except OnlineStoreError as error:
                return ModelSet(before.models, before.stamp, redact(str(error)))
            except (PaimonFeaturesError, MemoryError) as error:
                problem = redact(str(error) or "there is not enough memory for its networks")
                LOGGER.error("model %s is not loaded: %s", name, problem)
                # of a model that was never here, its states say that there should be one
                models[name] = (known or LoadedModel(states, {})).with_problem(problem)
        return ModelSet(models, stamp)

    def _model(self, states: ModelStates, known: LoadedModel | None) -> LoadedModel:
        if known is not None and known.states == states and known.problem is None:
            return known
        loaded = {} if known is None else {
            each.state.manifest: each for each in known.versions.values()
        }  # fmt: skip
        versions: dict[int, LoadedVersion] = {}
        for state in (*states.serving, *states.shadows):
            before = loaded.get(state.manifest)
            network = (
                OnnxNetwork(self._place.load(states.name, state), threads=self._threads)
                if before is None
                else before.network
            )
            versions[state.version] = LoadedVersion(state, network)
        return LoadedModel(states, versions)

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
    served = [f"{each.version} ({each.state})" for each in (*states.serving, *states.shadows)]
    return ", ".join(served) or "none served"
