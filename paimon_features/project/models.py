"""``project.models``: model versions in the lake, and published for serving hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from paimon_features.core.errors import (
    ConfigurationError,
    DefinitionError,
    PaimonFeaturesError,
    RequestError,
)
from paimon_features.core.times.clock import now_ms
from paimon_features.models import SHARES, ModelManifest, ModelState, ModelStates, VersionNote
from paimon_features.models.mlflow_tracking import History, Tracker
from paimon_features.online.store.published_models import (
    AGAIN,
    PUBLISHED,
    ModelPlace,
    PublishedModels,
    model_place_of,
)

if TYPE_CHECKING:
    from paimon_features.project.context import ProjectContext
    from paimon_features.transformers import FittedVersion


class ProjectModels:
    """The models of a project, by name and version."""

    def __init__(self, project: ProjectContext) -> None:
        self._project = project

    @property
    def place(self) -> ModelPlace:
        """Where serving hosts read them."""
        return model_place_of(self._project.config, lambda: self._project.store)

    def names(self) -> list[str]:
        """Return the names of all models."""
        from paimon_features.models.versions_table import model_names

        return model_names(self._project.lake)

    def states(self, name: str) -> ModelStates:
        """Return the states of all versions; UnknownNameError if there is no such model."""
        from paimon_features.models.versions_table import states_of

        return states_of(self._project.lake, name)

    def manifest(self, name: str, version: int | None = None) -> ModelManifest:
        """Return the manifest of a version, the newest by default.

        Raises
        ------
        UnknownNameError
            If there is no such model or version.
        """
        from paimon_features.models.versions_table import load_manifest

        states = self.states(name)
        number = states.versions[-1].version if version is None else version
        return load_manifest(self._project.lake, name, number)

    def manifests(self, name: str) -> dict[int, ModelManifest]:
        """Return the manifests of all versions of a model, by version, in ascending order."""
        from paimon_features.models.versions_table import load_manifests

        return load_manifests(self._project.lake, name)

    def file(self, manifest: ModelManifest, file: str) -> bytes:
        """Return the content of a file of a version, verified; ModelError if it is damaged."""
        from paimon_features.models.versions_table import load_file

        return load_file(self._project.lake, manifest, file)

    def register(
        self, manifest: ModelManifest, files: Mapping[str, bytes], history: History = ()
    ) -> ModelManifest:
        """Save a version as the next one of its model, a candidate; see ``register_version``.

        ``history`` are losses by batch, for MLflow where one is configured.
        """
        from paimon_features.models.versions_table import register_version

        registered = register_version(self._project.lake, manifest, files, now_ms())
        self._tracker.registered(registered, files.__getitem__, history)
        return registered

    @property
    def _tracker(self) -> Tracker:
        return Tracker(self._project.config)

    def register_fitted(
        self,
        name: str,
        fitted: FittedVersion,
        service: str,
        *,
        transformer: FittedVersion | None = None,
        card: str = "",
    ) -> ModelManifest:
        """Save a fitted model of the iteration runtime as the next version of a model.

        Its features are the outputs of ``service``, in their order, numbers all of them; a fitted
        ``transformer`` takes these, and returns what the model was fitted on. Both become one ONNX
        graph, which serves as any other version does. Logistic regression predicts the probability
        of 1, k-means the closest centroid, as the class of the probability 1, a linear regression
        a value. The pins are those of the fitted version: the table and snapshot that it was saved
        with.

        Raises
        ------
        TransformError
            For another model, or another number of features.
        ConfigurationError
            For a feature that is no number.
        UnknownNameError
            If there is no such service.
        """
        from paimon_features.project.iteration_models import fitted_manifest

        manifest, files = fitted_manifest(self._project, name, fitted, service, transformer, card)
        return self.register(manifest, files)

    def promote(
        self,
        name: str,
        version: int,
        state: ModelState = "production",
        *,
        traffic: int = 0,
        expected_serial: int | None = None,
        publish: bool = True,
        note: VersionNote | None = None,
    ) -> ModelStates:
        """Change the state of a version in one commit, and publish it; see ``ModelStates.changed``.

        ``traffic`` are the slots of a challenger, of 10,000. With ``expected_serial``, nothing is
        changed unless the states have that serial. ``note`` is part of the commit.

        Raises
        ------
        UnknownNameError, RequestError
            If there is no such model or version, it cannot get this state, or the online store
            cannot serve the features that it reads.
        OwnershipError
            If another process changes the model.
        OnlineStoreError, ConfigurationError
            If it cannot be published; what was changed in the lake stays changed.
        """
        if state in PUBLISHED and self._project.config.definitions.is_file():
            self._check_served(name, version, state)
        moment = now_ms()
        share = f", {traffic / SHARES:.2%} of the traffic" if traffic else ""
        return self._changed(
            name,
            f"version {version} -> {state}{share}",
            lambda states: states.changed(version, state, moment, traffic=traffic),
            moment,
            expected_serial,
            publish,
            note,
        )

    def _check_served(self, name: str, version: int, state: ModelState) -> None:
        """Raise RequestError if the online store cannot serve what a version reads."""
        service = self.manifest(name, version).signature.service
        try:
            definitions = self._project.definitions
        except DefinitionError:  # nothing is served by a file that cannot be read
            return
        if service not in definitions.services:
            return  # another project, or an older state of the definitions, has it
        reason = definitions.offline_reason(definitions.services[service])
        if reason is not None:
            raise RequestError(
                f"{name}@{version} cannot be {state}: it reads feature service {service!r}, which "
                f"cannot be served: {reason}"
            )

    def rollback(
        self,
        name: str,
        *,
        expected_serial: int | None = None,
        publish: bool = True,
        note: VersionNote | None = None,
    ) -> ModelStates:
        """Return the previous version to production; see ``promote``."""
        moment = now_ms()
        change = partial(ModelStates.rolled_back, now_ms=moment)
        return self._changed(name, "rollback", change, moment, expected_serial, publish, note)

    def notes(self, name: str) -> list[VersionNote]:
        """Return the notes about all versions, the newest last.

        UnknownNameError for an unknown model.
        """
        from paimon_features.models.versions_table import notes_of

        return notes_of(self._project.lake, name)

    def add_note(self, name: str, note: VersionNote) -> None:
        """Write a note about a version, in one commit; UnknownNameError for an unknown model."""
        from paimon_features.models.versions_table import change_states

        def unchanged(states: ModelStates) -> ModelStates:
            states.of(note.version)  # UnknownNameError
            return states

        change_states(self._project.lake, name, unchanged, now_ms=note.at_ms, note=note)

    def publish(self) -> PublishedModels:
        """Publish the versions in production, challengers and shadows for serving hosts.

        Promotions do it, too. Returns what is published.

        Raises
        ------
        OnlineStoreError, ConfigurationError
            If it cannot be written.
        """
        from paimon_features.models.versions_table import load_file, load_manifests

        lake = self._project.lake
        files: dict[str, Callable[[], bytes]] = {}
        models: dict[str, ModelStates] = {}
        for name in self.names():
            states = self.states(name)
            served = tuple(version for version in states.versions if version.state in PUBLISHED)
            models[name] = replace(states, versions=served)
            manifests = load_manifests(lake, name, [version.version for version in served])
            for version in served:
                manifest = manifests[version.version]
                files[version.manifest] = manifest.to_bytes
                files[manifest.network.sha256] = partial(load_file, lake, manifest, "network.onnx")
        index = PublishedModels(self._project.name, now_ms(), models)
        return self.place.publish(index, files)

    def export(
        self, manifest: ModelManifest, folder: Path, files: Sequence[str] = ()
    ) -> list[Path]:
        """Write a version's files into a folder, with its ``manifest.json``; all by default.

        Raises
        ------
        RequestError
            If a file is there already.
        UnknownNameError
            For a file that the version does not have.
        """
        chosen = list(files or manifest.files)
        contents = {name: self.file(manifest, name) for name in chosen}
        contents["manifest.json"] = manifest.to_bytes()
        existing = next((name for name in contents if (folder / name).exists()), None)
        if existing is not None:
            raise RequestError(f"{folder / existing} exists already; export to another folder")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, data in contents.items():
                (folder / name).write_bytes(data)
        except OSError as error:
            raise ConfigurationError(f"model {manifest} cannot be exported: {error}") from error
        return [folder / name for name in contents]

    def _changed(
        self,
        name: str,
        action: str,
        change: Callable[[ModelStates], ModelStates],
        moment: int,
        expected_serial: int | None,
        publish: bool,
        note: VersionNote | None,
    ) -> ModelStates:
        from paimon_features.models.versions_table import change_states

        with self._project.audited("model", name, {"action": action}) as details:
            after = change_states(
                self._project.lake, name, change, now_ms=moment, expected_serial=expected_serial,
                note=note,
            )  # fmt: skip
            details["serial"] = after.serial
        if publish:
            try:
                self.publish()
            except PaimonFeaturesError as error:
                error.add_note(
                    f"the lake has change {after.serial} of model {name!r}, and serving hosts keep "
                    f"what they have. {AGAIN} publishes it"
                )
                raise
        # last, because it may wait for another server
        self._tracker.promoted(after, lambda version: self.manifest(name, version), self.file)
        return after
