"""Published models, where serving hosts read them: in the online store, or next to the bundle file.

::

    pf:{shop}#models               the index: the states of each model's versions
    pf:{shop}#models-digest        its digest, by which a server notices a new one
    pf:{shop}#model-file/<sha256>  a manifest or network, by the SHA-256 of its content

    shop.bundle.models/index.json, shop.bundle.models/<sha256>     the same as files

Files are written before the index that names them, and the index is one atomic write: a reader
finds all files of the index that it has read, or a newer index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock

from paimon_features.core.configuration.project_config import ProjectConfig
from paimon_features.core.documents.published_document import DocumentKind
from paimon_features.core.documents.unambiguous_json import parse_unambiguous_json
from paimon_features.core.errors import ConfigurationError, ModelError, OnlineStoreError
from paimon_features.models import (
    MAX_MANIFEST_BYTES,
    MAX_NETWORK_BYTES,
    ModelFile,
    ModelManifest,
    ModelStates,
    VersionState,
    check_network,
    sha256_of,
)
from paimon_features.models.manifest import verified
from paimon_features.online.store.documents import (
    ONLINE,
    DocumentPlace,
    read_file,
    write_file,
)
from paimon_features.online.store.store import OnlineStore, Write

AGAIN = "'paimon-features models promote --publish'"
KIND = DocumentKind("paimon_features_models", "index of models", 1, 16 << 20, AGAIN, ModelError)
PUBLISHED = ("production", "challenger", "shadow")
"""The states whose versions serving hosts load."""
_TRIES = 5
_LOCK_TIMEOUT_S = 60


@dataclass(frozen=True)
class PublishedModels:
    """The index: the states of the versions that are served, and only of these, by model."""

    project: str
    published_at_ms: int = 0
    models: Mapping[str, ModelStates] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return the bytes of the index, equal for equal content."""
        models = {name: states.to_document() for name, states in sorted(self.models.items())}
        content = {"project": self.project, "published_at_ms": self.published_at_ms}
        return KIND.to_bytes({**content, "models": models})

    @classmethod
    def from_bytes(cls, data: bytes, where: str = "the index of models") -> PublishedModels:
        """Read an index.

        Raises
        ------
        ModelError
            For bytes that are none, damaged, too many, or of a later format.
        """
        body = KIND.body_of(data, where)
        try:
            content = parse_unambiguous_json(body)
            models = {
                str(name): ModelStates.from_document(document)
                for name, document in content["models"].items()
            }
            if any(name != states.name for name, states in models.items()):
                raise ModelError("a model has another name than its states")
            return cls(str(content["project"]), int(content["published_at_ms"]), models)
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            raise ModelError(
                f"{where} is damaged ({type(error).__name__}: {str(error)[:200]}); publish it "
                f"again: {AGAIN}"
            ) from error

    def files(self) -> set[str]:
        """Return the SHA-256 of the manifests of all versions."""
        return {version.manifest for states in self.models.values() for version in states.versions}


@dataclass(frozen=True)
class ServedModel:
    """A version as a server loads it: verified by its hashes."""

    manifest: ModelManifest
    network: bytes = field(repr=False)


class ModelPlace:
    """Where the models of a project are published: ``online``, or the path of a folder.

    ``open_store`` opens the online store; it is called at the first use of one.
    """

    def __init__(self, project: str, where: str, open_store: Callable[[], OnlineStore]) -> None:
        self.project = project
        self.folder = None if where == ONLINE else Path(where)
        title = f"the models of project {project!r} in the online store"
        title = title if self.folder is None else f"the models in {where}"
        index = ONLINE if self.folder is None else str(self.folder / "index.json")
        self._index = DocumentPlace(KIND, project, "models", index, title, open_store)

    def __str__(self) -> str:
        return str(self._index)

    @property
    def is_online(self) -> bool:
        """Whether they are in the online store."""
        return self.folder is None

    def read(self) -> PublishedModels:
        """Read the index; empty where nothing was published.

        Raises
        ------
        ModelError
            If it is damaged, of another project, or of a later format.
        OnlineStoreError
            If the store is unavailable.
        """
        return self._parsed(self._index.read())

    def stamp(self) -> str:
        """Return what differs after another index was published; empty without one."""
        return self._index.stamp()

    def load(self, model: str, state: VersionState) -> ServedModel:
        """Load a version of the index: its manifest and network, verified.

        Raises
        ------
        ModelError
            If a file is missing, damaged, of another version, or must not be loaded.
        OnlineStoreError
            If the store is unavailable.
        """
        title = f"model {model!r}, version {state.version}"
        data = self._file(state.manifest, MAX_MANIFEST_BYTES, f"{title}: its manifest")
        if data is None or sha256_of(data) != state.manifest:
            problem = "is missing" if data is None else "does not match its SHA-256"
            raise ModelError(f"{title}: its manifest {problem} in {self}; publish it: {AGAIN}")
        manifest = ModelManifest.from_bytes(data, f"{title}: its manifest")
        if (manifest.name, manifest.version) != (model, state.version):
            raise ModelError(f"{title}: its manifest is that of {manifest}")
        network = self.load_file(manifest.network, what=f"{title}: its network")
        try:
            check_network(network, manifest.signature)
        except ModelError as error:
            raise ModelError(f"{title}: {error}") from error
        return ServedModel(manifest, network)

    def load_file(
        self, file: ModelFile, most: int = MAX_NETWORK_BYTES, what: str = "a file of a model"
    ) -> bytes:
        """Return the content of a file, verified; raises as ``load``."""
        if file.bytes > most:
            raise ModelError(f"{what} has {file.bytes:,} bytes; expected at most {most:,}")
        data = self._file(file.sha256, file.bytes, what)
        return verified(data, file, f"{what}, in {self},", f"publish it again: {AGAIN}")

    def publish(
        self, index: PublishedModels, files: Mapping[str, Callable[[], bytes]]
    ) -> PublishedModels:
        """Replace the index, after the files that it needs; ``files`` reads them by SHA-256.

        A model that is published already with a later ``serial`` stays: of two who publish at once,
        the one that read the lake earlier does not undo the other. Files that neither the new nor
        the previous index needs are removed. Returns the index that is there now.

        Raises
        ------
        OnlineStoreError, ConfigurationError
            If the store is unavailable or others publish at the same time; a file that cannot
            be written.
        """
        with self._alone():
            self._write_missing(files)
            for _ in range(_TRIES):
                before = self._index.read()
                with suppress(ModelError):  # a damaged index is replaced
                    index = _newest(index, self._parsed(before))
                if self._index.replace(before, index.to_bytes()):
                    self._remove_unused(index, before)
                    # another publisher may have removed what was not in an index yet
                    self._write_missing(files)
                    return index
        raise OnlineStoreError(f"{self}: others keep publishing them; try again")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Exclude others from the folder: its index has no compare-and-set."""
        if self.folder is None:
            yield
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(self.folder / ".lock", timeout=_LOCK_TIMEOUT_S):
                yield
        except OSError as error:  # Timeout is one, too
            raise ConfigurationError(f"{self} cannot be written: {error}") from error

    def _parsed(self, data: bytes | None) -> PublishedModels:
        if data is None:
            return PublishedModels(self.project)
        published = PublishedModels.from_bytes(data, str(self))
        if published.project != self.project:
            raise ModelError(f"{self} are of project {published.project!r}")
        return published

    def _key(self, digest: str) -> bytes:
        return self._index.key(f"model-file/{digest}")

    def _file(self, digest: str, most: int, what: str) -> bytes | None:
        if self.folder is None:
            return self._index.store.get_many([self._key(digest)])[0]
        # the name is 64 hexadecimal digits: manifests and states are checked
        return read_file(self.folder / digest, most, what, ModelError)

    def _is_whole(self, digest: str) -> bool:
        try:
            data = self._file(digest, MAX_NETWORK_BYTES, "a file of a model")
        except ModelError:
            return False
        return data is not None and sha256_of(data) == digest

    def _write_missing(self, files: Mapping[str, Callable[[], bytes]]) -> None:
        for digest, read in files.items():
            if not self._is_whole(digest):  # a damaged one is replaced
                self._write(digest, read())

    def _write(self, digest: str, data: bytes) -> None:
        if self.folder is not None:
            write_file(self.folder / digest, data, f"{self}: {digest}")
            return
        key = self._key(digest)
        before = self._index.store.get_many([key])[0]
        # a damaged one is replaced in one step: another publisher writes the same content
        self._index.store.compare_and_set_many([Write(key, before, data)])

    def _remove_unused(self, index: PublishedModels, before: bytes | None) -> None:
        used = self._used(index)
        with suppress(ModelError):
            used |= self._used(self._parsed(before))
        if self.folder is not None:
            for path in self.folder.iterdir():
                if len(path.name) == 64 and path.name not in used:
                    path.unlink(missing_ok=True)
            return
        prefix = self._key("")
        for page in self._index.store.scan(prefix):
            unused = [
                key for key in page if key[len(prefix) :].decode("ascii", "replace") not in used
            ]
            if unused:
                self._index.store.delete(unused)

    def _used(self, index: PublishedModels) -> set[str]:
        """Return the SHA-256 of the manifests of an index and of the networks that they name."""
        used = index.files()
        for digest in index.files():
            data = self._file(digest, MAX_MANIFEST_BYTES, "a manifest")
            if data is not None:
                with suppress(ModelError):
                    used.add(ModelManifest.from_bytes(data).network.sha256)
        return used


def _newest(index: PublishedModels, other: PublishedModels) -> PublishedModels:
    """Return ``index`` with the models that ``other`` has in a later state."""
    models = dict(index.models)
    for name, states in other.models.items():
        if name in models and states.serial > models[name].serial:
            models[name] = states
    return PublishedModels(index.project, index.published_at_ms, models)


def model_place_of(config: ProjectConfig, open_store: Callable[[], OnlineStore]) -> ModelPlace:
    """Return where the models of a project are published by ``[serve] bundle``: with the bundle.

    Where that is not set, the folder ``models`` of the state folder.
    """
    where = config.serve.bundle
    if where is None:
        where = str(config.state_dir / "models")
    elif where != ONLINE:
        where += ".models"
    return ModelPlace(config.name, where, open_store)
