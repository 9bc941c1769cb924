"""``request-log``: load the servers' request logs into the lake."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paimon_features.cli._options import JSON, PROJECT
from paimon_features.cli._shared_options import changes_data
from paimon_features.cli._signals import stop_event
from paimon_features.core.errors import ConfigurationError, OwnershipError
from paimon_features.core.windows import parse_duration
from paimon_features.project import Project

if TYPE_CHECKING:
    from paimon_features.serving.request_log.commit import (
        CommitStats,
        SpoolCommitter,
        SpooledLog,
    )


class _Committers:
    """The committers of a project's logs: of requests where ``served``, and of each model."""

    def __init__(
        self, project: Project, folders: Sequence[Path], *, served: bool, keep_s: float
    ) -> None:
        self._project, self._folders = project, folders
        self._served, self._keep_s = served, keep_s
        self._of: dict[str, SpoolCommitter] = {}

    def run_once(self) -> CommitStats:
        """Commit everything that is complete; raises as ``SpoolCommitter.run_once``."""
        from paimon_features.serving.request_log.commit import (
            CommitStats,
            prediction_folders,
            prediction_log_of,
            request_log_of,
        )

        total = CommitStats()
        project = self._project.name
        if self._served:
            total.add(self._committer(request_log_of(project), self._folders).run_once())
        for model, parts in prediction_folders(self._folders).items():
            # servers create the folders of their models while this follows
            total.add(self._committer(prediction_log_of(project, model), parts).run_once())
        return total

    def _committer(self, log: SpooledLog, folders: Sequence[Path]) -> SpoolCommitter:
        from paimon_features.serving.request_log.commit import SpoolCommitter

        committer = self._of.get(log.table.name)
        if committer is None:
            committer = self._of[log.table.name] = SpoolCommitter(
                self._project.lake,
                self._project.name,
                folders,
                log=log,
                keep_s=self._keep_s,
                on_message=lambda line: click.echo(line, err=True),
            )
        return committer


@click.command("request-log")
@click.option(
    "--folder",
    "folders",
    multiple=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder with spool files; repeatable; default: [serve] request_log, prediction_log.",
)
@click.option("--follow/--once", default=False, help="Keep running; default: once.")
@click.option("--poll", default="1min", show_default=True, help="With --follow: the poll interval.")
@click.option(
    "--keep",
    default="1d",
    show_default=True,
    help="How long committed files stay in committed/, to detect files that are delivered again.",
)
@changes_data()
@PROJECT
@JSON
def request_log(
    folders: tuple[Path, ...], follow: bool, poll: str, keep: str, path: str, as_json: bool
) -> None:
    """Load the logs of feature servers into the lake, each row once.

    A server with [serve] request_log = "FOLDER" samples its responses and writes them to spool
    files there; with [serve] prediction_log = "FOLDER" it writes its predictions. This command
    commits complete files to the tables served_PROJECT and predictions_MODEL, where 'verify
    --from-log', 'verify --predictions' and 'models outcomes' read them. Run it where both folder
    and lake are accessible, such as next to the materializer; .arrow files of another host can be
    copied to a local folder and passed with --folder.

    \b
    paimon-features request-log                     # all complete files
    paimon-features request-log --follow            # then follow until Ctrl-C
    paimon-features request-log --folder /spool/a --folder /spool/b

    Unreadable files are moved to rejected/, and truncated files are reported. With --json one
    line per pass. Exit code 1 when a file was rejected, or another process commits to the table.
    """
    from paimon_features.serving.request_log.commit import (
        CommitStats,
        prediction_folders,
        waiting,
    )

    project = Project.open(path)
    serve = project.config.serve
    chosen = list(folders)
    if not chosen:
        chosen = list(dict.fromkeys(filter(None, (serve.request_log, serve.prediction_log))))
        if not chosen:
            raise ConfigurationError(
                "no request log: set [serve] request_log or prediction_log to a folder, "
                "or pass --folder"
            )
    missing = [str(folder) for folder in chosen if folders and not folder.is_dir()]
    if missing:
        raise ConfigurationError(f"--folder {missing[0]}: folder not found")
    stop = stop_event() if follow else threading.Event()
    total = CommitStats()

    def show(done: CommitStats) -> None:
        if as_json:
            below = [path for parts in prediction_folders(chosen).values() for path in parts]
            click.echo(json.dumps({**asdict(done), "waiting": waiting([*chosen, *below])}))
            return
        click.echo(
            f"{done.rows:,} rows of {done.files:,} files committed"
            + (f", {done.recovered} of workers that died" if done.recovered else "")
            + (f", {done.torn} with a torn end ({done.torn_bytes:,} bytes)" if done.torn else "")
            + (f", {done.repeated} had come before" if done.repeated else "")
            + (f", {done.rejected} rejected" if done.rejected else "")
            + (f", {done.removed} old ones removed" if done.removed else "")
        )

    committers = _Committers(
        project,
        chosen,
        served=bool(folders) or serve.request_log is not None,
        keep_s=parse_duration(keep) / 1_000,
    )
    if follow:
        names = ", ".join(map(str, chosen))
        click.echo(f"following {names}; Ctrl-C ends it", err=True)
    while True:
        ending = not follow or stop.is_set()  # one more pass: a server that ended left files
        try:
            done = committers.run_once()
        except OwnershipError as error:  # the table is being maintained, say
            if not follow:
                raise
            click.echo(f"tried again in {poll}: {error}", err=True)
        else:
            total.add(done)
            if not follow or any(asdict(done).values()):
                show(done)
        if ending:
            break
        stop.wait(parse_duration(poll) / 1_000)
    if total.rejected:
        raise SystemExit(1)
