"""Writes the archive of classes with which the JVMs of local jobs start faster.

It has the classes that the JVM of a process has loaded at its exit, so a process of its own runs
the jobs of a first day with a project.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from filelock import FileLock

from paimon_features.core.errors import JobError
from paimon_features.core.installation.java import find_java
from paimon_features.flink.class_archive import (
    BASE,
    DESTINATION,
    FLINK,
    QUIET,
    SIZES,
    archive_folder,
    is_complete,
    note_sizes,
)
from paimon_features.flink.gateway import JAR_GROUPS, flink_home, start_gateway

FIRST_VERSION = 17
"""The first supported Java that adds the classes of jars to its own archive."""
KEPT_ARCHIVES = 3
"""Other installations (virtual environments, Javas) have an archive of their own, 160 MB each."""
WRITE_TIMEOUT_S = 600.0


def write_archive() -> Path | None:
    """Run small jobs in a process of its own, and keep the classes that its JVM has loaded.

    Takes 20 to 30 s of processor time, and nothing if the archive exists. Return its folder, or
    None if Java is too old for archives.

    Raises
    ------
    JobError
        If the jobs failed, or Java wrote no archive.
    SetupError
        If there is no Java, or a jar cannot be fetched.
    """
    java = find_java()
    if java.version < FIRST_VERSION:
        return None
    folder = archive_folder(java.home, flink_home(), JAR_GROUPS)
    if is_complete(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = tempfile.TemporaryDirectory(prefix="draft-", dir=folder.parent)
    with FileLock(folder.parent / ".lock"), scratch as place:
        if is_complete(folder):  # another process was faster
            return folder
        draft = Path(place) / "archive"
        draft.mkdir()
        base = [f"-XX:SharedArchiveFile={draft / BASE}", *QUIET.split()]
        _run([str(java.home / "bin" / "java"), "-Xshare:dump", *base], draft / BASE)
        _run([sys.executable, "-m", __name__, place, str(draft)], draft / FLINK)
        note_sizes(draft)
        shutil.rmtree(folder, ignore_errors=True)  # one that is not complete
        draft.rename(folder)
        _remove_old(folder)
    return folder


def _run(command: list[str], written: Path) -> None:
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=WRITE_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        raise JobError(f"Java wrote no class archive within {WRITE_TIMEOUT_S:g} s") from error
    if done.returncode or not written.is_file():
        raise JobError(
            f"Java wrote no class archive (exit code {done.returncode}): "
            f"{(done.stderr or done.stdout).strip()[-500:] or 'no message'}; jobs run without it, "
            "and start more slowly"
        )


def _remove_old(newest: Path) -> None:
    archives = [path for path in newest.parent.glob(f"*/{SIZES}") if path.parent != newest]
    archives.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for path in archives[KEPT_ARCHIVES - 1 :]:
        shutil.rmtree(path.parent, ignore_errors=True)


def _run_jobs(folder: Path, draft: Path) -> None:
    """Files into events, a batch and a stream into tiles: what a first day with a project runs."""
    import paimon_features as pf
    from paimon_features.core.configuration.project_config import FlinkConfig
    from paimon_features.definitions import Definitions
    from paimon_features.ingest.flink.files import ingest_files
    from paimon_features.lake import Lake
    from paimon_features.project.planning.plan import apply_plan
    from paimon_features.tiles.flink.submission import backfill, submit
    from paimon_features.tiles.jobs.target import TileTarget

    source = pf.EventSource(
        "visits",
        schema={"user_id": pf.Int64, "page": pf.String, "paid": pf.Float64, "at_ms": pf.Int64},
        event_time="at_ms",
    )
    view = pf.FeatureView(
        "visits",
        source=source,
        entity=pf.Entity("user", keys={"user_id": pf.Int64}),
        where="paid >= 0",
        features=[
            pf.Count(windows=["1d"]),
            pf.Sum("paid", scale=2, windows=["1d"]),
            pf.Max("paid", windows=["1d"]),
            pf.LastN("paid", n=3, windows=["1d"]),
            pf.ApproxCountDistinct("page", windows=["1d"]),
        ],
    )
    rows = [(user, f"p{user % 3}", user / 4, 1_700_000_000_000 + user) for user in range(100)]
    texts = [",".join(map(str, row)) for row in [("user_id", "page", "paid", "at_ms"), *rows]]
    (folder / "visits.csv").write_text("\n".join(texts) + "\n", encoding="utf-8")
    lake = Lake.open(folder / "lake", "features")
    apply_plan(lake, Definitions.of([view]), now_ms=0)
    state = folder / "state"
    os.environ[DESTINATION] = str(draft)
    gateway = start_gateway(state, short_lived=True)
    ingest_files(lake, source, [folder / "visits.csv"], state_dir=state)
    target = TileTarget("archive", lake, view.compiled, 1, state, FlinkConfig(parallelism=1))
    backfill(target)
    submit(target, bounded=True)
    gateway.stop(WRITE_TIMEOUT_S)


if __name__ == "__main__":
    _run_jobs(*map(Path, sys.argv[1:]))
