"""Files of strangers are read in a process of their own, which they may bring down.

A decoder in C++ ends its process where a file is damaged in a way that it does not expect, and a
few bytes can stand for any amount of memory or time. So the process has limits for all three, and
its death is an error that names the file.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from types import MappingProxyType
from typing import Any

from paimon_features.core.errors import ConfigurationError
from paimon_features.core.process.supervision import bound_to_us, crash_text, report_reading


@dataclass(frozen=True, slots=True)
class ReadingLimits:
    """What the process of a file may use: bytes of data, and seconds of processor time.

    ``step_s`` is the time between two parts of the result, ``total_s`` that of all.
    """

    memory_bytes: int = 4 << 30
    step_s: int = 60
    total_s: int = 3_600

    @property
    def memory(self) -> str:
        return f"{self.memory_bytes / (1 << 30):g} GiB of memory"


LIMITS = ReadingLimits()


def _read_only(entries: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(entries)


# settings and definitions have read-only mappings, which have no form for other processes
ForkingPickler.register(MappingProxyType, lambda mapping: (_read_only, (dict(mapping),)))
_SETTINGS = {
    # a pool that reserves memory in advance would count as used; threads have pools of their own
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
    "OMP_NUM_THREADS": "2",
}


def read_apart(
    path: Path,
    parts: Callable[..., Iterator[Any]],
    *arguments: Any,
    on_rows: Callable[[int], None] = lambda _: None,
    limits: ReadingLimits = LIMITS,
) -> Iterator[Any]:
    """Yield the items of ``parts(*arguments)``, a function of a module, computed in a process.

    ``on_rows`` receives what it reports by ``progressed``.

    Raises
    ------
    ConfigurationError
        If the process dies, or exceeds a limit; ``path`` is named, or the file that it recorded
        by ``reading``.
    PaimonFeaturesError
        What the function raises.
    """
    file = str(path)
    ours, theirs = Pipe()
    with ours, _process(theirs) as process:
        try:
            ours.send((limits, parts, arguments))
            while True:
                kind, item = ours.recv()
                if kind == "end":
                    return
                if kind == "error":
                    raise item
                if kind == "rows":
                    on_rows(item)
                elif kind == "file":
                    file = item or str(path)
                elif kind == "memory":
                    raise ConfigurationError(
                        f"{file}: reading it needs more than {limits.memory}; it is damaged, or a "
                        "few bytes of it stand for very large values"
                    )
                else:
                    yield item
        except (EOFError, OSError) as error:
            process.wait()
            raise ConfigurationError(_death(file, process.returncode, limits)) from error


@contextmanager
def _process(theirs: Connection) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-P", "-m", __name__, str(theirs.fileno())]
    folders = os.pathsep.join(folder for folder in sys.path if folder)
    process = subprocess.Popen(
        bound_to_us(command),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        env=os.environ | _SETTINGS | {"PYTHONPATH": folders},
    )
    theirs.close()
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _death(file: str, code: int | None, limits: ReadingLimits) -> str:
    if code in (-signal.SIGPROF, -signal.SIGXCPU):
        return (
            f"{file}: reading it took more than {limits.step_s} s of processor time for one part; "
            "it is damaged, or a few bytes of it stand for very many rows or values"
        )
    return crash_text(file, code, f", or needs more than {limits.memory}")


# -- in the process -------------------------------------------------------------------------

_parent: Connection | None = None
_step_s = 0


def progressed(rows: int = 0) -> None:
    """Report progress from within a process of ``read_apart``; elsewhere it does nothing."""
    if _parent is not None:
        signal.setitimer(signal.ITIMER_PROF, _step_s)
        if rows:
            _parent.send(("rows", rows))


def main(connection: Connection) -> None:
    """Compute what the parent sends, and send the items."""
    global _parent, _step_s
    limits, parts, arguments = connection.recv()
    _parent, _step_s = connection, limits.step_s
    report_reading(lambda file: connection.send(("file", file)))
    _limit(limits)
    try:
        for item in parts(*arguments):
            connection.send(("item", item))
            progressed()
        connection.send(("end", None))
    except MemoryError:
        connection.send(("memory", None))
    except BrokenPipeError:  # enough was read
        pass
    except Exception as error:
        connection.send(("error", error))


def _limit(limits: ReadingLimits) -> None:
    import resource

    def limit(what: int, most: int) -> None:
        with suppress(ValueError, OSError):  # not on this system, or a lower one is set
            resource.setrlimit(what, (most, most + 5))

    limit(resource.RLIMIT_DATA, limits.memory_bytes)
    limit(resource.RLIMIT_CPU, limits.total_s)
    limit(resource.RLIMIT_CORE, 0)
    progressed()  # the signal of its timer ends the process also within a decoder


if __name__ == "__main__":
    # by its name: the module that others import has the connection
    from paimon_features.ingest.inputs import reading_process

    reading_process.main(Connection(int(sys.argv[1])))
