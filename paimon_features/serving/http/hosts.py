"""The host names under which a server answers.

A page of another site can have its own name resolve to this host (DNS rebinding) and then read
the server's replies through the browser of somebody who may reach it. Its requests have that
name in their ``Host`` header.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from paimon_features.serving.http.http_errors import CLOSE, RequestRejected
from paimon_features.serving.http.messages import Request

LOCAL = ("localhost",)
"""The names of a server on the loopback interface without tokens."""
_HOST = re.compile(r"(?:\[([0-9a-fA-F:.]+)\]|([A-Za-z0-9._-]*))(?::[0-9]{1,5})?")
_REMEMBERED = 256


class Hosts:
    """Accepts the given names, ``.example.com`` for all below it, and IP addresses; None accepts
    every name. Names differ in more than case and a trailing dot; ports are not compared.

    >>> hosts = Hosts(["features", ".example.com"])
    >>> [hosts.accepts(name) for name in ("Features:80", "a.example.com", "[::1]:6566", "evil.com")]
    [True, True, True, False]
    """

    def __init__(self, names: Sequence[str] | None) -> None:
        self._names = None if names is None else frozenset(name.lower() for name in names)
        self._accepted: set[bytes] = set()

    def check(self, request: Request) -> None:
        """Raise RequestRejected unless the request has one ``Host`` header, with a known name.

        HTTP/1.0 needs none: load balancers send it, browsers do not.

        Raises
        ------
        RequestRejected
            400 without exactly one valid header, 421 for a name of another server.
        """
        if len(request.hosts) == 1 and request.hosts[0] in self._accepted:
            return
        if not request.hosts and request.http_version != "1.1":
            return
        if len(request.hosts) != 1:
            raise RequestRejected(
                400,
                "malformed",
                f"the request has {len(request.hosts)} Host headers, expected one",
                CLOSE,
            )
        host = request.hosts[0].decode("latin-1")
        if not self.accepts(host):
            raise RequestRejected(
                421,
                "unknown_host",
                f"this server does not answer as {host[:80]!r}; use 'localhost' or an IP address, "
                "or list the name in [serve] hosts",
                CLOSE,
                "host",
            )
        if len(self._accepted) < _REMEMBERED:
            self._accepted.add(request.hosts[0])

    def accepts(self, host: str) -> bool:
        """Whether a request for this value of ``Host`` is answered.

        Raises
        ------
        RequestRejected
            400 for a value that is not a host.
        """
        found = _HOST.fullmatch(host)
        if found is None:
            raise RequestRejected(
                400, "malformed", f"the Host header {host[:80]!r} is not host[:port]", CLOSE
            )
        if self._names is None:
            return True
        if _is_address(found[1] or found[2]):
            return True
        name = found[2].lower().removesuffix(".")
        parents = (name[at:] for at, letter in enumerate(name) if letter == ".")
        return name in self._names or any(parent in self._names for parent in parents)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
