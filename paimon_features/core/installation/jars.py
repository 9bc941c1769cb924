"""Downloads the Flink jars in ``jars.lock.toml`` (coordinates and SHA-256) to the user's cache.

A jar is taken from the first location that has it with the expected hash: the cache, the local
Maven repository (``~/.m2``), the remote one. It is moved to the cache by a rename, so a cached
file is always complete, an interrupted run resumes with the missing jars, and a second run needs
no network.

>>> [jar.file_name for jar in locked_jars(["kafka"])]
['flink-sql-connector-kafka-5.0.0-2.2.jar']
"""

from __future__ import annotations

import os
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path

from paimon_features.core.errors import MissingExtraError, SetupError, unknown_name
from paimon_features.core.installation.cache import VerifiedFolder, cache_root, sha256_of

DEFAULT_GROUPS = ("flink", "kafka", "parquet")
MIRROR_VARIABLE = "PAIMON_FEATURES_MAVEN_MIRROR"
_ATTEMPTS = 3
_TIMEOUT_S = 60
_SCRATCH = ".fetch-"

DownloadProgress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""``progress(file name, size in bytes)`` returns a context manager whose value is called with the
number of bytes of each chunk."""


@dataclass(frozen=True, slots=True)
class Jar:
    """One entry of the lock file; ``coordinate`` is ``group:artifact:version[:classifier]``."""

    group: str
    coordinate: str
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{'-'.join(self.coordinate.split(':')[1:])}.jar"

    @property
    def maven_path(self) -> Path:
        """The path of the jar relative to a Maven repository."""
        organisation, artifact, version, *_ = self.coordinate.split(":")
        return Path(*organisation.split("."), artifact, version, self.file_name)


@dataclass(frozen=True, slots=True)
class FetchedJar:
    """A verified jar in the cache, and where this call found it.

    ``origin`` is ``"cache"``, ``"~/.m2"`` or ``"download"``.
    """

    jar: Jar
    path: Path
    origin: str

    @property
    def size_bytes(self) -> int:
        return self.path.stat().st_size


@dataclass(frozen=True, slots=True)
class CheckpointStore:
    """Where checkpoints are on S3: ``options`` of Flink, without keys, and environment
    ``variables`` of its processes, with them."""

    address: str
    options: Mapping[str, str]
    variables: Mapping[str, str] = field(repr=False)


def locked_jars(groups: Collection[str] | None = None) -> list[Jar]:
    """Return the jars of these groups (of all groups if None), in the order of the lock file.

    Raises
    ------
    SetupError
        If the lock file does not contain a group.
    """
    text = (
        resources.files("paimon_features.core.installation")
        .joinpath("jars.lock.toml")
        .read_text("utf-8")
    )
    jars = [Jar(**entry) for entry in tomllib.loads(text)["jar"]]
    all_groups = list(dict.fromkeys(jar.group for jar in jars))
    unknown = sorted(set(groups or ()) - set(all_groups))
    if unknown:
        raise SetupError(unknown_name("jar group", unknown[0], all_groups))
    return [jar for jar in jars if groups is None or jar.group in groups]


def jar_folder(cache_dir: Path | None = None) -> Path:
    """Return the folder of verified jars; by default ``jars`` in the user's cache."""
    return cache_dir if cache_dir is not None else cache_root() / "jars"


def missing_jars(groups: Collection[str] = DEFAULT_GROUPS) -> list[Jar]:
    """Return the jars of these groups that are not in the cache with the expected hash; no
    network."""
    folder = VerifiedFolder(jar_folder())
    return [jar for jar in locked_jars(groups) if not folder.contains(jar.file_name, jar.sha256)]


def fetch_jars(
    groups: Collection[str] = DEFAULT_GROUPS,
    cache_dir: Path | None = None,
    mirror: str | None = None,
    progress: DownloadProgress | None = None,
) -> list[Path]:
    """Download the jars of these groups to the cache unless present; return their paths.

    Idempotent, and safe to run in several processes at once: one waits for the other.
    ``mirror`` is the URL of a Maven repository; the default is the environment variable
    ``PAIMON_FEATURES_MAVEN_MIRROR``, else the central repository.

    Raises
    ------
    SetupError
        If a group is unknown, or a jar cannot be downloaded or has another hash. Jars that were
        already downloaded are kept.
    MissingExtraError
        If a download is necessary and the extra ``flink`` is not installed.
    """
    return [jar.path for jar in fetch_jar_details(groups, cache_dir, mirror, progress)]


def fetch_jar_details(
    groups: Collection[str] = DEFAULT_GROUPS,
    cache_dir: Path | None = None,
    mirror: str | None = None,
    progress: DownloadProgress | None = None,
) -> list[FetchedJar]:
    """Like ``fetch_jars``, but return the origin of each jar as well."""
    jars = locked_jars(groups)
    folder = VerifiedFolder(jar_folder(cache_dir))
    if all(folder.contains(jar.file_name, jar.sha256) for jar in jars):
        return [FetchedJar(jar, folder.folder / jar.file_name, "cache") for jar in jars]
    mirror = mirror or os.environ.get(MIRROR_VARIABLE) or None
    try:
        with folder.locked():
            for leftover in folder.folder.glob(f"{_SCRATCH}*"):
                # left by a killed process: we hold the lock, so it is not in use
                shutil.rmtree(leftover, ignore_errors=True)
            return [_bring(jar, folder, mirror, progress) for jar in jars]
    except OSError as error:
        raise SetupError(
            f"the jar cache {folder.folder} is not writable: {error}; "
            "set PAIMON_FEATURES_CACHE to another folder"
        ) from error


CHECKPOINT_GROUP = "s3-checkpoints"
"""The jars of Flink's own file system for ``s3://``, which must be a plugin."""
_needed: set[str] = set()
_checkpoint_store: CheckpointStore | None = None


def need_jars(warehouse: str) -> None:
    """Note that the JVMs that this process starts from now on read a warehouse.

    >>> jars_for("s3://bucket/lake")
    ('s3',)
    """
    _needed.update(jars_for(warehouse))


def jars_for(warehouse: str) -> tuple[str, ...]:
    """Return the groups of jars for a warehouse's address, in addition to those of every job."""
    return ("s3",) if warehouse.partition("://")[0] in ("s3", "s3a") else ()


def need_checkpoint_store(store: CheckpointStore) -> None:
    """Note that the JVMs that this process starts from now on keep checkpoints on S3."""
    global _checkpoint_store
    _checkpoint_store = store


def checkpoint_store() -> CheckpointStore | None:
    """Return the store of checkpoints that was noted."""
    return _checkpoint_store


def needed_groups(groups: Iterable[str]) -> tuple[str, ...]:
    """Return these groups, and those that were noted."""
    return (*groups, *sorted(_needed))


def class_path(groups: Collection[str] = ("flink",)) -> str:
    """Return the jars of these groups as a class path for ``HADOOP_CLASSPATH``; download if
    missing.

    Flink adds that variable to the system class path of its JVMs, where catalogs and Hadoop
    must be, both in local mode and on a cluster. Set it before the first gateway starts.
    """
    return os.pathsep.join(str(path) for path in fetch_jars(groups))


def _bring(
    jar: Jar, folder: VerifiedFolder, mirror: str | None, progress: DownloadProgress | None
) -> FetchedJar:
    target = folder.folder / jar.file_name
    if folder.contains(jar.file_name, jar.sha256):
        return FetchedJar(jar, target, "cache")
    # the temporary folder is next to the target, so that the rename stays in one file system
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=folder.folder) as scratch:
        draft = Path(scratch) / jar.file_name
        if _copy_from(_local_repositories(), jar, draft):
            origin = "~/.m2"
        else:
            _download(jar, Path(scratch), draft, mirror, progress)
            origin = "download"
        draft.replace(target)
    folder.note(jar.file_name, jar.sha256)
    return FetchedJar(jar, target, origin)


def _local_repositories() -> Iterable[Path]:
    named = os.environ.get("M2_REPO")
    return [Path(named)] if named else [Path.home() / ".m2" / "repository"]


def _copy_from(repositories: Iterable[Path], jar: Jar, draft: Path) -> bool:
    """Copy the jar from the first local repository that has it with the expected hash."""
    for repository in repositories:
        source = repository / jar.maven_path
        if source.is_file():
            shutil.copyfile(source, draft)
            # hash the copy, not the source, which may change in the meantime
            if sha256_of(draft) == jar.sha256:
                return True
            draft.unlink()
    return False


def _download(
    jar: Jar, scratch: Path, draft: Path, mirror: str | None, progress: DownloadProgress | None
) -> None:
    """Download the jar to ``draft`` and verify its hash; a failure is retried twice."""
    source = "Maven Central" if mirror is None else f"the mirror {mirror}"
    failures: list[str] = []
    for attempt in range(_ATTEMPTS):
        # jgo trusts every file in its folder, even a partial download: use a new one each time
        repository = scratch / f"try-{attempt}"
        try:
            path = _resolve(jar, repository, mirror, progress)
        except (OSError, RuntimeError) as error:
            failures.append(f"{type(error).__name__}: {error}")
            continue
        got = sha256_of(path)
        if got == jar.sha256:
            path.replace(draft)
            return
        failures.append(f"expected sha256 {jar.sha256}, got {got} ({path.stat().st_size:,} bytes)")
        shutil.rmtree(repository)
    raise SetupError(
        f"{jar.coordinate} could not be downloaded from {source} in {_ATTEMPTS} attempts; "
        f"last error: {failures[-1]}. Set a mirror with {MIRROR_VARIABLE}; a copy with the correct "
        f"hash at ~/.m2/repository/{jar.maven_path} is used as well"
    )


def _resolve(
    jar: Jar, repository: Path, mirror: str | None, progress: DownloadProgress | None
) -> Path:
    """Download with jgo into an empty local repository, with the proxies and certificates of the
    environment, as ``requests`` reads them."""
    try:
        from jgo.maven import MavenContext, PythonResolver
    except ImportError as error:
        raise MissingExtraError.of("jgo", "flink", f"fetching {jar.coordinate}") from error
    context = MavenContext(
        resolver=PythonResolver(progress_callback=progress),
        repo_cache=repository,
        local_repos=[],
        remote_repos=None if mirror is None else {"central": mirror.rstrip("/")},
        timeout=_TIMEOUT_S,
    )
    path: Path = context.create_dependency(jar.coordinate).artifact.resolve()
    return path
