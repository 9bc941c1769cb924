"""Row selections on disk: opening a snapshot a second time reads no keys.

There is a file per set of data files, rules and condition, named by their hash. Data files never
change, so it stays valid. It can be deleted at any time. It contains a digest, one line of JSON,
the masks and the layers; a file that does not match its digest counts as missing.

Files are named relative to the folder of their table: a warehouse that was moved, restored
elsewhere or mounted under another path has other paths, and the same masks.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from trainer_bridge.blocks.data_files import DataFiles
from trainer_bridge.blocks.row_selection import MergeUnit, RowSelection, fold_path

_VERSION = 4
_DIGEST_BYTES = 16
_KEPT = 8
"""Files in the folder of a table; the least recently used are deleted first."""


class MaskCache:
    """The stored selection of the rows of some data files under a condition (its text)."""

    def __init__(self, folder: Path, source: DataFiles, condition: str | None) -> None:
        self._folder, self._source = folder, source
        prefix = f"{source.lake.path(source.content.table)}/"
        self._names = {path: path.removeprefix(prefix) for path in source.files}
        self._names |= {f"fold:{path}": f"fold:{name}" for path, name in self._names.items()}
        self._path = folder / f"{self._key(prefix, condition)}.masks"

    def _key(self, prefix: str, condition: str | None) -> str:
        """Return a hash of everything that the masks depend on."""
        digest = hashlib.blake2b(digest_size=16)
        rules = self._source.content.rules
        head = (rules.engine, rules.keys, rules.sequence, rules.ascending, rules.ignore_delete)
        # a fold's rows depend on its functions only through a condition
        read = (head, sorted(rules.functions.items()), sorted(rules.delimiters.items()), condition)
        digest.update(repr((_VERSION, read)).encode())
        for path in sorted(self._source.files):
            file = self._source.files[path]
            vector = file.deletion and (
                file.deletion.dv_index_path.removeprefix(prefix),
                file.deletion.offset,
            )
            parts = (self._names[path], file.rows, file.size, vector, file.merges, file.place)
            digest.update(repr(parts).encode())
        return digest.hexdigest()

    def load(self, units: Sequence[MergeUnit]) -> RowSelection | None:
        """Return the stored selection of exactly these units; None if it is missing or damaged."""
        try:
            head, body = _parsed(self._path.read_bytes())
            masks = _apart(head["masks"], body[: head["layers_at"]])
            layers = _apart(head["layers"], body[head["layers_at"] :])
            with contextlib.suppress(OSError):
                os.utime(self._path)
            paths = {name: path for path, name in self._names.items()}
            selection = RowSelection(
                {paths[name]: bits for name, bits in masks.items()},
                {paths[name] for name in head["complete"]},
                {paths[name]: rows for name, rows in head["folded"].items()},
                {paths[name]: steps for name, steps in layers.items()},
                head["counts"],
            )
        except (OSError, _DamagedError):
            return None
        return selection if self._is_of(selection, units) else None

    def _is_of(self, found: RowSelection, units: Sequence[MergeUnit]) -> bool:
        """Return True if a selection names the files and folds of the units, and no others."""
        merged = [unit for unit in units if unit[0].merges]
        folds = merged if self._source.content.rules.folds else []
        folded = {fold_path(unit) for unit in folds}
        single = {file.path for unit in units for file in unit} - {
            file.path for unit in folds for file in unit
        }
        layered = [unit for unit in folds if unit[0].path in found.layers]
        return (
            {*found.masks, *found.complete} == folded | single
            and set(found.folded) == folded
            and set(found.layers) == {file.path for unit in layered for file in unit}
        )

    def save(self, found: RowSelection) -> None:
        """Store a selection; does nothing if the folder cannot be written."""
        parts = {"masks": found.masks, "layers": found.layers}
        head: dict[str, Any] = {
            "complete": sorted(self._names[path] for path in found.complete),
            "folded": {self._names[path]: rows for path, rows in found.folded.items()},
            "counts": found.counts,
            "layers_at": sum(map(len, found.masks.values())),
        }
        for name, bits_of in parts.items():
            head[name] = {self._names[path]: len(bits) for path, bits in bits_of.items()}
        line = json.dumps(head).encode() + b"\n"
        body = [line, *found.masks.values(), *found.layers.values()]
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for part in body:
            digest.update(part)
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(".part", dir=self._folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(digest.digest())
                    file.writelines(body)
                os.replace(temporary, self._path)
            except BaseException:
                os.unlink(temporary)
                raise
            _trim(self._folder)


class _DamagedError(Exception):
    """The file is not what was written."""


def _parsed(content: bytes) -> tuple[dict[str, Any], memoryview]:
    """Return the first line of a file, and what follows it."""
    stored, text = content[:_DIGEST_BYTES], memoryview(content)[_DIGEST_BYTES:]
    # nothing is parsed that is not what was written, so nothing can fail later
    if hashlib.blake2b(text, digest_size=_DIGEST_BYTES).digest() != stored:
        raise _DamagedError
    end = content.index(b"\n", _DIGEST_BYTES)
    head: dict[str, Any] = json.loads(content[_DIGEST_BYTES:end])
    return head, memoryview(content)[end + 1 :]


def _apart(sizes: Mapping[str, int], together: memoryview) -> dict[str, bytes]:
    cuts = [0, *itertools.accumulate(sizes.values())]
    return {p: bytes(together[a:b]) for p, (a, b) in zip(sizes, pairwise(cuts), strict=True)}


def _trim(folder: Path) -> None:
    files = sorted(folder.glob("*.masks"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in (*files[_KEPT:], *folder.glob("*.npz")):  # an earlier version's files
        path.unlink(missing_ok=True)
