"""The Flink jars: by coordinate and sha256 from ``jars.lock.toml`` into the user's cache.

A jar is taken from the first place that has it with the right hash: the cache, the local Maven
repository (``~/.m2``), the remote one. It enters the cache by a rename, so a file in the cache
is whole or absent, an interrupted fetch goes on with the jars that are missing, and a second
run needs no network.

>>> [jar.file_name for jar in locked_jars(["kafka"])]
['flink-sql-connector-kafka-5.0.0-2.2.jar']
"""

from __future__ import annotations

import os
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from paimon_features.errors import MissingExtraError, SetupError
from paimon_features.setup.cache import VerifiedFolder, cache_root, sha256_of

DEFAULT_GROUPS = ("flink", "kafka", "parquet")
MIRROR_VARIABLE = "PAIMON_FEATURES_MAVEN_MIRROR"
_ATTEMPTS = 3
_TIMEOUT_S = 60
_SCRATCH = ".fetch-"

Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""``progress(file name, size in bytes)`` gives a context with a function to call with the
number of bytes that each step brought."""


@dataclass(frozen=True, slots=True)
class Jar:
    """One line of the lock file."""

    group: str
    coordinate: str
    sha256: str

    @property
    def file_name(self) -> str:
        _, artifact, version = self.coordinate.split(":")
        return f"{artifact}-{version}.jar"

    @property
    def maven_path(self) -> Path:
        """Where a Maven repository keeps it, relative to the repository."""
        organisation, artifact, version = self.coordinate.split(":")
        return Path(*organisation.split("."), artifact, version, self.file_name)


@dataclass(frozen=True, slots=True)
class FetchedJar:
    """A verified jar of the cache and where it came from in this call.

    ``origin`` is ``"cache"``, ``"~/.m2"`` or ``"download"``.
    """

    jar: Jar
    path: Path
    origin: str

    @property
    def size_bytes(self) -> int:
        return self.path.stat().st_size


def locked_jars(groups: Collection[str] | None = None) -> list[Jar]:
    """The jars of these groups (all where it is None), in the order of the lock file.

    Raises
    ------
    SetupError
        For a group that the lock file does not have.
    """
    text = resources.files("paimon_features.setup").joinpath("jars.lock.toml").read_text("utf-8")
    jars = [Jar(**entry) for entry in tomllib.loads(text)["jar"]]
    known = list(dict.fromkeys(jar.group for jar in jars))
    unknown = sorted(set(groups or ()) - set(known))
    if unknown:
        raise SetupError(f"there is no jar group {unknown[0]!r}; there is: {', '.join(known)}")
    return [jar for jar in jars if groups is None or jar.group in groups]


def jar_folder(cache_dir: Path | None = None) -> Path:
    """Where the verified jars are: ``jars`` in the user's cache, unless named."""
    return cache_dir if cache_dir is not None else cache_root() / "jars"


def missing_jars(groups: Collection[str] = DEFAULT_GROUPS) -> list[Jar]:
    """The jars of these groups that are not in the cache with the right hash. No network."""
    folder = VerifiedFolder(jar_folder())
    return [jar for jar in locked_jars(groups) if not folder.holds(jar.file_name, jar.sha256)]


def fetch_jars(
    groups: Collection[str] = DEFAULT_GROUPS,
    cache_dir: Path | None = None,
    mirror: str | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Make sure that the jars of these groups are in the cache; return their paths.

    Harmless to repeat, and to run in two processes at once: one waits for the other.
    ``mirror`` is the address of a Maven repository; by default that of the environment
    variable ``PAIMON_FEATURES_MAVEN_MIRROR``, else the central one.

    Raises
    ------
    SetupError
        For an unknown group, or a jar that cannot be had or has another hash. The jars that
        were already fetched stay.
    MissingExtraError
        When something has to be downloaded and the extra ``flink`` is not installed.
    """
    return [jar.path for jar in fetch_jar_details(groups, cache_dir, mirror, progress)]


def fetch_jar_details(
    groups: Collection[str] = DEFAULT_GROUPS,
    cache_dir: Path | None = None,
    mirror: str | None = None,
    progress: Progress | None = None,
) -> list[FetchedJar]:
    """``fetch_jars``, with where each jar came from."""
    jars = locked_jars(groups)
    folder = VerifiedFolder(jar_folder(cache_dir))
    if all(folder.holds(jar.file_name, jar.sha256) for jar in jars):
        return [FetchedJar(jar, folder.folder / jar.file_name, "cache") for jar in jars]
    mirror = mirror or os.environ.get(MIRROR_VARIABLE) or None
    try:
        with folder.locked():
            for leftover in folder.folder.glob(f"{_SCRATCH}*"):
                # of a process that was killed: we hold the lock, so nobody works in it
                shutil.rmtree(leftover, ignore_errors=True)
            return [_bring(jar, folder, mirror, progress) for jar in jars]
    except OSError as error:
        raise SetupError(
            f"the jar cache {folder.folder} cannot be written: {error}; "
            "name another folder by PAIMON_FEATURES_CACHE"
        ) from error


def class_path(groups: Collection[str] = ("flink",), cache_dir: Path | None = None) -> str:
    """The jars of these groups as a class path, for ``HADOOP_CLASSPATH``; fetched if missing.

    Flink puts that variable on the system class path of its JVMs, where catalogs and Hadoop
    belong, in local mode and on a cluster alike. Set it before the first gateway starts.
    """
    return os.pathsep.join(str(path) for path in fetch_jars(groups, cache_dir))


def _bring(
    jar: Jar, folder: VerifiedFolder, mirror: str | None, progress: Progress | None
) -> FetchedJar:
    target = folder.folder / jar.file_name
    if folder.holds(jar.file_name, jar.sha256):
        return FetchedJar(jar, target, "cache")
    # the throwaway folder lies beside the target, so that the rename stays in one file system
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
    """Copy the jar from the first local repository that has it with the right hash."""
    for repository in repositories:
        source = repository / jar.maven_path
        if source.is_file():
            shutil.copyfile(source, draft)
            # the copy is hashed, not the source: that one may change under our hands
            if sha256_of(draft) == jar.sha256:
                return True
            draft.unlink()
    return False


def _download(
    jar: Jar, scratch: Path, draft: Path, mirror: str | None, progress: Progress | None
) -> None:
    """Download the jar to ``draft`` and check its hash; a second and third try after a failure."""
    source = "Maven Central" if mirror is None else f"the mirror {mirror}"
    failures: list[str] = []
    for attempt in range(_ATTEMPTS):
        # jgo trusts whatever lies in its folder, half a file of a broken try too: a new one each
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
        f"{jar.coordinate} could not be fetched from {source}, {_ATTEMPTS} times; "
        f"at last: {failures[-1]}. A mirror is named by {MIRROR_VARIABLE}; a copy with the right "
        f"hash at ~/.m2/repository/{jar.maven_path} is taken as well"
    )


def _resolve(jar: Jar, repository: Path, mirror: str | None, progress: Progress | None) -> Path:
    """One download by jgo into an empty local repository; proxies and certificates are those
    of the environment, as ``requests`` reads them."""
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
