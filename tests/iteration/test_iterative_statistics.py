"""The examples of examples/iterative: against dense, plain NumPy, on random data and on the log."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from click.testing import CliRunner

from paimon_features.cli import cli
from paimon_features.core.times.clock import now_ms
from paimon_features.iteration import ReferenceExecutor
from paimon_features.lake import read_arrow
from paimon_features.project import Project
from tests.iteration.example_modules import example
from trainer_bridge.feedback.difficulty import read_difficulty

END = 1_323_435_000_001
"""After the last event of the log."""

Floats = npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def modules() -> Iterator[SimpleNamespace]:
    names = ("als", "difficulty", "pagerank", "shop")
    with example(*names) as found:
        yield SimpleNamespace(**dict(zip(names, found, strict=True)))


# PageRank


def dense_pagerank(
    source: Any, target: Any, weight: Floats, restart: Floats, damping: float, rounds: int
) -> Floats:
    """Power iteration with the dense matrix."""
    nodes = len(restart)
    matrix = np.zeros((nodes, nodes))
    for u, v, w in zip(source, target, weight, strict=True):
        matrix[v, u] += w
    start = restart / restart.sum()
    for node in range(nodes):
        total = matrix[:, node].sum()
        matrix[:, node] = matrix[:, node] / total if total else start
    rank = start
    for _ in range(rounds):
        rank = (1 - damping) * start + damping * matrix @ rank
    return rank


def random_edges(seed: int, nodes: int, edges: int) -> tuple[Any, Any, Floats]:
    random = np.random.default_rng(seed)
    # the last nodes lead nowhere
    source = random.integers(0, nodes - 3, edges)
    return source, random.integers(0, nodes, edges), random.random(edges) + 0.1


@pytest.mark.parametrize("seed", range(4))
def test_pagerank_is_the_power_iteration_of_the_dense_matrix(
    modules: SimpleNamespace, seed: int
) -> None:
    random = np.random.default_rng(100 + seed)
    source, target, weight = random_edges(seed, nodes=40, edges=200)
    restart = np.ones(40) if seed % 2 else (random.random(40) < 0.2).astype(np.float64)
    restart[0] = 1.0
    graph = modules.pagerank.PurchaseGraph.of(source, target, weight, restart, blocks=1 + seed)
    program = modules.pagerank.build(graph, parallelism=1 + seed % 3, tol=1e-12, max_rounds=60)
    last, changes = ReferenceExecutor(seed=seed).run(program)
    got = modules.pagerank.joined(last)
    expected = dense_pagerank(source, target, weight, restart, 0.85, len(changes))
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-15)
    assert got.sum() == pytest.approx(1.0)
    assert changes[-1] <= 1e-12 or len(changes) == 60
    assert all(change > 1e-12 for change in changes[:-1])


# alternating least squares


def dense_als(
    times: Floats, start: Floats, alpha: float, penalty: float, rounds: int
) -> tuple[Floats, list[float]]:
    """All normal equations with all pairs, bought or not; the loss by its definition."""
    sure, liked = 1 + alpha * times, (times > 0).astype(np.float64)
    customers, products = np.zeros((len(times), start.shape[1])), start.copy()
    losses = []

    def solved(other: Floats, weight: Floats, wanted: Floats) -> Floats:
        left = other.T @ (weight[:, None] * other) + penalty * np.eye(other.shape[1])
        return np.linalg.solve(left, other.T @ (weight * wanted))

    for _ in range(rounds):
        for u in range(len(customers)):
            customers[u] = solved(products, sure[u], liked[u])
        for i in range(len(products)):
            products[i] = solved(customers, sure[:, i], liked[:, i])
        error = (sure * (liked - customers @ products.T) ** 2).sum()
        losses.append(error + penalty * ((customers**2).sum() + (products**2).sum()))
    return products, losses


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_als_solves_the_dense_normal_equations_and_its_loss_falls(
    modules: SimpleNamespace, seed: int
) -> None:
    als, random = modules.als, np.random.default_rng(seed)
    times = random.integers(1, 6, (30, 22)) * (random.random((30, 22)) < 0.25).astype(np.float64)
    times[:, 0] = times[0, :] = 1.0
    customer, product = np.nonzero(times)
    problem = als.Problem.of(customer, product, times[customer, product], rank=4, blocks=1 + seed)
    start = als.joined(problem.start)
    wanted, losses = dense_als(times, start, alpha=2.0, penalty=0.1, rounds=5)

    kept = als.build(problem, rounds=5, parallelism=1 + seed % 3)
    last, loss = ReferenceExecutor(seed=seed).run(kept)
    np.testing.assert_allclose(als.joined(last), wanted, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(loss, losses, rtol=1e-10)
    assert all(after <= before for before, after in pairwise(loss))


def test_rows_longer_than_a_chunk_are_solved_exactly(
    modules: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    als, random = modules.als, np.random.default_rng(1)
    row, column = np.nonzero(random.random((9, 50)) < 0.6)
    times = random.integers(1, 4, len(row)).astype(np.float64)
    (rows,) = als.rows_of(row, column, times, rows=9, blocks=1)
    other = random.normal(size=(50, 3))
    whole = als.solve(rows, other, 2.0, 0.1)
    monkeypatch.setattr(als, "CHUNK", 7)
    np.testing.assert_allclose(als.solve(rows, other, 2.0, 0.1), whole, rtol=1e-10)


# difficulty


def plain_difficulty(x: Floats, y: Floats, settings: Any) -> tuple[Floats, list[Floats], Floats]:
    """The same fit with all samples at once: the model, losses of each round, difficulties."""
    model, difficulty = np.zeros(x.shape[1]), np.zeros(len(y))
    rounds: list[Floats] = []
    for number in range(settings.max_rounds):
        p = 1 / (1 + np.exp(-(x @ model)))
        loss = -(y * np.log(p) + (1 - y) * np.log(1 - p))
        rounds.append(loss)
        difficulty = (1 - settings.pace) * difficulty + settings.pace * loss if number else loss
        w = 1 + settings.emphasis * difficulty
        hessian = x.T @ np.diag(w * p * (1 - p)) @ x + settings.penalty * np.eye(len(model))
        step = np.linalg.solve(hessian, x.T @ (w * (p - y)) + settings.penalty * model)
        model = model - step
        if np.abs(step).max() <= settings.tol:
            break
    return model, rounds, difficulty


@pytest.mark.parametrize("seed", range(3))
def test_difficulty_is_that_of_a_plain_fit_of_all_samples(
    modules: SimpleNamespace, seed: int
) -> None:
    module, random = modules.difficulty, np.random.default_rng(seed)
    x = np.hstack([random.normal(size=(120, 3)), np.ones((120, 1))])
    y = (random.random(120) < 1 / (1 + np.exp(-2 * x[:, 0]))).astype(np.float64)
    settings = module.Settings(tol=1e-3)
    program = module.build(x, y, settings, parallelism=1 + seed, size=50)
    (model,), progress, losses = ReferenceExecutor(seed=seed).run(program)
    wanted, rounds, difficulty = plain_difficulty(x, y, settings)
    np.testing.assert_allclose(model, wanted, rtol=1e-9)
    assert len(progress) == len(rounds) > 3
    np.testing.assert_allclose([loss for loss, _ in progress], [r.mean() for r in rounds])
    for each in losses:
        np.testing.assert_allclose(each.loss, rounds[each.round][each.number], rtol=1e-9)
    np.testing.assert_allclose(module.last_difficulty(losses), difficulty, rtol=1e-9)
    # every sample in every round, once
    seen = sorted((each.round, n) for each in losses for n in each.number.tolist())
    assert seen == [(r, n) for r in range(len(rounds)) for n in range(120)]


# on the log


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, Any]]]:
    """What the example finds in the first part of the log."""
    pytest.importorskip("matplotlib")
    into = tmp_path_factory.mktemp("iterative")
    with example("run") as (run,):
        yield into, run.iterate(into, rows=50_000, days=30)


@pytest.mark.long
def test_pagerank_ranks_products_and_writes_their_scores(
    found: tuple[Path, dict[str, Any]],
) -> None:
    into, by_name = found
    ranks = by_name["pagerank"]
    assert ranks.rounds[-1] < ranks.rounds[0] / 100
    # the shop's best-known product, by any measure
    assert ranks.best[0][0] == "85123A"
    project = Project.open(into)
    rows = pa.table({"stock_code": ["85123A", "nothing"], "event_time_ms": [END, END]})
    scores = project.get_historical_features(["product_score:score"], rows)["score"]
    assert scores.to_pylist() == [ranks.best[0][1], None]
    assert (into / "pagerank.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_als_places_products_near_those_that_the_same_customers_buy(
    found: tuple[Path, dict[str, Any]],
) -> None:
    into, by_name = found
    near = by_name["als"].near
    # the teacups of one set, and the lunch bags
    assert "22699" in near["22697"]
    assert {"20727", "20728", "22382", "22383", "22384"} & set(near["20725"])
    losses = by_name["als"].rounds
    assert losses == sorted(losses, reverse=True)
    project = Project.open(into)
    rows = pa.table({"stock_code": ["22697"], "event_time_ms": [END]})
    (vector,) = project.get_historical_features(["product_vector:vector"], rows)["vector"]
    assert len(vector) == 16
    assert (into / "als.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
@pytest.mark.redis
def test_embeddings_and_scores_are_looked_up_with_the_other_features_of_a_service(
    found: tuple[Path, dict[str, Any]], redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    into, by_name = found
    monkeypatch.setenv("PAIMON_FEATURES_ONLINE_URL", redis_url)
    monkeypatch.chdir(into)
    views = ["habits", "customer_vector", "product_vector", "product_score"]
    done = CliRunner().invoke(cli, ["materialize", *views])
    assert done.exit_code == 0, done.output
    project = Project.open(".")
    (customer, *_) = read_arrow(project.lake, "events_customer_vectors")["customer_id"].to_pylist()
    best, score = by_name["pagerank"].best[0]
    keys = {"customer_id": [customer, -1], "stock_code": [best, "nothing"]}
    got = project.get_online_features("recommend_v1", keys, END)
    known, unknown = got.table.to_pylist()
    assert len(known["customer_vector__vector"]) == len(known["product_vector__vector"]) == 16
    assert known["score"] == score
    assert "count_365d" in known
    assert not any(unknown[name] for name in got.features)
    rows = pa.table({**keys, "event_time_ms": [END, END]})
    past = project.get_historical_features("recommend_v1", rows)
    assert got.table.select(got.features).equals(past.select(got.features))
    # customers like what they bought: the vectors belong together
    liked = read_arrow(project.lake, "events_product_vectors")["vector"].to_pylist()
    assert np.array(liked).dot(known["customer_vector__vector"]).max() > 0.1


def test_difficulty_becomes_feedback_that_samplers_draw_by(
    found: tuple[Path, dict[str, Any]],
) -> None:
    into, by_name = found
    losses = by_name["difficulty"].rounds
    assert losses[-1] < losses[0] == pytest.approx(np.log(2))
    project = Project.open(into)
    feedback = read_arrow(project.lake, "feedback_will_buy")
    customers = len(set(feedback["customer_id"].to_pylist()))
    assert feedback.num_rows == customers * len(losses)
    ids = pa.array([int(name) for name, _ in by_name["difficulty"].best])
    reported = read_difficulty(
        project, "will_buy_difficulty", pa.table({"customer_id": ids}), as_of_ms=now_ms() + 1
    )
    assert set(reported.features["presentations"].to_pylist()) == {len(losses)}
    assert reported.scores().min() > losses[-1]
    assert (into / "difficulty.png").read_bytes().startswith(b"\x89PNG")
