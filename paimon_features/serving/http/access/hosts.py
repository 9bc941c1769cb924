"""Requests are answered under the host names of this server only (see ``host_names``)."""

from __future__ import annotations

from collections.abc import Sequence

from paimon_features.core.process.host_names import HostNames
from paimon_features.serving.http.http_errors import CLOSE, RequestRejected
from paimon_features.serving.http.messages import Request

_REMEMBERED = 256


class Hosts:
    """The names that a feature server answers to, as ``HostNames`` accepts them."""

    def __init__(self, names: Sequence[str] | None) -> None:
        self._names = HostNames(names)
        self._any_site = names is None
        self._accepted: set[bytes] = set()

    def check(self, request: Request) -> None:
        """Raise RequestRejected unless the request has one ``Host`` header, with a known name.

        HTTP/1.0 needs none: load balancers send it, browsers do not. Other versions do, also those
        that nobody sends.

        Raises
        ------
        RequestRejected
            400 without exactly one valid header, 421 for a name of another server, 403 for a
            request that a page of another site makes.
        """
        if request.method == "POST" and (request.origin or request.fetch_site):
            self._check_site(request)
        if len(request.hosts) == 1 and request.hosts[0] in self._accepted:
            return
        if not request.hosts and request.http_version == "1.0":
            return
        if len(request.hosts) != 1:
            raise RequestRejected(
                "malformed",
                f"the request has {len(request.hosts)} Host headers, expected one",
                CLOSE,
            )
        host = request.hosts[0].decode("latin-1")
        if not self.accepts(host):
            raise RequestRejected(
                "unknown_host",
                f"this server does not answer as {host[:80]!r}; use 'localhost' or an IP address, "
                "or list the name in [serve] hosts",
                CLOSE,
                "host",
            )
        if len(self._accepted) < _REMEMBERED:
            self._accepted.add(request.hosts[0])

    def _check_site(self, request: Request) -> None:
        """Raise RequestRejected for what a page of another site sends through a browser.

        A browser asks nobody before it sends a form, and forms have no tokens.
        """
        if self._any_site or request.authorization:
            return
        host = b"".join(request.hosts[:1]).lower()
        is_own = not request.origin or request.origin.lower().partition(b"://")[2] == host
        if not is_own or request.fetch_site.lower() not in (b"", b"same-origin", b"none"):
            raise RequestRejected(
                "cross_site",
                "a page of another site may not send requests to this server; use the server's "
                "own pages, or a program",
                CLOSE,
                "host",
            )

    def accepts(self, host: str) -> bool:
        """Return True if a request for this value of ``Host`` is answered.

        Raises
        ------
        RequestRejected
            400 for a value that is not a host.
        """
        accepted = self._names.accepts(host)
        if accepted is None:
            raise RequestRejected(
                "malformed", f"the Host header {host[:80]!r} is not host[:port]", CLOSE
            )
        return accepted
