"""Iteration programs as plain data, and a generator of random ones.

A program says nothing about any engine. :mod:`tests.iteration.interpreter` interprets it by hand,
:mod:`tests.iteration.translation` builds the same with ``paimon_features.iteration``. Every
operator
gives the same records whatever the order in which its own arrive, so that a program has one
right result however its deliveries interleave.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

MODULUS = 97
"""Values are integers below it, or a little more."""


@dataclass(frozen=True)
class Source:
    """A stream from outside: ``role`` is variable, replay or once (data that is not replayed)."""

    role: str
    values: tuple[int, ...]
    parallelism: int


@dataclass(frozen=True)
class Node:
    """An operator of the body.

    ``inputs`` are numbers of sources and earlier nodes, sources first. ``kind`` is one of

    map     one record for one
    split   none, one or two for one
    union   all inputs as one
    connect two inputs, distinguished
    count   keyed: the how many-th of its key and epoch a record is
    copies  broadcast: every subtask gives each record once
    hold    a listener: keeps records, gives them at the watermark of their epoch or at the end
    sum     a listener: one sum for each key and epoch, at the watermark or at the end
    round   per round: a sum for each key when the instance of the epoch ends, none at the end
    """

    kind: str
    inputs: tuple[int, ...]
    number: int
    parallelism: int


@dataclass(frozen=True)
class Program:
    """A complete iteration; ``feedback``, ``outputs`` and ``criteria`` are numbers of streams.

    With ``max_iter`` the criterion is ``terminate_on_max_iter`` on the stream ``criteria``, else
    the stream itself; ``max_rounds`` is the setting of ``IterationConfig``.
    """

    sources: tuple[Source, ...]
    nodes: tuple[Node, ...]
    feedback: tuple[int, ...]
    outputs: tuple[int, ...]
    criteria: int | None = None
    max_iter: int | None = None
    max_rounds: int | None = None
    per_round: bool = False
    unbounded: bool = False

    @property
    def variables(self) -> int:
        return sum(1 for source in self.sources if source.role == "variable")

    def stream_parallelism(self, stream: int) -> int:
        streams: tuple[Source | Node, ...] = (*self.sources, *self.nodes)
        return streams[stream].parallelism

    def ends(self, stream: int) -> tuple[int, ...]:
        """What a node reads; nothing of a source."""
        return () if stream < len(self.sources) else self.nodes[stream - len(self.sources)].inputs

    def sees_rounds(self, stream: int) -> bool:
        """Whether the stream has watermarks of rounds; data that is not replayed has none."""
        if stream < len(self.sources):
            return self.sources[stream].role != "once"
        return any(self.sees_rounds(one) for one in self.ends(stream))


def apply(kind: str, number: int, value: int, port: int) -> list[int]:
    """What an operator without state makes of a value from its input ``port``."""
    if kind == "map":
        return [(value * 3 + number) % MODULUS]
    if kind == "split":
        return [[], [value // 2], [value // 2, value // 3]][(value + number) % 3]
    if kind == "connect":
        return [(value + 1 if port == 0 else value * 2 + number) % MODULUS]
    raise ValueError(kind)


def counted(number: int, value: int, so_many: int) -> int:
    """Return the result of ``count`` for the ``so_many``-th value of its key."""
    return (value % number * 11 + so_many) % MODULUS


def summed(key: int, total: int) -> int:
    """What ``sum`` and ``round`` give for a key."""
    return (key * 13 + total) % MODULUS


def decayed(value: int) -> list[int]:
    """What a feedback edge lets through, so that a program without criteria ends."""
    return [value - 7] if value > 7 else []


def random_program(rng: random.Random, most_parallel: int = 4) -> Program:
    """Any program; the interpreter says whether it ends in time."""

    def parallelism() -> int:
        return rng.randint(1, most_parallel)

    unbounded = rng.random() < 0.2
    roles = ["variable"] * rng.choice([1, 1, 2])
    roles += rng.choices(["once"] if unbounded else ["replay", "once"], k=rng.randint(0, 2))
    sources = tuple(
        Source(
            role,
            tuple(rng.randrange(MODULUS) for _ in range(rng.choice([0, 1, 3, 6]))),
            parallelism(),
        )
        for role in roles
    )
    nodes: list[Node] = []
    kinds = ["map", "split", "union", "connect", "count", "copies", "hold", "hold", "sum", "round"]
    for _ in range(rng.randint(2, 7)):
        kind = rng.choice(kinds)
        inputs = 2 if kind in ("union", "connect") else 1
        # the newest streams more often, so that there are chains
        known = [*range(len(sources) + len(nodes)), *range(len(sources), len(sources) + len(nodes))]
        nodes.append(
            Node(
                kind,
                tuple(rng.choice(known) for _ in range(inputs)),
                rng.randint(1, 5),
                1 if kind == "copies" and rng.random() < 0.5 else parallelism(),
            )
        )
    streams = range(len(sources) + len(nodes))
    made = [*range(len(sources), len(streams))]
    variables = roles.count("variable")
    criteria = max_iter = max_rounds = None
    if not unbounded:
        if (dice := rng.random()) < 0.6:
            max_iter = rng.randint(1, 6)
            # often a variable, which always has watermarks of rounds
            criteria = 0 if rng.random() < 0.5 else rng.choice(streams)
        elif dice < 0.8:
            criteria = rng.choice(made)
        if rng.random() < 0.2:
            max_rounds = rng.randint(1, 6)
    return Program(
        sources=sources,
        nodes=tuple(nodes),
        feedback=tuple(rng.choice(made) for _ in range(variables)),
        outputs=tuple(rng.sample(streams, rng.randint(1, min(3, len(streams))))),
        criteria=criteria,
        max_iter=max_iter,
        max_rounds=max_rounds,
        per_round=rng.random() < 0.2,
        unbounded=unbounded,
    )
