"""Calls of a core with random bytes, in a process of its own: it must return or raise, never crash.

    python tests/core/native/hostile_calls.py CORE.so SEED CASES

Run by ``test_sanitized.py`` with a core that AddressSanitizer and UBSan watch. Buffers are NumPy
arrays of their exact size, so that a read or a write behind their end is seen.
"""

from __future__ import annotations

import importlib.util
import random
import sys
from typing import Any


def load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("_core", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(path: str, seed: str, cases: str) -> None:
    """Make the calls, and print what came of them."""
    sys.modules["paimon_features.core.native._core"] = core = load(path)
    import numpy as np

    from paimon_features.core import native
    from paimon_features.serving.reading.view_results import ViewPlan
    from tests.generators import random_view
    from tests.stored_rows import StoredRows

    assert vars(native)["CORE"] is core
    rng = random.Random(int(seed))
    now_ms = 1_700_000_123_456
    outcomes = {"returned": 0, "raised": 0}
    words = (0, 1, -1, 2, 3, 7, 255, 2**31, 2**32, 2**53 + 1, 2**62, 2**63 - 1, -(2**63))

    def array(count: int, most: int | None = None) -> Any:
        numbers = [
            rng.choice(words) if most is None or rng.random() < 0.02 else rng.randrange(most)
            for _ in range(count)
        ]
        return np.array(numbers, np.int64)

    def damaged(data: bytes) -> bytes:
        """The same bytes with some of them changed, cut or prolonged."""
        out = bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 8))):
            kind = rng.randrange(4)
            if kind == 0 and out:
                out[rng.randrange(len(out))] = rng.randrange(256)
            elif kind == 1 and len(out) >= 8:
                at = rng.randrange(len(out) // 8) * 8
                out[at : at + 8] = (rng.choice(words) % 2**64).to_bytes(8, "little")
            elif kind == 2:
                del out[rng.randrange(len(out) + 1) :]
            else:
                out += rng.randbytes(rng.choice((1, 8, 64)))
        return bytes(out)

    def shifted(data: Any) -> Any:
        """The same bytes, now and then where no word begins."""
        return memoryview(b"." + bytes(data))[1:] if rng.random() < 0.05 else data

    class Damaging:
        """The core, but with one of the arguments of ``fold`` damaged."""

        def fold(self, *arguments: Any) -> Any:
            changed = list(arguments)
            at = rng.choice((0, 0, 0, 1, 1, 2, 2, 3, 3, 3, 4, 5, 6, 7, 8, 9, 10, 11))
            if at == 0:
                changed[0] = [r if r is None else damaged(r) for r in changed[0]]
            elif at == 1:
                bound = rng.choice((-1, 0, 1, 99, 2**40))
                start, stop = changed[at]
                changed[at] = rng.choice(((bound, stop), (start, bound), (start,), bound, None))
            elif at == 9:
                changed[at] = bytearray(max(0, len(changed[at]) + rng.choice((-1, 1, 8))))
            elif at == 8:  # written to: another size
                kind = changed[at].dtype
                changed[at] = np.zeros(max(0, changed[at].size + rng.choice((-1, 1, 8))), kind)
            elif at == 10:
                changed[at] = rng.randbytes(rng.randrange(9))
            elif at == 11:
                changed[at] = tuple(array(rng.randrange(3)) for _ in changed[at])
            elif at < 8:
                changed[at] = shifted(damaged(bytes(changed[at])))
            return core.fold(*changed)

        def __getattr__(self, name: str) -> Any:
            return getattr(core, name)

    def fold() -> None:
        view = random_view(rng).compiled
        if not view.is_online:
            return
        rows = StoredRows(view)
        plan = ViewPlan(rows.variant, view.features)
        if plan._native is None:
            return
        found = rows.random_records(rng, now_ms, rng.choice((1, 3)))
        for _ in range(20):
            plan._native._core = Damaging()
            with np.errstate(all="ignore"):
                plan.fold(rows.read(found).part(0, len(found)), now_ms, rng.choice((set(), {0})))

    def move() -> None:
        size, count = rng.choice((1, 4, 8, 24)), rng.randrange(5)
        source, out = (rng.randbytes(size * rng.randrange(6)) for _ in range(2))
        numbers = [None if rng.random() < 0.3 else array(count, 5) for _ in range(2)]
        core.move(source, numbers[0], size, bytearray(out), numbers[1])

    def permute() -> None:
        count = rng.randrange(6)
        size = rng.choice((1, 2, 5, 1_000, 10**6))
        a = int(size**0.5) + 1
        parts = [array(count, size), *(array(rng.choice((1, count)), n) for n in (a, a, 9))]
        sizes = np.full(count, size) if rng.random() < 0.8 else array(count)
        radices = (np.array([a]), np.array([-(-size // a)])) if rng.random() < 0.8 else parts[1:3]
        core.permute(parts[0], sizes, *radices, parts[3], np.empty(count, np.int64))

    def loader() -> None:
        """Order, sort, pick and interleave rows with buffers that may not fit."""
        count, blocks = rng.randrange(6), rng.randrange(1, 4)
        firsts = np.cumsum(array(blocks + 1, 4))
        rows = array(count, 9)
        out = [np.empty(count + rng.choice((0, 0, 0, 1)), np.int64) for _ in range(2)]
        core.group(rows, firsts, np.empty(blocks, np.int64), *out)
        size = rng.choice((1, 4, 80))
        stored = [rng.choice((None, rng.randbytes(size * rng.randrange(5)))) for _ in range(blocks)]
        core.pick(stored, firsts, rows, size, bytearray(size * count))

    def locate() -> None:
        values, keys = (array(rng.randrange(60), 99) for _ in range(2))
        if rng.random() < 0.5:
            values.sort()
        core.locate(values, keys, np.empty(len(keys) + rng.choice((0, 0, 0, 1)), np.int64))

    def buckets() -> None:
        width, rows = rng.choice((0, 1, 1, 2, 60, 1_025)), rng.randrange(20)
        slots = np.empty(width * rows + rng.choice((0, 0, 0, 1)), np.int64)
        count = rng.choice((0, 1, 7, 2**31 - 1, 2**31))
        core.buckets(slots, width, count, np.empty(rows, np.int32))

    def order() -> None:
        count, pieces, streams = rng.randrange(6), rng.randrange(1, 4), rng.randrange(1, 4)
        words = [array(pieces, 9) for _ in range(6)]
        if rng.random() < 0.8:
            words[1] = np.full(pieces, 4)
            words[2] = words[3] = np.full(pieces, 2)
        out = np.empty(count, np.int64)
        cuts = array(streams + 1, 9)
        if rng.random() < 0.05:
            streams = rng.choice((0, -1, 2**31, 2**63 - 1))
        core.order(shifted(array(count, 9)), streams, cuts, tuple(words), out)

    def interleave() -> None:
        size, width, count = rng.choice((1, 2, 3, 8)), rng.randrange(1, 18), rng.randrange(200)
        columns = [rng.randbytes(size * count) for _ in range(width)]
        if rng.random() < 0.2:
            columns[-1] += b"1"
        stride = width + rng.choice((0, 0, 1, 8))
        first = rng.choice((0, stride - width, stride))
        core.interleave(columns, size, np.empty(size * stride * count, np.uint8), first, stride)

    def pages() -> None:
        content = damaged(bytes.fromhex("150415808010158080104c15d00f1504000015ac"))
        content += rng.randbytes(rng.randrange(40))
        core.pages(content, rng.choice((0, 0, 0, 1, 30, -1)), len(content) + rng.choice((0, 0, 1)))

    def times() -> None:
        core.times_json(array(rng.randrange(9), 253_402_300_800_000))

    def reply() -> None:
        """Columns of numbers, bits and bytes of JSON that may be shorter than the rows."""
        rows, columns = rng.randrange(5), rng.randrange(4)
        contents = bytes(rng.choice((0, 1, 1, 2, rng.randrange(256))) for _ in range(columns))
        values = []
        for _ in range(columns + rng.choice((0, 0, 0, 1, -1))):
            floats = [rng.choice((rng.uniform(0, 1e16), rng.random(), 1.25)) for _ in range(rows)]
            values.append(np.array(floats) if rng.random() < 0.7 else array(rows + 1))
        valid = [rng.choice((None, None, rng.randbytes(rows), b"")) for _ in values]
        endings = tuple(rng.randbytes(rng.randrange(9)) for _ in range(2))
        groups = bytes(rng.choice((0, 1, 1, 0, rng.randrange(256))) for _ in range(columns))
        stop = rng.choice((rows, rows, rows, rows + 1, 2**40, -1))
        core.reply_json(
            rng.randbytes(rng.randrange(9)), tuple(values), tuple(valid), shifted(contents),
            endings, groups, rng.choice((0, 0, 1, -1)), stop,
        )  # fmt: skip

    def place() -> None:
        """Keys from values of any type, and stems that may be none or no bytes."""
        texts = ("", "a|b", "\\", "1234567", "12345678", "\ud800", "é" * 40, "\0" * 9)
        kind = rng.choice((0, 1, 2, 2, rng.randrange(-3, 9)))
        numbers = (*words, True, None, 2**80, -(2**31))
        own, other = (texts, numbers) if kind == 2 else (numbers, texts)
        values = [
            rng.choice(own if rng.random() < 0.98 else other) for _ in range(rng.choice((0, 1, 9)))
        ]
        buckets = rng.choice((1, 2, 50, 0))
        stems: tuple[Any, ...] = tuple(rng.choice((b"", b"stem:" * 9)) for _ in range(buckets))
        markers = stems if rng.random() < 0.9 else stems[1:]
        if rng.random() < 0.05 and stems:
            stems = (None, *stems[1:])
        core.place(values, kind, stems, markers, rng.choice((b"state", None)))

    def reply_folded() -> None:
        """Words, validity and outputs that may be of other sizes than the rows say."""
        rows, places, outputs = rng.randrange(1, 5), rng.randrange(1, 6), rng.randrange(5)
        numbers = array(rows * places, 253_402_300_800_000)
        valid = bytes(rng.choice((0, 1)) for _ in range(rows * places - rng.choice((0, 0, 0, 1))))
        kinds = array(outputs, 2 * places)
        start = rng.choice((0, 0, 0, 1, -1))
        core.reply_folded(
            rng.randbytes(rng.randrange(9)), numbers, valid, kinds,
            rng.choice((0, places - 1, places - 1, places, -1, 2**62)),
            rng.choice((rows, rows, rows, rows + 1, 0, 2**60)), start,
            rng.choice((rows, rows, rows, rows + 1, 2**40)), rng.randbytes(rng.randrange(9)),
            rng.randbytes(rng.randrange(3)),
        )  # fmt: skip

    def count() -> None:
        found = [rng.choice((None, rng.randbytes(rng.randrange(99)))) for _ in range(4)]
        core.count(found, array(rng.choice((8, 9)), 4))

    def records() -> None:
        """Unpack damaged records, and pack cells of any bytes."""
        rows = StoredRows(random_view(rng).compiled)
        layout = rows.variant.layout
        found = [r for r in rows.random_records(rng, now_ms, 4) if r is not None]
        for _ in range(40):
            broken = [damaged(r) if rng.random() < 0.5 else r for r in found]
            of = layout.words if rng.random() < 0.9 else damaged(layout.words)
            out = np.empty(rng.choice((0, 1, 300)) * layout.cell.itemsize, np.uint8)
            core.unpack(of, broken, out)
        read = layout.decode(found)
        for _ in range(10):
            cells = bytearray(read.cells.rows.tobytes())
            for _ in range(rng.choice((0, 1, 30)) if cells else 0):
                cells[rng.randrange(len(cells))] = rng.randrange(256)
            sizes = np.empty(len(found), np.int64)
            offsets = read.offsets if rng.random() < 0.8 else array(len(found) + 1, 9)
            out = np.empty(len(cells) + rng.choice((0, 0, 0, 8)), np.uint8)
            core.pack(layout.words, bytes(cells), offsets, array(len(found)), out, sizes)

    for _ in range(int(cases)):
        call = rng.choice(
            (
                fold,
                fold,
                move,
                permute,
                loader,
                order,
                interleave,
                times,
                reply,
                count,
                records,
                place,
                place,
                reply_folded,
                pages,
                locate,
                buckets,
            )
        )
        try:
            call()
            outcomes["returned"] += 1
        except (ValueError, TypeError, OverflowError, BufferError):
            outcomes["raised"] += 1
    print(outcomes)
    assert min(outcomes.values()) > 0


if __name__ == "__main__":
    main(*sys.argv[1:])
