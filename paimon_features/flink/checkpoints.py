"""Checkpoints and savepoints of Flink jobs: which are complete, and which job wrote them.

Nothing here imports Flink: a checkpoint is a folder with a ``_metadata`` file.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paimon_features.core.errors import GenerationError
from paimon_features.lake.storage.file_path import FilePath, first_bytes

METADATA = "_metadata"
_MAGIC = 0x4960672D
_JOB_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint or savepoint: its number, its folder, the job that wrote it."""

    id: int
    path: FilePath
    job_id: str

    def __str__(self) -> str:
        return f"checkpoint {self.id} ({self.path})"


@dataclass(frozen=True, slots=True)
class Branch:
    """The chain of jobs, each resuming from the one before, that wrote a generation.

    ``jobs`` are (job id, number of the checkpoint it started from, None for the first one).
    A checkpoint that the next job did not resume from belongs to another history. An id may
    return: in application mode a cluster that restarts runs a job of the same id.
    """

    jobs: tuple[tuple[str, int | None], ...] = ()

    @classmethod
    def of(cls, job: Mapping[str, Any] | None) -> Branch:
        """Return the branch in the generation's record."""
        return cls(tuple((j, n) for j, n in (job or {}).get("branch", ())))

    def contains(self, checkpoint: Checkpoint) -> bool:
        """Return True if the checkpoint lies on this branch."""
        return self._index(checkpoint) is not None

    def then(self, job_id: str, start: Checkpoint | None) -> Branch:
        """Return the branch continued by a new job from ``start`` (None: a new branch).

        Raises
        ------
        GenerationError
            If ``start`` does not lie on this branch.

        >>> from pathlib import Path
        >>> first = Branch().then("a" * 32, None)
        >>> chosen = Checkpoint(5, Path("chk-5"), "a" * 32)
        >>> first.then("b" * 32, chosen).jobs == (*first.jobs, ("b" * 32, 5))
        True

        The same job again, from one of its own checkpoints:

        >>> first.then("a" * 32, chosen) == first
        True
        """
        if start is None:
            return Branch(((job_id, None),))
        index = self._index(start)
        if index is None:
            raise GenerationError(f"{start} is not part of the history of its generation")
        kept = self.jobs[: index + 1]
        return Branch(kept if kept[-1][0] == job_id else (*kept, (job_id, start.id)))

    def _index(self, checkpoint: Checkpoint) -> int | None:
        """Return which of the jobs wrote the checkpoint."""
        ends = [start for _, start in self.jobs[1:]]
        for index, (job_id, start) in enumerate(self.jobs):
            end = ends[index] if index < len(ends) else None
            after = start is None or start < checkpoint.id
            if job_id == checkpoint.job_id and after and (end is None or checkpoint.id <= end):
                return index
        return None


def checkpoint_number(metadata: bytes) -> int:
    """Read a checkpoint's number from a ``_metadata`` file (big-endian: magic, version, id).

    Raises
    ------
    GenerationError
        If the bytes are not those of such a file.

    >>> checkpoint_number(bytes.fromhex("4960672d 00000005 000000000000002a"))
    42
    """
    if len(metadata) < 16 or struct.unpack_from(">i", metadata)[0] != _MAGIC:
        raise GenerationError("not a Flink checkpoint: its _metadata file has another format")
    return int(struct.unpack_from(">q", metadata, 8)[0])


def read_checkpoint(path: FilePath) -> Checkpoint:
    """Return the checkpoint or savepoint in a folder such as ``.../<job id>/chk-N``.

    Raises
    ------
    GenerationError
        If it is not complete.
    """
    try:
        number = checkpoint_number(first_bytes(path / METADATA, 16))
    except FileNotFoundError:
        raise GenerationError(f"{path} is not a complete checkpoint: no {METADATA}") from None
    except GenerationError as error:
        raise GenerationError(f"{path}: {error}") from None
    if not _JOB_ID.fullmatch(path.parent.name):
        raise GenerationError(
            f"{path}: expected .../<job id>/chk-N or .../<job id>/savepoint-...; the parent folder "
            "names the job that wrote it"
        )
    return Checkpoint(number, path, path.parent.name)


def find_checkpoints(folder: FilePath | None) -> tuple[Checkpoint, ...]:
    """Return all complete checkpoints and savepoints below ``folder``, which has one folder per
    job.

    An incomplete one, whose job died while it was written, has no metadata and is not included.
    """
    if folder is None:
        return ()
    checkpoints = []
    for metadata in folder.glob(f"*/*/{METADATA}"):
        try:
            checkpoints.append(read_checkpoint(metadata.parent))
        except GenerationError:
            continue
    return tuple(sorted(checkpoints, key=lambda c: (c.id, str(c.path))))
