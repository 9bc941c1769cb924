"""The tools over the Model Context Protocol, by its official SDK: over stdio, or HTTP on loopback.

Over stdio a client starts the server as its own process, which may read what its user may read.
Over HTTP, clients need a token where ``[serve] tokens`` is set, as they do of the feature server,
and its quota counts calls of tools and rows that they read.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import AnyHttpUrl, Field

from paimon_features._version import __version__
from paimon_features.core.documents.redaction import redact
from paimon_features.core.errors import PaimonFeaturesError
from paimon_features.integrations.mcp.feature_tools import MAX_ENTITIES, MAX_PAGE, FeatureTools
from paimon_features.integrations.mcp.strict_bodies import StrictBodies
from paimon_features.serving.http.access.access import ANYBODY, Rights
from paimon_features.serving.http.access.tokens import Tokens
from paimon_features.serving.http.definitions.definition_source import stamp_of
from paimon_features.serving.http.http_errors import RequestRejected

PATH = "/mcp"
"""The path of the HTTP endpoint."""
_READ_ONLY = ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False)
_INSTRUCTIONS = (
    "Read-only access to the feature store project {name!r}. Start with 'list', then 'describe' a "
    "service or view for its entity keys and features; 'lookup' reads online values, 'explain' "
    "shows which events and windows a value comes from. 'plan' shows definitions that are not "
    "applied yet, 'status' what is late or failed. Times are UTC milliseconds. Long lists in a "
    "reply are cut; 'truncated' then has their full sizes."
)

Features = Annotated[
    list[str] | str,
    Field(description="Names of services, views or interactions, or view:feature.", max_length=500),
]
AsOf = Annotated[
    int | str | None,
    Field(description="UTC milliseconds, or an ISO 8601 time; default: now."),
]


def build_server(tools: FeatureTools, port: int | None = None) -> MCPServer[Any]:
    """Return the server with all tools; with ``port``, for HTTP, where tokens are checked.

    Raises
    ------
    ConfigurationError
        If ``[serve] tokens`` is set and the file cannot be read.
    """
    project = tools.project
    file = None if port is None else project.config.serve.tokens
    server: MCPServer[Any] = MCPServer(
        "paimon-features",
        title=f"Feature store {project.name}",
        instructions=_INSTRUCTIONS.format(name=project.name),
        version=__version__,
        log_level="ERROR",
        **({} if file is None else _token_settings(file, port)),
    )
    _add_definition_tools(server, tools)
    _add_lookup(server, tools)
    _add_explain(server, tools)
    _add_state_tools(server, tools)
    return server


def _token_settings(file: Path, port: int | None) -> dict[str, Any]:
    """Return the arguments of a server that checks tokens against a file of this host."""
    # the issuer is never queried
    issuer = AuthSettings(
        issuer_url=AnyHttpUrl(f"http://127.0.0.1:{port}"), resource_server_url=None
    )
    return {"token_verifier": FileTokenVerifier(file), "auth": issuer}


def _add_definition_tools(server: MCPServer[Any], tools: FeatureTools) -> None:
    """Add the tools ``list`` and ``describe``."""

    @server.tool(name="list", title="List definitions", annotations=_READ_ONLY)
    def list_definitions(
        kind: Annotated[
            str | None,
            Field(description="Only this kind: service, feature_view, entity, source, ..."),
        ] = None,
        search: Annotated[
            str | None,
            Field(description="Text in a name, description, owner or tag.", max_length=200),
        ] = None,
        offset: Annotated[int, Field(ge=0)] = 0,
        limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 50,
    ) -> CallToolResult:
        """List the definitions of the project: kind, name, state, description, owner, tags."""
        return _answer(tools, lambda rights: tools.list(kind, search, offset, limit, rights=rights))

    @server.tool(title="Describe a definition", annotations=_READ_ONLY)
    def describe(name: Annotated[str, Field(max_length=200)]) -> CallToolResult:
        """Show a service, view, source or other definition: its features with types and windows,
        entity keys, lineage, versions and tables."""
        return _answer(tools, lambda rights: tools.describe(name, rights=rights))


def _add_lookup(server: MCPServer[Any], tools: FeatureTools) -> None:
    """Add the tool ``lookup``."""

    @server.tool(title="Look up online features", annotations=_READ_ONLY)
    def lookup(
        features: Features,
        entities: Annotated[
            dict[str, list[Any] | int | str | bool],
            Field(
                description='Values of each entity key, e.g. {"customer_id": [12346, 12347]}; '
                f"at most {MAX_ENTITIES} of each."
            ),
        ],
        as_of: AsOf = None,
        request: Annotated[
            dict[str, Any] | None,
            Field(description="Request inputs of interactions, one value each."),
        ] = None,
    ) -> CallToolResult:
        """Read the values of features from the online store, with their status and freshness.

        PRESENT is correct, STALE correct but old; EXPIRED, MISSING and ILL_CONDITIONED have no
        value."""
        names = [features] if isinstance(features, str) else features
        columns = {
            key: values if isinstance(values, list) else [values]
            for key, values in entities.items()
        }
        return _answer(
            tools, lambda rights: tools.lookup(names, columns, as_of, request, rights=rights)
        )


def _add_explain(server: MCPServer[Any], tools: FeatureTools) -> None:
    """Add the tool ``explain``."""

    @server.tool(title="Explain a value", annotations=_READ_ONLY)
    def explain(
        view: Annotated[str, Field(description="A feature view.", max_length=200)],
        entity: Annotated[
            dict[str, Any], Field(description='One value per key, e.g. {"customer_id": 12346}.')
        ],
        features: Annotated[
            list[str] | None,
            Field(description="Names of features of the view; default: all.", max_length=500),
        ] = None,
        as_of: AsOf = None,
    ) -> CallToolResult:
        """Show which cells of which windows an entity's online values are computed from, with a
        sentence for each feature."""
        return _answer(
            tools, lambda rights: tools.explain(view, entity, features, as_of, rights=rights)
        )


def _add_state_tools(server: MCPServer[Any], tools: FeatureTools) -> None:
    """Add the tools ``plan`` and ``status``."""

    @server.tool(title="Plan", annotations=_READ_ONLY)
    def plan() -> CallToolResult:
        """Show what applying the definitions file would change. Changes nothing."""
        return _answer(tools, lambda rights: tools.plan(rights=rights))

    @server.tool(title="Status", annotations=_READ_ONLY)
    def status() -> CallToolResult:
        """Show jobs, freshness of views, table sizes, leases, and in 'attention' what is wrong."""
        return _answer(tools, lambda rights: tools.status(rights=rights))


def run_stdio(tools: FeatureTools) -> None:
    """Serve the client at the other end of stdin and stdout, until it closes them."""
    build_server(tools).run("stdio")


def run_http(tools: FeatureTools, listening: socket.socket) -> None:
    """Serve HTTP on a socket that listens on loopback, until SIGTERM or SIGINT."""
    server = build_server(tools, listening.getsockname()[1])
    # the default host makes the SDK check Host and Origin headers against those of loopback
    app = StrictBodies(server.streamable_http_app(streamable_http_path=PATH))
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])


class _Bearer(AccessToken):
    """The token of a request, with the rights of its holder."""

    rights: Any


class FileTokenVerifier:
    """Checks tokens against the token file of the feature server, as it is at each request."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp = stamp_of(path)
        self._tokens = Tokens(path)

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return the holder and the rights of a token; None for one that is not in the file."""
        stamp = stamp_of(self._path)
        if stamp != self._stamp:
            self._tokens, self._stamp = Tokens(self._path), stamp
        try:
            rights = self._tokens.rights(b"Bearer " + token.encode())
        except RequestRejected:
            return None
        return _Bearer(token=token, client_id=rights.client, scopes=[], rights=rights)


def _rights() -> Rights:
    """Return the rights of the request that is being answered."""
    token = get_access_token()
    if token is None:
        return ANYBODY
    assert isinstance(token, _Bearer), "FileTokenVerifier makes no other"
    rights: Rights = token.rights
    return rights


def _answer(tools: FeatureTools, tool: Callable[[Rights], Mapping[str, Any]]) -> CallToolResult:
    """Return the document of a tool as text and as structured content; our errors for the model."""
    try:
        rights = _rights()
        tools.admit(rights)
        document = tool(rights)
    except (PaimonFeaturesError, RequestRejected) as error:
        notes = getattr(error, "__notes__", ())
        raise ToolError(redact("\n".join([str(error), *notes]))) from error
    text = json.dumps(document, default=str)
    content = TextContent(type="text", text=text)
    return CallToolResult(content=[content], structured_content=json.loads(text))
