"""HTTP servers of tests, whose clients may go away in the middle of a reply."""

from __future__ import annotations

import http.server
import sys
from typing import Any


class _IgnoresLostClients(http.server.HTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        # printed by a thread, the traceback would be in the output of whichever test runs by then
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class HTTPServer(_IgnoresLostClients):
    """One request at a time."""


class ThreadingHTTPServer(_IgnoresLostClients, http.server.ThreadingHTTPServer):
    """A thread for each connection."""
