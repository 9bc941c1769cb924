"""What a reader has read so far, and where the time went."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class ReadStats:
    """Counts and seconds since the reader was made; a row that is read twice counts twice.

    ``rows_replaced`` counts rows of bad blocks, which were replaced by others.
    ``retries`` counts how often a block was fetched again after a transient error of a remote
    store.

    Seconds: ``read_s`` and ``decode_s`` were spent by all decoding threads together, on reading
    files as Arrow and on converting that to its final form; ``order_s`` and ``gather_s`` by the
    producer, on looking up which rows come next and on gathering them. For ``decode_wait_s`` the
    producer waited for blocks (or decoded one itself), for ``blocked_s`` it waited for room;
    for ``wait_s`` the consumer waited for the producer.
    """

    blocks_decoded: int = 0
    rows_decoded: int = 0
    file_bytes: int = 0
    rows_delivered: int = 0
    peak_bytes: int = 0
    rows_replaced: int = 0
    retries: int = 0
    read_s: float = 0.0
    decode_s: float = 0.0
    decode_wait_s: float = 0.0
    order_s: float = 0.0
    gather_s: float = 0.0
    blocked_s: float = 0.0
    wait_s: float = 0.0
