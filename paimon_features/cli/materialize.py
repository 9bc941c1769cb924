"""``materialize``: load tiles into the online store, once or continuously."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict

import click
from rich.console import Console

from paimon_features.cli._names import VIEW_NAME
from paimon_features.cli._options import JSON, POLL, PROJECT
from paimon_features.cli._shared_options import changes_data
from paimon_features.cli._signals import stop_event
from paimon_features.core.errors import (
    ConfigurationError,
    PaimonFeaturesError,
)
from paimon_features.core.process.traces import Tracer, ended_now, open_tracer
from paimon_features.definitions import CompiledView
from paimon_features.online.materialize import MaterializeProgress, Materializer
from paimon_features.online.materialize.follow import RetriedError
from paimon_features.online.materialize.leases import DEFAULT_TTL_MS
from paimon_features.online.materialize.monitor import Monitor
from paimon_features.online.materialize.monitor_server import MonitorServer
from paimon_features.online.store import open_store
from paimon_features.project import Project
from paimon_features.project.republishing import Republisher

SHOW_EVERY_S = 2.0
TROUBLE_EVERY_S = 10.0
"""The same store error is printed again only after this time; numbers in it are ignored."""
REPUBLISH_S = 1.0
"""How often it is checked whether the store has lost what was published to it."""
HELD_FOR_S = DEFAULT_TTL_MS / 1_000 + 2.0
"""How long ``--once`` waits for buckets that another process holds: if it died, they are free by
then."""


@click.command()
@click.argument("views", nargs=-1, metavar="[VIEW]...", shell_complete=VIEW_NAME)
@click.option("--follow/--once", default=False, help="Keep running; default: once.")
@click.option("--rebuild", is_flag=True, help="Read everything again, then switch atomically.")
@click.option("--shard", default="0/1", show_default=True, help="i/n: only buckets b, b % n = i.")
@POLL
@click.option(
    "--listen",
    metavar="[HOST:]PORT",
    help="With --follow: serve /metrics (Prometheus), /health/live and /health/ready there.",
)
@changes_data()
@PROJECT
@JSON
def materialize(
    views: tuple[str, ...],
    follow: bool,
    rebuild: bool,
    shard: str,
    poll_ms: int,
    listen: str | None,
    path: str,
    as_json: bool,
) -> None:
    """Load the tiles of VIEWs (default: all) into the online store.

    Idempotent, also after a crash: each tile counts once. A store that was emptied, or contains
    another generation, is rebuilt while readers continue to see the current data. If the store has
    lost the bundle or the models that were published to it, they are published again.

    \b
    paimon-features materialize                        # catch up once
    paimon-features materialize spend --follow         # catch up, then follow until Ctrl-C
    paimon-features materialize --follow --shard 0/4   # one of four processes
    paimon-features materialize --follow --listen 9464 # with metrics and health
    paimon-features materialize spend --rebuild        # from the tile table only

    With --json one line per step, otherwise a line per view whenever something was applied. Exit
    code 1 if --once could not catch up because other shards or processes own buckets.
    """
    if listen is not None and not follow:
        raise click.UsageError("--listen requires --follow")
    project = Project.open(path)
    show = _PassPrinter(as_json)
    names = views
    if not names:
        names = tuple(v for v in project.definitions.views if project.view(v).is_online)
        if lake_only := project.definitions.views.keys() - set(names):
            show.note(
                f"skipped, exact windows are read from the lake: {', '.join(sorted(lake_only))}"
            )
    monitor = Monitor(names)

    def on_message(progress: MaterializeProgress) -> None:
        show.progress(progress)
        monitor.working(progress)

    workers = [
        _materializer(project, project.view(name), _shard(shard), on_message) for name in names
    ]
    if follow:
        with ExitStack() as stack:
            if listen is not None:
                hosts = project.config.serve.hosts
                server = stack.enter_context(MonitorServer(monitor, listen, hosts))
                show.note(f"metrics and health at http://{server.address}")
            show.note(f"following {', '.join(names)}; Ctrl-C ends it")
            tracer = open_tracer("paimon-features-materialize")
            if tracer is not None:
                stack.callback(tracer.close)
            republisher = Republisher(project)
            _follow(workers, republisher, rebuild, poll_ms, show, monitor, tracer)
        return
    caught_up = [_once(worker, rebuild, show) for worker in workers]
    _republish(Republisher(project), show)
    if not all(caught_up):
        raise SystemExit(1)


def _republish(republisher: Republisher, show: _PassPrinter) -> None:
    """Publish what the store has lost besides records; the views do not depend on it."""
    try:
        for lost in republisher.check():
            show.note(f"{lost}: lost, and published again")
    except PaimonFeaturesError as error:
        show.trouble(error)


def _once(worker: Materializer, rebuild: bool, show: _PassPrinter) -> bool:
    """Catch up; return whether that succeeded."""
    try:
        result = worker.rebuild() if rebuild else worker.run_once()
        give_up = time.monotonic() + HELD_FOR_S
        while result.held and not result.caught_up and time.monotonic() < give_up:
            time.sleep(0.5)
            result = worker.run_once()
    except KeyboardInterrupt:
        show.note(f"{worker.view.name}: stopped; the next run resumes from here")
        raise
    finally:
        worker.close()
    show.result(result)
    return result.caught_up


def _materializer(
    project: Project,
    view: CompiledView,
    shard: tuple[int, int],
    progress: Callable[[MaterializeProgress], None],
) -> Materializer:
    return Materializer(
        project.lake,
        project.name,
        view,
        lambda: project.generation(view),
        open_store(project.online_settings.for_writing()),
        shard=shard,
        progress=progress,
    )


def _shard(text: str) -> tuple[int, int]:
    index, slash, count = text.partition("/")
    if not (slash and index.isdigit() and count.isdigit() and int(index) < int(count)):
        raise ConfigurationError(f"--shard {text}: expected i/n with 0 <= i < n, for example 0/4")
    return int(index), int(count)


def _follow(
    workers: list[Materializer],
    republisher: Republisher,
    rebuild: bool,
    poll_ms: int,
    show: _PassPrinter,
    monitor: Monitor,
    tracer: Tracer | None,
) -> None:
    """One thread per view, until Ctrl-C or a termination signal, or until one of them fails."""
    stop = stop_event()
    failures: list[PaimonFeaturesError] = []

    def passed(progress: MaterializeProgress) -> None:
        monitor.passed(progress)
        if tracer is not None and (progress.tiles or progress.rebuilding):
            _trace(tracer, progress)

    def work(worker: Materializer) -> None:
        def trouble(error: RetriedError) -> None:
            show.trouble(error)
            monitor.failed(worker.view.name)

        try:
            if rebuild:
                worker.request_rebuild()
            worker.follow(poll_ms, stop, trouble, passed)
        except PaimonFeaturesError as error:
            error.add_note(f"while materializing feature view {worker.view.name!r}")
            failures.append(error)
            stop.set()

    def republish() -> None:
        while not stop.is_set():
            _republish(republisher, show)
            stop.wait(REPUBLISH_S)

    threads = [threading.Thread(target=work, args=(w,), name=w.view.name) for w in workers]
    threads.append(threading.Thread(target=republish, name="republish"))
    for thread in threads:
        thread.start()
    for thread in threads:
        # a signal may be delivered to another thread: Python acts on it when this one wakes up
        while thread.is_alive():
            thread.join(0.2)
    if failures:
        raise failures[0]


def _trace(tracer: Tracer, progress: MaterializeProgress) -> None:
    """Trace the span of a pass: from the commits of the tile table to records."""
    attributes: dict[str, str | int] = {
        "paimon_features.view": progress.view,
        "paimon_features.applied_snapshot": progress.applied_snapshot,
        "paimon_features.latest_snapshot": progress.latest_snapshot,
        "paimon_features.tiles": progress.tiles,
        "paimon_features.records": progress.records,
    }
    if progress.rebuilding is not None:
        attributes["paimon_features.rebuilding"] = progress.rebuilding
    tracer.record(ended_now("materialize", progress.seconds, attributes), "internal")


class _PassPrinter:
    """Prints progress, not too often; safe to call from several threads."""

    def __init__(self, as_json: bool) -> None:
        self._as_json = as_json
        self._console = Console(stderr=as_json, highlight=False)
        self._lock = threading.Lock()
        self._shown: dict[str, tuple[float, MaterializeProgress]] = {}
        self._troubles: dict[str, float] = {}

    def progress(self, progress: MaterializeProgress) -> None:
        """Report a step: printed if it is new, or if the last line is old enough."""
        with self._lock:
            now = time.monotonic()
            if self._is_news(progress, now):
                self._shown[progress.view] = now, progress
                self._print(progress)

    def _is_news(self, progress: MaterializeProgress, now: float) -> bool:
        if progress.view not in self._shown:
            return True
        at, last = self._shown[progress.view]
        if (progress.held, progress.rebuilding) != (last.held, last.rebuilding):
            return True
        if not progress.tiles:
            return False
        arrived = progress.caught_up and not last.caught_up
        return self._as_json or arrived or now - at >= SHOW_EVERY_S

    def result(self, result: MaterializeProgress) -> None:
        """Report the end of ``--once``."""
        with self._lock:
            if self._as_json:
                click.echo(json.dumps(_document(result)))
            elif result.caught_up:
                at = result.applied_snapshot
                self._line(f"{result.view}: up to date at snapshot {at}")
            else:
                self._print(result)

    def note(self, text: str) -> None:
        """Report a message for people, in addition to the results."""
        with self._lock:
            click.echo(text, err=True)

    def trouble(self, error: PaimonFeaturesError) -> None:
        """Something that does not respond yet and is retried; repeated errors are throttled."""
        with self._lock:
            now, kind = time.monotonic(), re.sub(r"[0-9.]+", "", str(error))
            if now - self._troubles.get(kind, -TROUBLE_EVERY_S) >= TROUBLE_EVERY_S:
                self._troubles[kind] = now
                click.echo(f"{error}; trying again", err=True)

    def _print(self, p: MaterializeProgress) -> None:
        if self._as_json:
            click.echo(json.dumps(_document(p)))
            return
        work = f"{p.tiles:,} tiles, {p.records:,} records, {p.tiles_per_s:,.0f} tiles/s"
        if p.pending > p.tiles_per_s > 0:
            work += f"; {p.pending:,} to go, about {p.pending / p.tiles_per_s:,.0f} s"
        if p.rebuilding is not None:
            self._line(f"{p.view}: rebuilding ({p.rebuilding}): {work}")
        elif p.held:
            self._line(f"{p.view}: waiting for {', '.join(p.held)}")
        else:
            self._line(
                f"{p.view}: snapshot {p.applied_snapshot} of {p.latest_snapshot}, "
                f"{p.lag_snapshots} behind; {work}"
            )

    def _line(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)


def _document(progress: MaterializeProgress) -> dict[str, object]:
    return {
        **asdict(progress),
        "lag_snapshots": progress.lag_snapshots,
        "tiles_per_s": round(progress.tiles_per_s),
        "caught_up": progress.caught_up,
    }
