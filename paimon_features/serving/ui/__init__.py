"""The explorer page of the feature server: what it serves, how fresh, and how a value is computed.

One self-contained file, and a policy that lets it connect to its own server only.

>>> b"<!doctype html>" in page(), b"http://" in page().replace(b"http://www.w3.org/2000/svg", b"")
(True, False)
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from importlib import resources

__all__ = ["content_security_policy", "page"]

_PLACE = "{content-security-policy}"


@functools.cache
def page() -> bytes:
    """The page, UTF-8, to be sent as ``text/html`` with ``content_security_policy()``."""
    text = _source()
    # the same policy for a page that is saved, or served without its header
    return text.replace(_PLACE, _policy(text)).encode()


@functools.cache
def content_security_policy() -> str:
    """The value of the header ``Content-Security-Policy``: the page's own style and script
    only.

    No frame may contain it, so that no other site can have its buttons clicked.
    """
    return f"{_policy(_source())}; frame-ancestors 'none'"


def _source() -> str:
    return resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")


def _policy(text: str) -> str:
    parts = {name: _digest(text, name) for name in ("style", "script")}
    return (
        f"default-src 'none'; style-src {parts['style']}; script-src {parts['script']}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'"
    )


def _digest(text: str, element: str) -> str:
    [content] = re.findall(f"<{element}>(.*?)</{element}>", text, re.DOTALL)
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
