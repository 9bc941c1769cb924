"""``mcp``: read-only tools for language models and their agents."""

from __future__ import annotations

import contextlib
import sys

import click

from paimon_features.cli._options import PROJECT
from paimon_features.core.extras import require


@click.command()
@click.option("--http", is_flag=True, help="Serve HTTP on 127.0.0.1 instead of stdin and stdout.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=6567,
    show_default=True,
    help="Port of --http; 0: any free.",
)
@PROJECT
def mcp(http: bool, port: int, path: str) -> None:
    """Serve the project to agents over the Model Context Protocol (MCP). Changes nothing.

    \b
    claude mcp add shop -- paimon-features mcp --project /path/to/shop
    paimon-features mcp --http --port 6567      # http://127.0.0.1:6567/mcp

    \b
    list       definitions, in pages        explain    what a value is computed from
    describe   one of them                  plan       what 'apply' would change
    lookup     online values                status     jobs, freshness, what is wrong

    A client starts the command itself and speaks over stdin and stdout. With --http, clients need
    a token of 'paimon-features serve token' if [serve] tokens is set; one for some services reads
    the features of these only. Replies have at most 48 KiB. See docs/how-to/integrations/mcp.md.
    """
    require("mcp", "mcp", "'paimon-features mcp'")
    from paimon_features.integrations.mcp import FeatureTools, protocol
    from paimon_features.serving.http.server.supervisor import listen, url_of

    tools = FeatureTools(path)
    # loaded before a client waits for it: definitions that cannot be read are an error of the
    # command. What they print must not reach the client as a message
    with contextlib.redirect_stdout(sys.stderr):
        name = tools.project.name
    if not http:
        protocol.run_stdio(tools)
        return
    with listen("127.0.0.1", port) as listening:
        click.echo(f"{name}: MCP on {url_of(listening)}{protocol.PATH}", err=True)
        protocol.run_http(tools, listening)
