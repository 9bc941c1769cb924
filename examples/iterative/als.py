"""Embeddings of customers and products by alternating least squares on purchases.

Implicit feedback (Hu, Koren and Volinsky, 2008): purchases indicate that a customer likes a
product, with a confidence that grows with their number; no purchase indicates very little. With
``c = 1 + alpha * times`` and ``p = 1`` for pairs with purchases, otherwise ``c = 1`` and ``p = 0``,
the factors minimise

    sum over all pairs of c * (p - x . y)^2  +  penalty * (sum |x|^2 + sum |y|^2)

With one side fixed, each row of the other is a small system of linear equations; an epoch solves
all customers, then all products. The products' factors are the variables; each subtask caches
the purchases of its own customers and products.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from common import AtEnd, Total, by_block

from paimon_features.core.types.array_types import Floats, Ints
from paimon_features.iteration import (
    DataStreamList,
    IterationBody,
    IterationBodyResult,
    IterationConfig,
    IterationListener,
    ReplayableDataStreamList,
    iterate_bounded_streams_until_termination,
    terminate_on_max_iter,
)

CHUNK = 8192
"""Number of purchases whose outer products are in memory at once."""


class Factors(NamedTuple):
    """The vectors of a block of neighbouring rows, shape (rows, rank)."""

    block: int
    vectors: Floats


class PurchaseRows(NamedTuple):
    """The purchases of a block of customers, or of products: compressed sparse rows.

    Row ``i`` has ``columns[starts[i]:starts[i + 1]]``, numbers of the other side, and ``times``.
    """

    block: int
    starts: Ints
    columns: Ints
    times: Floats


def rows_of(row: Ints, column: Ints, times: Floats, rows: int, blocks: int) -> list[PurchaseRows]:
    """Split a matrix in coordinate format into blocks of rows with similar numbers of entries."""
    order = np.lexsort((column, row))
    row, column, times = row[order], column[order], times[order]
    starts = np.searchsorted(row, np.arange(rows + 1))
    cuts = np.searchsorted(starts, np.linspace(0, len(row), blocks + 1)[1:-1])
    bounds = [0, *cuts.tolist(), rows]
    made = []
    for block, (first, end) in enumerate(pairwise(bounds)):
        own = slice(int(starts[first]), int(starts[end]))
        made.append(
            PurchaseRows(block, starts[first : end + 1] - starts[first], column[own], times[own])
        )
    return made


def solve(rows: PurchaseRows, other: Floats, alpha: float, penalty: float) -> Floats:
    """Return the optimal vectors of these rows, given all vectors of the other side."""
    rank = other.shape[1]
    count = len(rows.starts) - 1
    common = other.T @ other + penalty * np.eye(rank)
    left = np.zeros((count, rank, rank))
    right = np.zeros((count, rank))
    of_row = np.repeat(np.arange(count), np.diff(rows.starts))
    for start in range(0, len(of_row), CHUNK):
        part = slice(start, start + CHUNK)
        of, vectors = of_row[part], other[rows.columns[part]]
        sure = alpha * rows.times[part]
        # entries of one row are adjacent: sums over runs
        first = np.flatnonzero(np.diff(of, prepend=-1))
        # axes: (entry, rank, rank)
        outer = (sure[:, None] * vectors)[:, :, None] * vectors[:, None, :]
        left[of[first]] += np.add.reduceat(outer, first, axis=0)
        right[of[first]] += np.add.reduceat((1 + sure)[:, None] * vectors, first, axis=0)
    solved: Floats = np.linalg.solve(left + common, right[:, :, None])[:, :, 0]
    return solved


def loss(rows: PurchaseRows, own: Floats, other: Floats, alpha: float, penalty: float) -> float:
    """Return the loss of a block of rows, without the penalty of the other side.

    Pairs without purchases are included by the Gram matrix of the other side.
    """
    of_row = np.repeat(np.arange(len(own)), np.diff(rows.starts))
    guess = np.einsum("er,er->e", own[of_row], other[rows.columns])
    bought = (1 + alpha * rows.times) * (1 - guess) ** 2 - guess**2
    everything = np.einsum("ir,rs,is->", own, other.T @ other, own)
    return float(bought.sum() + everything + penalty * (own**2).sum())


class Solve(IterationListener):
    """Solves its blocks of one side when it has all vectors of the other side."""

    def __init__(self, alpha: float, penalty: float, with_loss: bool) -> None:
        self.alpha, self.penalty, self.with_loss = alpha, penalty, with_loss

    def process_element1(self, factors: Factors, ctx: Any, out: Any) -> None:
        ctx.state.map("factors").put(factors.block, factors.vectors)

    def process_element2(self, rows: PurchaseRows, ctx: Any, out: Any) -> None:
        ctx.state.list("rows").add(rows)

    def on_epoch_watermark_incremented(self, epoch: int, ctx: Any, out: Any) -> None:
        factors = ctx.state.map("factors")
        if not factors.keys():
            return
        other = np.concatenate([vectors for _, vectors in sorted(factors.items(), key=_block)])
        factors.clear()
        total = 0.0
        for rows in ctx.state.list("rows").get():
            own = solve(rows, other, self.alpha, self.penalty)
            out.collect(Factors(rows.block, own))
            if self.with_loss:
                total += loss(rows, own, other, self.alpha, self.penalty)
        if self.with_loss:
            if ctx.subtask == 0:
                total += self.penalty * float((other**2).sum())
            out.side("loss", total)


def _block(entry: tuple[int, Any]) -> int:
    return entry[0]


class AlternatingLeastSquares(IterationBody):
    """The loop: customers from products, then products from customers, ``rounds`` times."""

    def __init__(self, alpha: float, penalty: float, rounds: int) -> None:
        self.alpha, self.penalty, self.rounds = alpha, penalty, rounds

    def process(self, variables: DataStreamList, data: DataStreamList) -> IterationBodyResult:
        products, by_customer, by_product = variables.get(0), data.get(0), data.get(1)
        home = (by_block, lambda record: record.block)
        customers = (
            products.broadcast()
            .connect(by_customer.partition_custom(*home))
            .process(Solve(self.alpha, self.penalty, with_loss=False))
            .name("customers")
        )
        after = (
            customers.broadcast()
            .connect(by_product.partition_custom(*home))
            .process(Solve(self.alpha, self.penalty, with_loss=True))
            .name("products")
        )
        total = after.get_side_output("loss").process(Total()).set_parallelism(1).name("loss")
        criteria = total.flat_map(terminate_on_max_iter(self.rounds))
        last = products.process(AtEnd()).name("products at the end")
        return IterationBodyResult(
            DataStreamList.of(after), DataStreamList.of(last, total), criteria
        )


class Problem(NamedTuple):
    """Purchases by customer and by product, in blocks, and the initial vectors of products."""

    by_customer: Sequence[PurchaseRows]
    by_product: Sequence[PurchaseRows]
    start: Sequence[Factors]

    @classmethod
    def of(
        cls, customer: Ints, product: Ints, times: Floats, rank: int, blocks: int, seed: int = 7
    ) -> Problem:
        """Create the problem from purchases in coordinate format; both sides start at 0."""
        customers, products = int(customer.max()) + 1, int(product.max()) + 1
        by_product = rows_of(product, customer, times, products, blocks)
        random = np.random.default_rng(seed)
        start = [
            Factors(rows.block, random.normal(0, 0.1, (len(rows.starts) - 1, rank)))
            for rows in by_product
        ]
        by_customer = rows_of(customer, product, times, customers, blocks)
        return cls(by_customer, by_product, start)


def build(
    problem: Problem,
    alpha: float = 2.0,
    penalty: float = 0.1,
    rounds: int = 10,
    parallelism: int = 2,
) -> Any:
    """Return the program, whose results are the products' vectors and the loss of each epoch.

    The purchases are read once and cached.
    """

    def program(job: Any) -> Any:
        products = job.from_collection(problem.start, parallelism=parallelism, name="start")
        data = [
            job.from_collection(list(rows), parallelism=parallelism, name=name)
            for rows, name in (
                (problem.by_customer, "by customer"),
                (problem.by_product, "by product"),
            )
        ]
        return iterate_bounded_streams_until_termination(
            DataStreamList.of(products),
            ReplayableDataStreamList.not_replay(*data),
            IterationConfig(),
            AlternatingLeastSquares(alpha, penalty, rounds),
        )

    return program


def joined(blocks: Sequence[Factors]) -> Floats:
    """Return the vectors of all blocks as one matrix."""
    return np.concatenate([factors.vectors for factors in sorted(blocks, key=_block)])


def customers_of(
    problem: Problem, products: Floats, alpha: float = 2.0, penalty: float = 0.1
) -> Floats:
    """Return the customers' vectors for those of the products; works for new customers, too."""
    return np.concatenate([solve(rows, products, alpha, penalty) for rows in problem.by_customer])


def nearest(vectors: Floats, row: int, count: int) -> tuple[Ints, Floats]:
    """Return the rows with the largest cosine to a row, and the cosines."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    cosine = unit @ unit[row]
    cosine[row] = -np.inf
    best = np.argsort(-cosine, kind="stable")[:count]
    return best, cosine[best]
