"""A headless Chromium, driven over a pipe by its DevTools protocol: no WebSocket, no driver."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import time
from pathlib import Path
from typing import Any

TIMEOUT_S = 120.0


class Chromium:
    """One page. ``events`` are the protocol's messages that answer nothing, such as errors."""

    def __init__(self, program: str, profile: Path, size: tuple[int, int] = (1280, 900)) -> None:
        to_read, to_write = os.pipe()
        from_read, from_write = os.pipe()

        def place() -> None:  # in the child: the pipe has to be at 3 and 4
            read, write = os.dup(to_read), os.dup(from_write)
            os.dup2(read, 3)
            os.dup2(write, 4)

        self._process = subprocess.Popen(
            [
                program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
                "--disable-dev-shm-usage", "--hide-scrollbars", "--disable-background-networking",
                "--disable-component-update", "--force-color-profile=srgb",
                f"--window-size={size[0]},{size[1]}", f"--user-data-dir={profile}",
                "--remote-debugging-pipe", "about:blank",
            ],
            preexec_fn=place, close_fds=False, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read)
        os.close(from_write)
        self._in, self._out = to_write, from_read
        self._buffer, self._number = b"", 0
        self.events: list[dict[str, Any]] = []
        targets = self._ask("Target.getTargets")["targetInfos"]
        page = next(t["targetId"] for t in targets if t["type"] == "page")
        found = self._ask("Target.attachToTarget", targetId=page, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(120)
        os.close(self._in)
        os.close(self._out)

    def open(self, url: str) -> None:
        """Go there, and wait until the page is loaded."""
        before = self._loads()
        self.call("Page.navigate", url=url)
        while self._loads() == before:
            self.events.append(self._next())

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, script: str) -> Any:
        """Wait until an expression is true; returns its value."""
        end = time.monotonic() + TIMEOUT_S
        while not (value := self.run(script)):
            assert time.monotonic() < end, f"not within {TIMEOUT_S} s: {script}"
            time.sleep(0.03)
        return value

    def picture(self, path: Path, whole: bool = True) -> None:
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def _loads(self) -> int:
        return sum(event["method"] == "Page.loadEventFired" for event in self.events)

    def call(self, method: str, **parameters: Any) -> Any:
        return self._ask(method, self._session, **parameters)

    def _ask(self, method: str, session: str | None = None, **parameters: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._in, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self._number:
                assert "error" not in found, found
                return found["result"]
            self.events.append(found)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._out], [], [], TIMEOUT_S)
            assert ready, "Chromium does not answer"
            data = os.read(self._out, 1 << 16)
            assert data, "Chromium has ended"
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        return found
