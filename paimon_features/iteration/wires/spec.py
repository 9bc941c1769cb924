"""Which wire a job uses: what its tasks and who watches open it by."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paimon_features.errors import ConfigurationError, JobError
from paimon_features.iteration.wires.memory import MemoryWire
from paimon_features.iteration.wires.memory import discard as discard_memory
from paimon_features.iteration.wires.redis import RedisWire

SCHEMES = ("redis://", "rediss://", "unix://")


@dataclass(frozen=True, slots=True)
class WireSpec:
    """The wires of one run of a program.

    Parameters
    ----------
    run
        Name of the run; no other run has it.
    url
        Of a server of the Redis protocol, or ``None`` for the memory of one process.
    folder
        Where a wire in memory writes its status, for who watches from another process.

    Raises
    ------
    ConfigurationError
        For a URL of another scheme.
    """

    run: str
    url: str | None = None
    folder: Path | None = None

    def __post_init__(self) -> None:
        if self.url is not None and not self.url.startswith(SCHEMES):
            raise ConfigurationError(
                f"wire {self.url!r}: expected 'memory' or a URL of Redis that begins with "
                f"{', '.join(SCHEMES)}"
            )

    def open(self, iteration: int) -> MemoryWire | RedisWire:
        """The wire of the program's iteration of this number, for one task."""
        name = f"{self.run}-{iteration}"
        if self.url is not None:
            return RedisWire(self.url, name)
        return MemoryWire(name, None if self.folder is None else self.folder / f"{name}.json")

    def status(self, iteration: int) -> dict[str, Any]:
        """What was reported last; empty before the first report."""
        wire = self.open(iteration)
        try:
            return wire.status()
        finally:
            if isinstance(wire, RedisWire):
                wire.close()

    def discard(self, iteration: int) -> None:
        """Forget an iteration that has ended; what a lost server keeps expires there."""
        name = f"{self.run}-{iteration}"
        if self.url is not None:
            with suppress(JobError):
                RedisWire(self.url, name).discard()
            return
        discard_memory(name)
        if self.folder is not None:
            (self.folder / f"{name}.json").unlink(missing_ok=True)
