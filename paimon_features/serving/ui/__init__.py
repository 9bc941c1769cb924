"""The pages for people: static files that fetch what they show, for two kinds of hosts.

The feature server serves them for what its store and definitions contain (``server``), and
``paimon-features ui`` for everything in the lake (``project``). Nothing comes from elsewhere, and
the policy lets a page run its own files and connect to its own server only. No text may become
markup or script: the policy requires trusted types and allows none.

>>> assets("server")["ui"].media_type
'text/html; charset=utf-8'
>>> sorted(assets("server") | {}) == sorted(name for name in assets("project") if name)
True
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Literal

__all__ = ["Asset", "Mode", "assets", "content_security_policy", "headers"]

Mode = Literal["server", "project"]

FILES = (
    "app.css", "api.js", "charts.js", "dom.js", "entity.js", "explain.js", "home.js", "lineage.js",
    "main.js", "model.js", "prefs.js", "search.js", "snippets.js", "stored.js", "view.js",
)  # fmt: skip
_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
_PLACE = "{mode}"


@dataclass(frozen=True, slots=True)
class Asset:
    """A file to be sent as ``media_type``, UTF-8, with ``headers()``."""

    media_type: str
    content: bytes


@functools.cache
def assets(mode: Mode) -> Mapping[str, Asset]:
    """Return all files by path: the page is ``ui``, of a project also the empty path."""
    page = Asset("text/html; charset=utf-8", text("index.html").replace(_PLACE, mode).encode())
    by_path = {"ui": page} | ({"": page} if mode == "project" else {})
    for name in FILES:
        kind = _TYPES[name.rpartition(".")[2]]
        by_path[f"ui/{name}"] = Asset(kind, text(name).encode())
    return by_path


def content_security_policy() -> str:
    """Return the value of the header ``Content-Security-Policy``.

    No frame may contain a page, so that no other site can have its buttons clicked.
    """
    return (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )


def headers() -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers of every file."""
    return (
        (b"content-security-policy", content_security_policy().encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"cache-control", b"no-cache"),
    )


def text(name: str) -> str:
    """Return the content of a file of ``static``.

    The demo's report takes style and charts from here.
    """
    return resources.files(__package__).joinpath("static", name).read_text(encoding="utf-8")
