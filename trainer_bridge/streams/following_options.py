"""The options that a reader that follows a table shares with a ``SnapshotReader``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from paimon_features.core.errors import ConfigurationError
from trainer_bridge.batches.vocabulary import Vocabulary
from trainer_bridge.readers.read_plan import ReaderKeywords


class FollowingKeywords(TypedDict, total=False):
    """These keywords of :class:`trainer_bridge.FollowingReader`; documented there."""

    batch_size: int | None
    global_batch_size: int | None
    rank: int
    world_size: int
    pad_last: bool
    seed: int
    shuffle: bool
    canonical_streams: int
    block_rows: int
    open_bytes: int
    columns: Collection[str] | None
    where: str | None
    output: Literal["numpy", "arrow"]
    fill: Mapping[str, float] | None
    masks: Collection[str]
    item_masks: Collection[str]
    float_dtype: str | None
    shapes: Mapping[str, Sequence[int]] | None
    codes: Mapping[str, Vocabulary | Sequence[str]]
    scaled: Collection[str]
    threads: int | Literal["auto"]
    byte_budget: int
    cache: str | Path | None


def check_options(options: Mapping[str, Any]) -> None:
    """Raise for options that a reader that follows a table does not have.

    Raises
    ------
    ConfigurationError
        For those of a ``SnapshotReader`` that have no meaning here.
    TypeError
        For unknown ones.
    """
    of_following, of_snapshots = FollowingKeywords.__annotations__, ReaderKeywords.__annotations__
    for name in options:
        if name in of_following:
            continue
        if name not in of_snapshots:
            raise TypeError(f"FollowingReader() got an unexpected keyword argument {name!r}")
        raise ConfigurationError(
            f"{name}= is for SnapshotReader; one that follows a table goes from commit to "
            "commit (start=, until_snapshot=), leaves no row out, and a bad file is an error"
        )
    codes = options.get("codes", ())
    if codes and not isinstance(codes, Mapping):
        raise ConfigurationError(
            f"codes={list(codes)}: the texts of each commit would have codes of their own; declare "
            "them for all commits: codes={column: Vocabulary.of([...])}"
        )
