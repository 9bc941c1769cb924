"""Real S3 servers in processes of their own, behind the faults of ``object_store``.

Both honour conditional puts, on which commits without a rename rest: ``gofakes3`` keeps its objects
in memory, ``versitygw`` in files. ``tools/go_programs.py`` installs them.
"""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from paimon_features.core.errors import SetupError
from paimon_features.core.process.ports import free_ports
from paimon_features.testing.servers.local_server import LocalServer

_TIMEOUT_S = 30.0
_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "upgrade", "expect", "te"}


class S3Program(LocalServer):
    """A server, as a context manager, which accepts one pair of keys.

    Parameters
    ----------
    program
        The path of ``gofakes3`` (which accepts any keys) or ``versitygw``.
    key, secret
        The pair of keys.

    Raises
    ------
    ValueError
        For another program.
    """

    short_name = "s3"

    def __init__(self, program: Path, key: str, secret: str) -> None:
        super().__init__()
        if program.name not in ("gofakes3", "versitygw"):
            raise ValueError(f"program {program}: expected a path of gofakes3 or versitygw")
        self.title = program.name  # type: ignore[misc]
        self.program, self.key, self.secret = program, key, secret
        (self.port,) = free_ports(1)

    def start(self) -> S3Program:
        """Start it, or start it again (versitygw: with its data), and wait until it answers.

        Raises
        ------
        SetupError
            If it does not start.
        """
        folder = self._folder or self._make_folder()
        address = f"127.0.0.1:{self.port}"
        if self.program.name == "gofakes3":
            command = [str(self.program), "-host", address, "-backend", "memory"]
        else:
            data, side = folder / "data", folder / "metadata"
            data.mkdir(exist_ok=True)
            side.mkdir(exist_ok=True)
            keys = ["--access", self.key, "--secret", self.secret]
            command = [str(self.program), *keys, "--quiet", "--keep-alive", "--port", address]
            command += ["posix", "--sidecar", str(side), str(data)]
        self._launch(folder, command)
        deadline = time.monotonic() + _TIMEOUT_S
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
                return self
            if not self.running or time.monotonic() > deadline:
                raise SetupError(f"{self.title} did not start; its log ends: {self._log_end()}")
            time.sleep(0.02)

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Forward a request as it came, signature included; a WSGI application."""
        headers = {
            name[5:].replace("_", "-"): value
            for name, value in environ.items()
            if name.startswith("HTTP_")
        }
        for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
            if environ.get(name):
                headers[name.replace("_", "-")] = environ[name]
        sent = {n: v for n, v in headers.items() if n.lower() not in _HOP_BY_HOP}
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        made = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_TIMEOUT_S)
        with closing(made) as connection:
            connection.putrequest(
                environ["REQUEST_METHOD"],
                environ["REQUEST_URI"],
                skip_host=True,
                skip_accept_encoding=True,
            )
            for name, value in sent.items():
                connection.putheader(name, value)
            connection.endheaders(body or None)
            with connection.getresponse() as answer:
                content = answer.read()
        found = [(n, v) for n, v in answer.getheaders() if n.lower() not in _HOP_BY_HOP]
        if answer.getheader("Content-Length") is None and answer.status not in (204, 304):
            found.append(("Content-Length", str(len(content))))
        start(f"{answer.status} {answer.reason}", found)
        return [content]
