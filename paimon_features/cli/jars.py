"""``paimon-features jars``: fetch and verify the Flink jars."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from paimon_features.cli._options import JSON
from paimon_features.core.installation.jars import (
    CHECKPOINT_GROUP,
    DEFAULT_GROUPS,
    fetch_jar_details,
    locked_jars,
)
from paimon_features.core.process import verbosity


@click.command()
@click.option(
    "--group",
    "groups",
    multiple=True,
    type=click.Choice(list(dict.fromkeys(jar.group for jar in locked_jars()))),
    help=f"Only this group; repeatable. Default: {', '.join(DEFAULT_GROUPS)}.",
)
@click.option("--class-path", is_flag=True, help="Print the jars as a class path, nothing else.")
@click.option(
    "--class-archive",
    is_flag=True,
    help="Also store Java's loaded classes, once: local jobs start faster. 180 MB, half a minute.",
)
@JSON
def jars(groups: tuple[str, ...], class_path: bool, class_archive: bool, as_json: bool) -> None:
    """Download the jars that Flink jobs need into the cache, and verify their sha256.

    A jar is taken from the cache, ~/.m2 or a Maven repository, in this order, if its hash is
    correct. A second run needs no network; an interrupted one resumes. With --quiet nothing is
    printed if all jars are in the cache.

    \b
      paimon-features jars                      the jars of every job, and Kafka's
      paimon-features jars --class-archive      jobs in this machine's JVM start faster
      paimon-features jars --group s3           for a warehouse on S3
      paimon-features jars --group s3-checkpoints   a plugin of Flink: checkpoints on S3
      export HADOOP_CLASSPATH=$(paimon-features jars --group flink --class-path)

    \b
    Environment:
      PAIMON_FEATURES_CACHE         the cache, by default ~/.cache/paimon-features
      PAIMON_FEATURES_MAVEN_MIRROR  address of a Maven repository to download from
    """
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bars:
        fetched = fetch_jar_details(groups or DEFAULT_GROUPS, progress=_reporter(bars, console))
    if CHECKPOINT_GROUP in groups and importlib.util.find_spec("pyflink"):
        from paimon_features.flink.gateway import plugin_folder

        plugin_folder()  # a container cannot make it: its file system is read-only
    if class_archive:
        from paimon_features.project.class_archive_writer import write_archive

        with console.status("storing the classes that Java loads for Flink"):
            archive = write_archive()
        if archive is None and not verbosity.quiet():
            click.echo("no class archive: it takes Java 17 or later", err=True)
    if class_path:
        click.echo(os.pathsep.join(str(item.path) for item in fetched))
    elif as_json:
        click.echo(
            json.dumps(
                [
                    {
                        "group": item.jar.group,
                        "coordinate": item.jar.coordinate,
                        "sha256": item.jar.sha256,
                        "origin": item.origin,
                        "size_bytes": item.size_bytes,
                        "path": str(item.path),
                    }
                    for item in fetched
                ],
                indent=2,
            )
        )
    elif not verbosity.quiet() or any(item.origin != "cache" for item in fetched):
        for item in fetched:
            size = f"{item.size_bytes / 1e6:.1f} MB"
            click.echo(f"{item.jar.coordinate:60} {size:>9}  {item.origin:8}  {item.path}")


def _reporter(
    bars: Progress, console: Console
) -> Callable[[str, int], AbstractContextManager[Callable[[int], None]]]:
    @contextmanager
    def report(name: str, size_bytes: int) -> Iterator[Callable[[int], None]]:
        if not console.is_terminal:
            # a log has no bars, but it should say what takes so long
            click.echo(f"fetching {name} ({size_bytes / 1e6:.1f} MB)", err=True)
        task = bars.add_task(name, total=size_bytes)
        yield lambda step: bars.advance(task, step)
        bars.remove_task(task)

    return report
