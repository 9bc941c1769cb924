"""Specification of a job's wires, by which its tasks and its client open them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paimon_features.core.documents.signed_pickle import Seal
from paimon_features.core.errors import ConfigurationError, JobError
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
        Unique name of the run.
    url
        URL of a server of the Redis protocol, or ``None`` for a wire inside one process.
    folder
        Folder to which a wire in memory writes its status, for readers in other processes.
    seal
        The run's own key, which its tasks receive with this specification: what passes through a
        server was written by them.

    Raises
    ------
    ConfigurationError
        For a URL of another scheme.
    """

    run: str
    url: str | None = None
    folder: Path | None = None
    seal: Seal = field(default_factory=Seal.random)

    def __post_init__(self) -> None:
        if self.url is not None and not self.url.startswith(SCHEMES):
            raise ConfigurationError(
                f"wire {self.url!r}: expected 'memory' or a URL of Redis that begins with "
                f"{', '.join(SCHEMES)}"
            )

    def open(self, iteration: int) -> MemoryWire | RedisWire:
        """Return the wire of an iteration of the program, for one task."""
        name = f"{self.run}-{iteration}"
        if self.url is not None:
            return RedisWire(self.url, name, self.seal)
        return MemoryWire(name, None if self.folder is None else self.folder / f"{name}.json")

    def status(self, iteration: int) -> dict[str, Any]:
        """Return the last reported status; empty before the first report."""
        wire = self.open(iteration)
        try:
            return wire.status()
        finally:
            if isinstance(wire, RedisWire):
                wire.close()

    def discard(self, iteration: int) -> None:
        """Delete the data of an iteration that has ended; on a lost server they expire."""
        name = f"{self.run}-{iteration}"
        if self.url is not None:
            with suppress(JobError):
                RedisWire(self.url, name, self.seal).discard()
            return
        discard_memory(name)
        if self.folder is not None:
            (self.folder / f"{name}.json").unlink(missing_ok=True)
