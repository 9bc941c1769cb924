"""Which rows of a snapshot's files are read: masks, folds, and what was left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paimon_features.core.errors import TableError
from paimon_features.core.types.array_types import Bools
from paimon_features.lake.reading.snapshot_content import ContentFile
from trainer_bridge.blocks.merge import unpack

MergeUnit = tuple[ContentFile, ...]
"""Files that are examined together, since they can contain the same key."""


@dataclass
class RowSelection:
    """What was found out about the files of a snapshot.

    Attributes
    ----------
    masks
        By path, a bit (least significant first) for each stored row of a file that is read in
        part only, and for each row of a fold that is.
    complete
        Files and folds of which every row is read. What is in neither was not examined: it is an
        error to read it.
    folded
        Rows of each fold before such a mask.
    layers
        For each file of a fold, the group of each of its rows, packed by
        :class:`~trainer_bridge.blocks.layers.Layers`. A fold without it reads its keys again.
    counts
        How much is not read, by reason.
    """

    masks: dict[str, bytes] = field(default_factory=dict)
    complete: set[str] = field(default_factory=set)
    folded: dict[str, int] = field(default_factory=dict)
    layers: dict[str, bytes] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def count(self, reason: str, number: int = 1) -> None:
        if number:
            self.counts[reason] = self.counts.get(reason, 0) + number

    def add(self, other: RowSelection) -> None:
        self.masks.update(other.masks)
        self.complete |= other.complete
        self.folded.update(other.folded)
        self.layers.update(other.layers)
        for reason, number in other.counts.items():
            self.count(reason, number)

    def mask(self, path: str, rows: int) -> Bools | None:
        """Return which of the rows of a file or a fold are read; None for all of them.

        Raises
        ------
        TableError
            If its rows were not examined.
        """
        if path in self.complete:
            return None
        bits = self.masks.get(path)
        if bits is None or len(bits) != -(-rows // 8):
            raise TableError(
                f"{path}: it is not known which of its {rows} rows are read; delete the folder "
                "_paimon_features/merges of the warehouse, which is a cache, and read again"
            )
        return unpack(bits, rows)


def fold_path(unit: Sequence[ContentFile]) -> str:
    """Return the name of a fold in a selection: that of its first file stands for all of them."""
    return f"fold:{unit[0].path}"
