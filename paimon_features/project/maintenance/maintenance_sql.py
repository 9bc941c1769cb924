"""Which partitions of a table need maintenance, and the statements that do it.

Each commit adds files (a commit a second over thirty partitions, sixty buckets, is five million
files a day), a snapshot, and manifests. Compaction merges the files of a bucket; expiry deletes
old snapshots and the files that only they refer to. Consumers and tags of readers, training sets
and materializers protect the snapshots they need from expiry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from paimon_features.lake.ddl import literal
from paimon_features.lake.reading.deltas import DataFile

OPTIONS = {
    # otherwise a procedure may return before its commit
    "table.dml-sync": "true",
}
"""Options for calling the procedures."""


@dataclass(frozen=True, slots=True)
class TableSize:
    """The size of a table: live files, snapshots, and all files and bytes on disk."""

    live_files: int
    snapshots: int
    files: int
    bytes: int


def to_compact(files: Iterable[DataFile], keyed: bool) -> list[tuple[tuple[str, int], ...]]:
    """Return the partitions in which a bucket has several files (or, with a key, unmerged files).

    Each as ((column, value), ...); the empty tuple is an unpartitioned table. Compacting
    a single file would rewrite it, or inspect it in vain.
    """
    several: Counter[tuple[tuple[tuple[str, int], ...], int]] = Counter()
    unmerged = set()
    for file in files:
        partition = tuple(sorted(file.partition.items()))
        several[partition, file.bucket] += 1
        if keyed and file.level == 0:
            unmerged.add(partition)
    partitions = {partition for (partition, _), count in several.items() if count > 1} | unmerged
    return sorted(partitions)


def compact_sql(table: str, keyed: bool, partitions: Iterable[tuple[tuple[str, int], ...]]) -> str:
    """Merge the files of each bucket of these partitions into one, as one commit.

    ``table`` is ``database.table``.

    >>> compact_sql("shop.tiles_spend_g1", True, [(("tile_day", 3),), (("tile_day", 4),)])
    "CALL sys.compact(`table` => 'shop.tiles_spend_g1', compact_strategy => 'full', \
partitions => 'tile_day=3;tile_day=4')"
    """
    arguments = [f"`table` => {literal(table)}"]
    if keyed:
        arguments.append("compact_strategy => 'full'")
    else:  # by default, fewer than five files are not compacted
        arguments.append("options => 'compaction.min.file-num=2'")
    chosen = ";".join(
        ",".join(f"{column}={value}" for column, value in partition)
        for partition in partitions
        if partition
    )
    if chosen:
        arguments.append(f"partitions => {literal(chosen)}")
    return f"CALL sys.compact({', '.join(arguments)})"


def expire_sql(table: str, keep_newest: int | None) -> str:
    """Expire the snapshots that the table's options no longer retain, or all but the newest ones.

    >>> expire_sql("shop.events", 5)
    "CALL sys.expire_snapshots(`table` => 'shop.events', \
options => 'snapshot.expire.limit=1000000', retain_max => 5, retain_min => 1)"
    """
    # the default of fifty is meant for a job that expires some with each commit
    arguments = [f"`table` => {literal(table)}", "options => 'snapshot.expire.limit=1000000'"]
    if keep_newest is not None:
        arguments += [f"retain_max => {keep_newest}", "retain_min => 1"]
    return f"CALL sys.expire_snapshots({', '.join(arguments)})"


def delete_tag_sql(table: str, tag: str) -> str:
    """Delete a tag, and the files that only it retained.

    >>> delete_tag_sql("shop.events", "2011-12-09 10")
    "CALL sys.delete_tag(`table` => 'shop.events', tag => '2011-12-09 10')"
    """
    return f"CALL sys.delete_tag(`table` => {literal(table)}, tag => {literal(tag)})"
