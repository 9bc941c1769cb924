"""``materialize``: bring tiles to the online store, once or all the time."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict

import click
from rich.console import Console

from paimon_features.cli.options import JSON, PROJECT
from paimon_features.definitions import CompiledView
from paimon_features.errors import ConfigurationError, OnlineStoreError, PaimonFeaturesError
from paimon_features.materialize import Materializer, Progress
from paimon_features.online.store import open_store
from paimon_features.project import Project

SHOW_EVERY_S = 2.0


@click.command()
@click.argument("views", nargs=-1, metavar="[VIEW]...")
@click.option("--follow/--once", default=False, help="Keep going; default: once.")
@click.option("--rebuild", is_flag=True, help="Read everything anew, then switch in one step.")
@click.option("--shard", default="0/1", show_default=True, help="i/n: only buckets b, b % n = i.")
@click.option("--poll-ms", default=200, show_default=True, help="Pause when there is nothing new.")
@PROJECT
@JSON
def materialize(
    views: tuple[str, ...],
    follow: bool,
    rebuild: bool,
    shard: str,
    poll_ms: int,
    path: str,
    as_json: bool,
) -> None:
    """Bring the tiles of VIEWs (default: all) to the online store.

    Repeating it is harmless, also after a crash: each tile counts once. A store that was
    emptied, or holds another generation, is built anew, while readers keep what there is.

    \b
    paimon-features materialize                        # catch up once
    paimon-features materialize spend --follow         # and stay there; end with Ctrl-C
    paimon-features materialize --follow --shard 0/4   # one of four processes
    paimon-features materialize spend --rebuild        # from the table, whatever the store holds

    With --json one line per step, else a line per view whenever something was applied. Exit
    code 1 when --once could not catch up, because other shards or processes have to.
    """
    project = Project.open(path)
    names = views or tuple(project.definitions.views)
    show = _Printer(as_json)
    workers = [
        _materializer(project, project.view(name), _shard(shard), show.progress) for name in names
    ]
    if follow:
        _follow(workers, rebuild, poll_ms, show)
        return
    results = [w.rebuild() if rebuild else w.run_once() for w in workers]
    for worker, result in zip(workers, results, strict=True):
        worker.close()
        show.result(result)
    if not all(result.caught_up for result in results):
        raise SystemExit(1)


def _materializer(
    project: Project,
    view: CompiledView,
    shard: tuple[int, int],
    progress: Callable[[Progress], None],
) -> Materializer:
    return Materializer(
        project.lake,
        project.name,
        view,
        lambda: project.generation(view),
        open_store(project.config.online_url),
        shard=shard,
        progress=progress,
    )


def _shard(text: str) -> tuple[int, int]:
    index, slash, count = text.partition("/")
    if not (slash and index.isdigit() and count.isdigit() and int(index) < int(count)):
        raise ConfigurationError(f"--shard {text}: expected i/n with 0 <= i < n, for example 0/4")
    return int(index), int(count)


def _follow(workers: list[Materializer], rebuild: bool, poll_ms: int, show: _Printer) -> None:
    """One thread per view, until Ctrl-C or a termination signal, or until one of them fails."""
    stop = threading.Event()
    failures: list[PaimonFeaturesError] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())

    def work(worker: Materializer) -> None:
        try:
            if rebuild:
                worker.request_rebuild()
            worker.follow(poll_ms, stop, show.trouble)
        except PaimonFeaturesError as error:
            error.add_note(f"while materializing feature view {worker.view.name!r}")
            failures.append(error)
            stop.set()

    threads = [threading.Thread(target=work, args=(w,), name=w.view.name) for w in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        # a signal may be delivered to another thread: Python acts on it when this one wakes up
        while thread.is_alive():
            thread.join(0.2)
    if failures:
        raise failures[0]


class _Printer:
    """Prints progress, not too often; safe to call from several threads."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._console = Console(stderr=as_json, highlight=False)
        self._lock = threading.Lock()
        self._shown: dict[str, float] = {}

    def progress(self, progress: Progress) -> None:
        with self._lock:
            now = time.monotonic()
            done = progress.lag_snapshots == 0
            if not done and now - self._shown.get(progress.view, now - SHOW_EVERY_S) < SHOW_EVERY_S:
                return
            self._shown[progress.view] = now
            self._print(progress)

    def result(self, result: Progress) -> None:
        """The end of ``--once``."""
        with self._lock:
            if self._as_json:
                click.echo(json.dumps(_document(result)))
            elif result.caught_up:
                at = result.applied_snapshot
                self._console.print(f"{result.view}: up to date at snapshot {at}")
            else:
                self._print(result)

    def trouble(self, error: OnlineStoreError) -> None:
        """A store that does not answer, and is tried again."""
        with self._lock:
            click.echo(f"{error}; trying again", err=True)

    def _print(self, p: Progress) -> None:
        if self._as_json:
            click.echo(json.dumps(_document(p)))
            return
        work = f"{p.tiles:,} tiles, {p.records:,} records, {p.tiles_per_s:,.0f} tiles/s"
        if p.rebuilding is not None:
            self._console.print(f"{p.view}: building anew ({p.rebuilding}): {work}")
        elif p.held:
            self._console.print(f"{p.view}: waiting for {', '.join(p.held)}")
        else:
            self._console.print(
                f"{p.view}: snapshot {p.applied_snapshot} of {p.latest_snapshot}, "
                f"{p.lag_snapshots} behind; {work}"
            )


def _document(progress: Progress) -> dict[str, object]:
    return {
        **asdict(progress),
        "lag_snapshots": progress.lag_snapshots,
        "tiles_per_s": round(progress.tiles_per_s),
        "caught_up": progress.caught_up,
    }
