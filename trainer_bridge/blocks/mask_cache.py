"""Row selections on disk: opening a snapshot a second time reads no keys.

There is a file per set of data files, rules and condition, named by their hash. Data files never
change, so it stays valid. It can be deleted at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import tempfile
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from trainer_bridge.blocks.data_files import DataFiles
from trainer_bridge.blocks.row_selection import RowSelection

_VERSION = 3
_PARTS = ("masks", "layers")
_KEPT = 8
"""Files in the folder of a table; the least recently used are deleted first."""


def mask_key(source: DataFiles, condition: str | None) -> str:
    """A hash of everything that the masks depend on."""
    digest = hashlib.blake2b(digest_size=16)
    rules = source.content.rules
    head = (rules.engine, rules.keys, rules.sequence, rules.ascending, rules.ignore_delete)
    # a fold's rows depend on its functions only through a condition
    read = (head, sorted(rules.functions.items()), sorted(rules.delimiters.items()), condition)
    digest.update(repr((_VERSION, read)).encode())
    for path in sorted(source.files):
        file = source.files[path]
        vector = file.deletion and (file.deletion.dv_index_path, file.deletion.offset)
        parts = (file.name, file.rows, file.size, vector, file.merges, file.place)
        digest.update(repr(parts).encode())
    return digest.hexdigest()


def load_masks(folder: Path, key: str) -> RowSelection | None:
    """What :func:`save_masks` stored; None if it is missing or damaged."""
    path = folder / f"{key}.npz"
    try:
        with np.load(path, allow_pickle=False) as stored:
            head = json.loads(bytes(stored["head"]).decode())
            masks, layers = (_apart(head[name], stored[name].tobytes()) for name in _PARTS)
        with contextlib.suppress(OSError):
            os.utime(path)
    except (OSError, ValueError, KeyError):
        return None
    return RowSelection(masks, head["folded"], layers, head["counts"])


def _apart(sizes: Mapping[str, int], together: bytes) -> dict[str, bytes]:
    cuts = [0, *itertools.accumulate(sizes.values())]
    return {p: together[a:b] for p, (a, b) in zip(sizes, pairwise(cuts), strict=True)}


def save_masks(folder: Path, key: str, opened: RowSelection) -> None:
    """Store a selection; does nothing if the folder cannot be written."""
    parts = {"masks": opened.masks, "layers": opened.layers}
    head: dict[str, Any] = {"folded": opened.folded, "counts": opened.counts}
    arrays = {}
    for name in _PARTS:
        head[name] = {path: len(found) for path, found in parts[name].items()}
        arrays[name] = np.frombuffer(b"".join(parts[name].values()), np.uint8)
    arrays["head"] = np.frombuffer(json.dumps(head).encode(), np.uint8)
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(".part", dir=folder)
        try:
            with os.fdopen(handle, "wb") as file:
                np.savez(file, **arrays)
            os.replace(temporary, folder / f"{key}.npz")
        except BaseException:
            os.unlink(temporary)
            raise
        _trim(folder)


def _trim(folder: Path) -> None:
    found = sorted(folder.glob("*.npz"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in found[_KEPT:]:
        path.unlink(missing_ok=True)
