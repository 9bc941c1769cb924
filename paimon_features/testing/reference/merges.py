"""Reference implementation of merging two values of a partial: as in the lake, and as elsewhere."""

from __future__ import annotations

import struct
from collections import Counter
from typing import Any

from paimon_features.definitions.aggregates import Merge, Partial


def merged(partial: Partial, left: Any, right: Any) -> Any:
    """Merge two values of a partial as everywhere outside the lake.

    The result is canonical for lists and sketches, also for one value and a null.
    """
    if partial.merge in (Merge.TOP, Merge.BOTTOM):
        items = sorted(items_of(left) + items_of(right), reverse=partial.merge is Merge.TOP)
        return ",".join(items[: partial.limit]) or None
    if partial.merge is Merge.COUNTS:
        counts = Counter(counted(left))
        counts.update(counted(right))
        texts = [item if n == 1 else f"+{n}:{item}" for item, n in sorted(counts.items())]
        return ",".join(texts) or None
    if partial.merge is Merge.REGISTERS:
        return sketch_of(words_of(left) | words_of(right), best_only=True)
    if left is None or right is None:
        return right if left is None else left
    if partial.merge is Merge.MIN:
        return min(left, right)
    if partial.merge is Merge.MAX:
        return max(left, right)
    total = left + right
    return (total + 2**63) % 2**64 - 2**63 if isinstance(total, int) else total


def lake_merged(partial: Partial, left: Any, right: Any) -> Any:
    """Merge two values of a partial as the lake does within a tile.

    It concatenates lists unchanged, and unions sketches without interpreting them.
    """
    if left is None or right is None:
        return right if left is None else left
    if partial.merge in (Merge.TOP, Merge.BOTTOM, Merge.COUNTS):
        return f"{left},{right}"
    if partial.merge is Merge.REGISTERS:
        return sketch_of(words_of(left) | words_of(right), best_only=False)
    return merged(partial, left, right)


def items_of(text: str | None) -> list[str]:
    """Return the items of a list."""
    return [] if text is None else text.split(",")


def counted(text: str | None) -> dict[str, int]:
    """Return the items of a list with counts, and the count of each."""
    counts: Counter[str] = Counter()
    for item in items_of(text):
        if item.startswith("+") and item[1].isdigit():
            number, _, item = item[1:].partition(":")
            counts[item] += int(number)
        else:
            counts[item] += 1
    return counts


def words_of(sketch: bytes | None) -> set[int]:
    """Return the 16-bit numbers of a sketch in one array container."""
    if sketch is None:
        return set()
    cookie, containers, key, more, offset = struct.unpack_from("<IIHHI", sketch)
    assert (cookie, containers, key, offset) == (12346, 1, 0, 16)
    return set(struct.unpack_from(f"<{more + 1}H", sketch, 16))


def sketch_of(words: set[int], best_only: bool) -> bytes | None:
    """Return the sketch of 16-bit numbers.

    ``best_only`` keeps the greatest rank of each register.
    """
    if best_only:
        ranks: dict[int, int] = {}
        for word in words:
            register, rank = word & 0xFF0F, word >> 4 & 15
            ranks[register] = max(ranks.get(register, 0), rank)
        words = {register | rank << 4 for register, rank in ranks.items()}
    if not words:
        return None
    head = struct.pack("<IIHHI", 12346, 1, 0, len(words) - 1, 16)
    return head + struct.pack(f"<{len(words)}H", *sorted(words))
