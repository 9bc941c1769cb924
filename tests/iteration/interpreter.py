"""The reference of the iteration runtime: round after round, one operator after the other.

No subtasks, no envelopes, no interleaving, no feedback channel: a list of records for each
stream and round. A record is ``(epoch, value)``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from tests.iteration.programs import Node, Program, apply, counted, decayed, summed

END = 2**31 - 2
MOST_ROUNDS = 14
MOST_RECORDS = 400

Record = tuple[int, int]


class TooLongError(Exception):
    """The program has too many rounds or records to be a test."""


@dataclass
class Outcome:
    """Outcome of a program.

    ``exact`` is false where records may run ahead of the decision to end (S5, S15): then
    ``outputs`` is right up to epoch ``last``.
    """

    last: int
    outputs: list[Counter[Record]]
    exact: bool


def interpret(program: Program) -> Outcome:
    """Run a program by hand. Raises ``TooLongError`` for one that does not end soon."""
    return _Run(program).outcome()


class _Run:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.first_node = len(program.sources)
        # what listeners hold: node -> epoch -> values
        self.held: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        self.counts: Counter[tuple[int, int, int]] = Counter()
        self.seen: list[list[Record]] = [[] for _ in program.outputs]

    def outcome(self) -> Outcome:
        sources = {
            number: [(0, value) for value in source.values]
            for number, source in enumerate(self.program.sources)
        }
        epoch = 0
        records = self.flow(sources, watermark=None)
        while True:
            # only now is the round closed: listeners give what they kept
            closed = self.flow({}, watermark=epoch)
            streams = {number: records[number] + closed[number] for number in records}
            fed = self.next_round(epoch, streams)
            goes_on = self.goes_on(epoch, fed, streams)
            epoch += 1
            if epoch > MOST_ROUNDS or sum(map(len, fed)) > MOST_RECORDS:
                raise TooLongError
            # the round that ends the iteration has its feedback, but no watermark and no replay
            sources = dict(enumerate(fed))
            if goes_on:
                for number, source in enumerate(self.program.sources):
                    if source.role == "replay":
                        sources[number] = [(epoch, value) for value in source.values]
            records = self.flow(sources, watermark=None)
            if not goes_on:
                exact = self.runs_dry(epoch, records)
                self.flow({}, watermark=END)
                return Outcome(epoch, [Counter(one) for one in self.seen], exact)

    def runs_dry(self, epoch: int, records: dict[int, list[Record]]) -> bool:
        """Whether the last round feeds nothing back; if it does, that must not grow and grow."""
        saved = [*self.seen], self.held, Counter(self.counts)
        self.seen = [[] for _ in self.seen]
        self.held = defaultdict(lambda: defaultdict(list))
        ahead = fed = self.next_round(epoch, records)
        for later in range(epoch + 1, epoch + MOST_ROUNDS):
            if sum(map(len, ahead)) > MOST_RECORDS:
                raise TooLongError
            ahead = self.next_round(later, self.flow(dict(enumerate(ahead)), watermark=None))
        self.seen, self.held, self.counts = saved
        return not any(fed)

    def goes_on(
        self, epoch: int, fed: list[list[Record]], streams: dict[int, list[Record]]
    ) -> bool:
        """S14: something came for the next round, and through the criteria edge if there is one."""
        program = self.program
        if program.max_rounds is not None and epoch + 1 >= program.max_rounds:
            return False
        if program.criteria is None:
            return program.max_rounds is not None or any(fed)
        seen = any(at == epoch for at, _ in streams[program.criteria])
        if program.max_iter is None:
            return seen
        # the criterion emits a record in its callback, which needs watermarks of rounds (S9, S17),
        # and of a per-round one an instance: there is none without a record of the epoch (S24)
        called = program.sees_rounds(program.criteria) and (seen or not program.per_round)
        return called and epoch + 1 < program.max_iter

    def next_round(self, epoch: int, streams: dict[int, list[Record]]) -> list[list[Record]]:
        """What the feedback edges make of records of one epoch; of no other one (S3, S16)."""
        return [
            [
                (epoch + 1, one)
                for at, value in streams[stream]
                if at == epoch
                for one in decayed(value)
            ]
            for stream in self.program.feedback
        ]

    def flow(
        self, sources: dict[int, list[Record]], watermark: int | None
    ) -> dict[int, list[Record]]:
        """Send records through the body, then, where there is one, a watermark."""
        streams: dict[int, list[Record]] = {
            number: sources.get(number, []) for number in range(self.first_node)
        }
        for number, node in enumerate(self.program.nodes, self.first_node):
            given: list[Record] = []
            for port, stream in enumerate(node.inputs):
                for epoch, value in streams[stream]:
                    given += [(epoch, one) for one in self.handle(number, node, port, epoch, value)]
            if watermark is not None:
                # data that is not replayed has ended when round 0 is closed (S9)
                ended = watermark == 0 and not self.program.sees_rounds(number)
                given += self.close(number, node, END if ended else watermark)
            streams[number] = given
        for seen, stream in zip(self.seen, self.program.outputs, strict=True):
            seen += streams[stream]
        return streams

    def handle(self, number: int, node: Node, port: int, epoch: int, value: int) -> list[int]:
        match node.kind:
            case "union":
                return [value]
            case "copies":
                return [value] * node.parallelism
            case "count":
                self.counts[number, epoch, value % node.number] += 1
                so_many = self.counts[number, epoch, value % node.number]
                return [counted(node.number, value, so_many)]
            case "hold" | "sum" | "round":
                self.held[number][epoch].append(value)
                return []
            case kind:
                return apply(kind, node.number, value, port)

    def close(self, number: int, node: Node, watermark: int) -> list[Record]:
        """Output of a listener at a watermark; at the end, for every epoch that is still open."""
        given = []
        for epoch in sorted(self.held[number]):
            if epoch > watermark or (watermark < END and epoch != watermark):
                continue
            values = self.held[number].pop(epoch)
            # an instance of one round, closed at the end, still works in its own epoch (S24)
            per_round = self.program.per_round or node.kind == "round"
            at = epoch if per_round else watermark
            if node.kind == "hold":
                given += [(at, value + 1) for value in values]
            else:
                totals: Counter[int] = Counter()
                for value in values:
                    totals[value % node.number] += value
                given += [(at, summed(key, total)) for key, total in totals.items()]
        return given
