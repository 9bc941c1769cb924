"""``request-log``: load the servers' request logs into the lake."""

from __future__ import annotations

import json
import threading
from dataclasses import asdict
from pathlib import Path

import click

from paimon_features.cli._options import JSON, PROJECT
from paimon_features.cli._signals import stop_event
from paimon_features.errors import ConfigurationError, OwnershipError
from paimon_features.project import Project
from paimon_features.windows import parse_duration


@click.command("request-log")
@click.option(
    "--folder",
    "folders",
    multiple=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder with spool files; repeatable; default: [serve] request_log.",
)
@click.option("--follow/--once", default=False, help="Keep running; default: once.")
@click.option("--poll", default="1min", show_default=True, help="With --follow: the poll interval.")
@click.option(
    "--keep",
    default="1d",
    show_default=True,
    help="How long committed files stay in committed/, to detect files that are delivered again.",
)
@PROJECT
@JSON
def request_log(
    folders: tuple[Path, ...], follow: bool, poll: str, keep: str, path: str, as_json: bool
) -> None:
    """Load the request logs of feature servers into the table served_PROJECT, each row once.

    A server with [serve] request_log = "FOLDER" samples its responses and writes them to spool
    files there. This command commits complete files to the lake, where 'verify --from-log'
    checks them. Run it where both folder and lake are accessible, such as next to the
    materializer; .arrow files of another host can be copied to a local folder and passed with
    --folder.

    \b
    paimon-features request-log                     # all complete files
    paimon-features request-log --follow            # then follow until Ctrl-C
    paimon-features request-log --folder /spool/a --folder /spool/b

    Unreadable files are moved to rejected/, and truncated files are reported. With --json one
    line per pass. Exit code 1 when a file was rejected, or another process commits to the table.
    """
    from paimon_features.serving.request_log.commit import CommitStats, SpoolCommitter, waiting

    project = Project.open(path)
    chosen = list(folders)
    if not chosen:
        if project.config.serve.request_log is None:
            raise ConfigurationError(
                "there is no request log: set [serve] request_log to a folder, or pass --folder"
            )
        chosen = [project.config.serve.request_log]
    missing = [str(folder) for folder in chosen if folders and not folder.is_dir()]
    if missing:
        raise ConfigurationError(f"--folder {missing[0]}: folder not found")
    stop = stop_event() if follow else threading.Event()
    total = CommitStats()

    def show(done: CommitStats) -> None:
        if as_json:
            click.echo(json.dumps({**asdict(done), "waiting": waiting(chosen)}))
            return
        click.echo(
            f"{done.rows:,} rows of {done.files:,} files committed"
            + (f", {done.recovered} of workers that died" if done.recovered else "")
            + (f", {done.torn} with a torn end ({done.torn_bytes:,} bytes)" if done.torn else "")
            + (f", {done.repeated} had come before" if done.repeated else "")
            + (f", {done.rejected} rejected" if done.rejected else "")
            + (f", {done.removed} old ones removed" if done.removed else "")
        )

    committer = SpoolCommitter(
        project.lake,
        project.name,
        chosen,
        keep_s=parse_duration(keep) / 1_000,
        on_message=lambda line: click.echo(line, err=True),
    )
    if follow:
        names = ", ".join(map(str, chosen))
        click.echo(f"following {names} into {committer.table}; Ctrl-C ends it", err=True)
    while True:
        try:
            done = committer.run_once()
        except OwnershipError as error:  # the table is being maintained, say
            if not follow:
                raise
            click.echo(f"tried again in {poll}: {error}", err=True)
        else:
            total.add(done)
            if not follow or any(asdict(done).values()):
                show(done)
        if not follow or stop.wait(parse_duration(poll) / 1_000):
            break
    if total.rejected:
        raise SystemExit(1)
