"""``ui``: the web pages of a project."""

from __future__ import annotations

import threading
import webbrowser

import click

from paimon_features.cli._options import PROJECT
from paimon_features.cli._signals import stop_event
from paimon_features.project import Project

PORT = 6567


@click.command()
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=PORT, show_default=True,
    help="Port on 127.0.0.1; 0: any free.",
)  # fmt: skip
@click.option("--open", "opens", is_flag=True, help="Open the page in the browser.")
@click.option("--no-online", is_flag=True, help="Do not look at the online store.")
@PROJECT
def ui(port: int, opens: bool, no_online: bool, path: str) -> None:
    """Show the project in a browser: health, definitions, values, lineage, models.

    It reads the lake and changes nothing; it needs neither a feature server nor Redis, and no
    internet access. Values are explained from a copy of a view's newest tiles in memory.

    \b
    paimon-features ui --open
    ssh -L 6567:127.0.0.1:6567 HOST    # the page of another machine, on http://127.0.0.1:6567

    It listens on 127.0.0.1 only. The printed address contains a token of this run: open all of it,
    and pass it on to nobody. Ctrl-C ends it.
    """
    from paimon_features.project.web.page_server import PageServer
    from paimon_features.project.web.project_pages import ProjectPages

    project = Project.open(path)
    server = PageServer(ProjectPages(project, online=not no_online), port)
    thread = threading.Thread(target=server.run, name="ui", daemon=True)
    stop = stop_event()
    thread.start()
    try:
        click.echo(f"{project.name}: {server.link}")
        if opens:
            webbrowser.open(server.link)
        stop.wait()
    finally:
        server.stop()
        thread.join()
        server.close()
