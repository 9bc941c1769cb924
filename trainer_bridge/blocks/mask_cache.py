"""Row selections on disk: opening a snapshot a second time reads no keys.

There is a file per set of data files, rules and condition, named by their hash. Data files never
change, so it stays valid. It can be deleted at any time.

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

import numpy as np

from trainer_bridge.blocks.data_files import DataFiles
from trainer_bridge.blocks.row_selection import MergeUnit, RowSelection, fold_path

_VERSION = 4
_PARTS = ("masks", "layers")
_KEPT = 8
"""Files in the folder of a table; the least recently used are deleted first."""


class MaskCache:
    """The stored selection of the rows of some data files under a condition (its text)."""

    def __init__(self, folder: Path, source: DataFiles, condition: str | None) -> None:
        self._folder, self._source = folder, source
        prefix = f"{source.lake.path(source.content.table)}/"
        self._names = {path: path.removeprefix(prefix) for path in source.files}
        self._names |= {f"fold:{path}": f"fold:{name}" for path, name in self._names.items()}
        self._path = folder / f"{self._key(prefix, condition)}.npz"

    def _key(self, prefix: str, condition: str | None) -> str:
        """A hash of everything that the masks depend on."""
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
        """The stored selection of exactly these units; None if it is missing or damaged."""
        try:
            with np.load(self._path, allow_pickle=False) as stored:
                head = json.loads(bytes(stored["head"]).decode())
                masks, layers = (_apart(head[name], stored[name].tobytes()) for name in _PARTS)
            with contextlib.suppress(OSError):
                os.utime(self._path)
            paths = {name: path for path, name in self._names.items()}
            found = RowSelection(
                {paths[name]: bits for name, bits in masks.items()},
                {paths[name] for name in head["complete"]},
                {paths[name]: rows for name, rows in head["folded"].items()},
                {paths[name]: steps for name, steps in layers.items()},
                head["counts"],
            )
        except (OSError, ValueError, KeyError):
            return None
        return found if self._is_of(found, units) else None

    def _is_of(self, found: RowSelection, units: Sequence[MergeUnit]) -> bool:
        """Whether a selection names the files and folds of the units, and no others."""
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
        }
        arrays = {}
        for name in _PARTS:
            head[name] = {self._names[path]: len(bits) for path, bits in parts[name].items()}
            arrays[name] = np.frombuffer(b"".join(parts[name].values()), np.uint8)
        arrays["head"] = np.frombuffer(json.dumps(head).encode(), np.uint8)
        with contextlib.suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(".part", dir=self._folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    np.savez(file, **arrays)
                os.replace(temporary, self._path)
            except BaseException:
                os.unlink(temporary)
                raise
            _trim(self._folder)


def _apart(sizes: Mapping[str, int], together: bytes) -> dict[str, bytes]:
    cuts = [0, *itertools.accumulate(sizes.values())]
    return {p: together[a:b] for p, (a, b) in zip(sizes, pairwise(cuts), strict=True)}


def _trim(folder: Path) -> None:
    found = sorted(folder.glob("*.npz"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in found[_KEPT:]:
        path.unlink(missing_ok=True)
