"""Which rows of a snapshot's files are read: masks, folds, and what was left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from paimon_features.tables.content import ContentFile

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
    folded
        Rows of each fold before such a mask.
    layers
        For each file of a fold, the group of each of its rows, packed by
        :class:`~trainer_bridge.blocks.layers.Layers`. A fold without it reads its keys again.
    counts
        How much is not read, by reason.
    """

    masks: dict[str, bytes] = field(default_factory=dict)
    folded: dict[str, int] = field(default_factory=dict)
    layers: dict[str, bytes] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def count(self, reason: str, number: int = 1) -> None:
        if number:
            self.counts[reason] = self.counts.get(reason, 0) + number

    def add(self, other: RowSelection) -> None:
        self.masks.update(other.masks)
        self.folded.update(other.folded)
        self.layers.update(other.layers)
        for reason, number in other.counts.items():
            self.count(reason, number)


def fold_path(unit: Sequence[ContentFile]) -> str:
    """The name of a fold in a selection: that of its first file stands for all of them."""
    return f"fold:{unit[0].path}"
