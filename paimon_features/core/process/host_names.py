"""The host names under which a server of this process answers.

A page of another site can have its own name resolve to this host (DNS rebinding) and then read
the server's replies through the browser of somebody who may reach it. Its requests have that
name in their ``Host`` header.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

LOCAL = ("localhost",)
"""The names of a server on the loopback interface."""
_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9._-]*))(?::[0-9]{1,5})?")


class HostNames:
    """Accepts the given names, ``.example.com`` for all below it, and IP addresses; None accepts
    every name. Names differ in more than case and a trailing dot; ports are not compared.

    >>> hosts = HostNames(["features", ".example.com"])
    >>> [hosts.accepts(name) for name in ("Features:80", "a.example.com", "[::1]:6566", "evil.com")]
    [True, True, True, False]
    """

    def __init__(self, names: Sequence[str] | None) -> None:
        self._names = None if names is None else frozenset(name.lower() for name in names)

    def accepts(self, host: str) -> bool | None:
        """Return True if a request for this value of ``Host`` is answered.

        None if it is not a host.
        """
        match = _HOST.fullmatch(host)
        if match is None:
            return None
        if self._names is None:
            return True
        if _is_address(match[1] or match[2]):
            return True
        name = match[2].lower().removesuffix(".")
        parents = (name[at:] for at, letter in enumerate(name) if letter == ".")
        return name in self._names or any(parent in self._names for parent in parents)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
