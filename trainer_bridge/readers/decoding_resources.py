"""Threads, memory and statistics: with what a reader decodes the blocks of its snapshot."""

from __future__ import annotations

from trainer_bridge.readers.autotune import Autotune, Choices, most_threads
from trainer_bridge.readers.block_store import BlockStore
from trainer_bridge.readers.opened_snapshot import OpenedSnapshot
from trainer_bridge.readers.read_plan import ReadPlan
from trainer_bridge.readers.read_session import CHUNK_ROWS
from trainer_bridge.readers.read_stats import ReadStats


class DecodingResources:
    """The decoded blocks of one reader, its threads, and what it has read so far.

    Attributes
    ----------
    stats
        What was read so far.
    threads
        Decoding threads; with a tuner the most that it may choose.
    tuner
        Chooses threads, chunk size and prefetch depth, with ``threads="auto"``.
    store
        The decoded blocks.
    """

    store: BlockStore

    def __init__(self, plan: ReadPlan, snapshot: OpenedSnapshot) -> None:
        self.stats = ReadStats()
        self.tuner: Autotune | None = None
        threads = plan.reading.threads
        if threads == "auto":
            threads = most_threads(plan.lake.storage.is_remote)
            self.tuner = Autotune(Choices(threads, 4 * CHUNK_ROWS, 8))
        self.threads: int = threads
        self._byte_budget = plan.reading.byte_budget
        self.use(snapshot)

    def use(self, snapshot: OpenedSnapshot) -> None:
        """Decode the blocks of this snapshot from now on."""
        self.store = BlockStore(
            snapshot.layout, snapshot.schema, snapshot.form, self._byte_budget, self.stats
        )

    def continue_from(self, previous: DecodingResources) -> None:
        """Continue the statistics and the tuning of another reader."""
        self.stats = self.store.stats = previous.stats
        self.tuner = previous.tuner
