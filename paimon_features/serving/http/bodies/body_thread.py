"""Large bodies are decoded in a thread, one after another: the event loop is for all requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from paimon_features.serving.http.bodies.json_bodies import LARGE

T = TypeVar("T")


class BodyThread:
    """The thread, which starts with the first large body. To be used from one event loop."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "bodies")

    async def run(self, size: int, decode: Callable[[], T]) -> T:
        """Decode a body of so many bytes: a small one here, a large one in the thread."""
        if size <= LARGE:
            return decode()
        return await asyncio.get_running_loop().run_in_executor(self._thread, decode)

    def submit(self, decode: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Decode a body in the thread; ``done`` gets the result or the error, in the loop."""

        def decoded() -> Any:
            try:
                return decode()
            except Exception as error:
                return error

        def report(ended: asyncio.Future[Any]) -> None:
            if not ended.cancelled():
                done(ended.result())

        asyncio.get_running_loop().run_in_executor(self._thread, decoded).add_done_callback(report)

    def close(self) -> None:
        """Release the thread; a body that is being decoded is abandoned."""
        self._thread.shutdown(wait=False, cancel_futures=True)
