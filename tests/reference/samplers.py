"""Reference implementations of the samplers: the draws of an epoch, in plain loops."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from math import expm1, inf, isqrt, log, log1p, log2
from typing import Any

_M = (1 << 64) - 1
_G, _C1, _C2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def weighted(weights: Sequence[float], num_samples: int, seed: int, epoch: int) -> list[int]:
    """With replacement: the first cumulative weight above each uniform share of the total."""
    key = _key(seed, epoch, 0x5E1)
    return [_located(weights, _uniform(key, p)) for p in range(num_samples)]


def weighted_without_replacement(
    weights: Sequence[float], num_samples: int, seed: int, epoch: int
) -> list[int]:
    """The rows of least ``log E - log w``, in a random order."""
    key = _key(seed, epoch, 0x5E1)
    keys = {
        row: log(-log1p(-_uniform(key, row))) - log(weight)
        for row, weight in enumerate(weights)
        if weight
    }
    chosen = sorted(sorted(keys, key=lambda row: (keys[row], row))[:num_samples])
    return [chosen[_permute(p, num_samples, _key(key, 1))] for p in range(num_samples)]


def chances_without_replacement(
    weights: Sequence[float], num_samples: int, seed: int, epoch: int
) -> list[float]:
    """The chance of each row to be drawn, given the least key that was not."""
    key = _key(seed, epoch, 0x5E1)
    keys = sorted(
        -log1p(-_uniform(key, row)) / weight for row, weight in enumerate(weights) if weight
    )
    beyond = keys[num_samples] if num_samples < len(keys) else inf
    return [-expm1(-weight * beyond) if weight else 0.0 for weight in weights]


def importance(
    merits: Sequence[float], num_samples: int, uniform_share: float, seed: int, epoch: int
) -> list[int]:
    """Draw a share uniformly from all rows, the rest in proportion to the merits."""
    key, rows = _key(seed, epoch, 0xD1F), len(merits)
    drawn = []
    for p in range(num_samples):
        share = _uniform(key, p)
        from_all = not any(merits) or _uniform(_key(key, 1), p) < uniform_share
        drawn.append(int(share * rows) if from_all else _located(merits, share))
    return drawn


def rounded_score(score: float) -> float:
    """The middle of a score's bin: an eighth of a doubling."""
    if score < 2**-20:
        return 0.0
    return float(2 ** ((min(int((log2(score) + 20) // 0.125), 254) + 0.5) / 8 - 20))


def poisson(
    chances: Sequence[float], seed: int, epoch: int, keys: Sequence[int] | None = None
) -> list[int]:
    """Accept each row by its own hash; in a random order."""
    key = _key(seed, epoch, 0x905)
    rows = [
        row
        for row, chance in enumerate(chances)
        if _uniform(key, row if keys is None else keys[row]) < chance
    ]
    return [rows[_permute(p, len(rows), _key(seed, epoch, 0x906))] for p in range(len(rows))]


def interleaved(counts: Sequence[int], key: int) -> list[tuple[int, int]]:
    """Return (class, number of earlier rows of it) by position: a recursion over Huffman's tree."""
    heap: list[tuple[int, int, Any]] = [(n, c, None) for c, n in enumerate(counts) if n]
    heapq.heapify(heap)
    number = len(counts)
    while len(heap) > 1:
        small, large = heapq.heappop(heap), heapq.heappop(heap)
        heapq.heappush(heap, (small[0] + large[0], number, (small, large)))
        number += 1

    def sequence(node: tuple[int, int, Any]) -> list[tuple[int, int]]:
        size, name, parts = node
        if parts is None:
            return [(name, i) for i in range(size)]
        few, many = (sequence(part) for part in parts)
        result: list[tuple[int, int]] = []
        rest = iter(many)
        for cell, item in enumerate(few):
            start, stop = cell * size // len(few), (cell + 1) * size // len(few)
            slot = start + ((_keys_of(key, name, cell) >> 32) * (stop - start) >> 32)
            for place in range(start, stop):
                result.append(item if place == slot else next(rest))
        return result

    return sequence(heap[0])


def stratified(labels: Sequence[Any], counts: Sequence[int], seed: int, epoch: int) -> list[int]:
    """``counts[c]`` rows of each class, interleaved."""
    key = _key(seed, epoch, 0x57A)
    return [_of_class(labels, c, i, key) for c, i in interleaved(counts, key)]


def balanced(
    labels: Sequence[Any], batch_size: int, num_batches: int, seed: int, epoch: int
) -> list[list[int]]:
    """Batch by batch: an equal part of each class, then the remaining places in rotation."""
    key, many = _key(seed, epoch, 0xBA1), len(set(labels))
    each, extra = divmod(batch_size, many)
    turn, had, batches = 0, [0] * many, []
    for number in range(num_batches):
        filled = [(c, had[c] + i) for i in range(each) for c in range(many)]
        for c in range(many):
            had[c] += each
        for _ in range(extra):
            c = turn % many
            filled.append((c, had[c]))
            had[c] += 1
            turn += 1
        places = [
            _permute(offset, batch_size, _keys_of(_key(key, 2), number))
            for offset in range(batch_size)
        ]
        batches.append([_of_class(labels, *filled[place], key) for place in places])
    return batches


def hard(
    scores: Sequence[float], num_samples: int, ratio: float, seed: int, epoch: int
) -> list[int]:
    """Passes over all rows; then, sorted, the hardest rows and some of the others."""
    passes, remainder = divmod(num_samples, len(scores))
    wanted, key = round(ratio * remainder), _key(seed, epoch, 0x4A2)
    ranked = _ranked(scores, _key(seed, 0x4A2))
    others, hardest = (sorted(part) for part in _cut(ranked, len(scores) - wanted))
    drawn = []
    for p in range(num_samples):
        number, offset = divmod(p, len(scores))
        if number < passes:
            drawn.append(_permute(offset, len(scores), _keys_of(_key(key, 3), number)))
            continue
        place = _permute(offset, remainder, _key(key, 1))
        if place < wanted:
            drawn.append(hardest[place])
        else:
            drawn.append(others[_permute(place - wanted, len(others), _key(key, 2))])
    return drawn


def curriculum(
    scores: Sequence[float], pace: dict[int, int], num_samples: int, seed: int, epoch: int
) -> list[int]:
    """``pace`` maps the number of draws to how many of the easiest rows are used from then on."""
    ranked = _ranked(scores, _key(seed, 0xC44))
    steps = list(pace)
    ends = sorted({0, *pace.values(), len(scores)})
    arranged = [row for low, high in itertools.pairwise(ends)
                for row in sorted(ranked[low:high])]  # fmt: skip
    drawn = []
    for t in range(epoch * num_samples, (epoch + 1) * num_samples):
        stage = max(i for i, step in enumerate(steps) if step <= t)
        cycle, place = divmod(t - steps[stage], pace[steps[stage]])
        key = _keys_of(_key(seed, 0xC45), stage, cycle)
        drawn.append(arranged[_permute(place, pace[steps[stage]], key)])
    return drawn


def _ranked(scores: Sequence[float], key: int) -> list[int]:
    """Rows by score, equal scores in a random order."""
    ties: dict[float, list[int]] = {}
    for row, score in enumerate(scores):
        ties.setdefault(score, []).append(row)
    ranked = []
    for score in sorted(ties):
        rows = ties[score]
        ranked += sorted(rows, key=lambda row: _permute(rows.index(row), len(rows), key))
    return ranked


def _cut(rows: list[int], at: int) -> tuple[list[int], list[int]]:
    return rows[:at], rows[at:]


def _of_class(labels: Sequence[Any], number: int, i: int, key: int) -> int:
    """Return the i-th row of a class, cycle after cycle."""
    wanted = sorted(set(labels))[number]
    rows = [row for row, label in enumerate(labels) if label == wanted]
    cycle, place = divmod(i, len(rows))
    return rows[_permute(place, len(rows), _keys_of(_key(key, 1), number, cycle))]


def _located(weights: Sequence[float], share: float) -> int:
    whole = 0.0
    for weight in weights:
        whole += weight
    total, last = 0.0, 0
    for row, weight in enumerate(weights):
        total += weight
        if weight:
            last = row
        if total > share * whole:
            return row
    return last


def _mix(z: int) -> int:
    z = (z ^ z >> 30) * _C1 & _M
    z = (z ^ z >> 27) * _C2 & _M
    return z ^ z >> 31


def _key(*parts: int) -> int:
    key = 0
    for part in parts:
        key = _mix((key ^ part & _M) + _G & _M)
    return key


def _keys_of(key: int, *numbers: int) -> int:
    for number in numbers:
        key = _mix(number * _G + key & _M)
    return key


def _uniform(key: int, number: int) -> float:
    return float((_mix(number * _G + key & _M) >> 11) * 2.0**-53)


def _permute(x: int, n: int, key: int) -> int:
    radix = (isqrt(n - 1) + 1, -(-n // (isqrt(n - 1) + 1)))
    while True:
        half = list(divmod(x, radix[1]))
        for k in range(16 if n < 1024 else 6):
            h = (half[1 - k % 2] + key + k * _G) * _C1 & _M
            h = ((h ^ h >> 29) * _C2 & _M) >> 32
            half[k % 2] = (half[k % 2] + (h * radix[k % 2] >> 32)) % radix[k % 2]
        x = half[0] * radix[1] + half[1]
        if x < n:
            return x
