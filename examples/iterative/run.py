"""Three iterations over a real retail log, with results as tables, plots and text.

python examples/iterative/run.py --into iterative                     # all three, in this process
python examples/iterative/run.py --into iterative als --engine flink  # as a Flink job
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.core.errors import PaimonFeaturesError
from paimon_features.core.times.clock import now_ms
from paimon_features.iteration import ReferenceExecutor
from paimon_features.lake import EventWriter
from paimon_features.project import Project
from trainer_bridge.feedback.difficulty import read_difficulty
from trainer_bridge.feedback.writer import FeedbackWriter
from trainer_bridge.samplers import DifficultyWeightedSampler

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import als  # noqa: E402 - in the folder of this file
import common  # noqa: E402
import difficulty  # noqa: E402
import pagerank  # noqa: E402
from names import named  # noqa: E402
from plot import draw_als, draw_difficulty, draw_pagerank  # noqa: E402
from shop import log_end, make_project, read_purchases, will_buy  # noqa: E402

BLOCKS = 8
RANK = 16
SHIPPED = (als, common, difficulty, pagerank)
"""Modules that Flink's workers cannot import: their functions are shipped with the job."""
SHOWN = ("22697", "20725", "22727")
"""Products whose nearest neighbours are shown: a teacup, a lunch bag, an alarm clock."""

Engine = Callable[[str, Any], Any]
"""Runs a program by name."""


@dataclass
class Summary:
    """Summary of an iteration, for tests: one number per round, and the best results."""

    rounds: list[float]
    best: list[tuple[str, float]] = field(default_factory=list)
    near: dict[str, list[str]] = field(default_factory=dict)


def scores(project: Project, run: Engine, into: Path) -> Summary:
    """PageRank of the products, with walks that start anywhere."""
    bought = read_purchases(project)
    customers = len(bought.customers)
    nodes = customers + len(bought.products)
    # both directions; customers first
    ends = (bought.customer, bought.product + customers)
    source, target = np.concatenate(ends), np.concatenate(ends[::-1])
    weight = np.concatenate([bought.times, bought.times])
    say(f"graph: {nodes:,} customers and products, {len(bought.times):,} edges")
    graph = pagerank.PurchaseGraph.of(source, target, weight, np.ones(nodes), BLOCKS)
    last, changes = run("pagerank", pagerank.build(graph, tol=1e-4))
    print_rounds("ranks moved by", changes)
    score = pagerank.joined(last)[customers:]
    buyers = np.bincount(bought.product, minlength=len(bought.products))
    order = np.argsort(-score, kind="stable")
    best = [(bought.products[i], float(score[i])) for i in order[:15]]
    for place, (code, value) in enumerate(best[:10], 1):
        by_buyers = 1 + int((buyers > buyers[order[place - 1]]).sum())
        say(f"  {place:2}. {named(code):42} {value:.5f}   place {by_buyers} by number of buyers")
    rows = {"stock_code": bought.products, "score": score}
    write(project, "product_score", rows)
    draw_pagerank(into / "pagerank.png", changes, best, buyers, score)
    return Summary(changes, best)


def embeddings(project: Project, run: Engine, into: Path) -> Summary:
    """Vectors of customers and products, and the nearest neighbours of some products."""
    bought = read_purchases(project)
    problem = als.Problem.of(bought.customer, bought.product, bought.times, RANK, BLOCKS)
    say(f"{len(bought.customers):,} customers x {len(bought.products):,} products, rank {RANK}")
    last, losses = run("als", als.build(problem))
    print_rounds("loss", losses)
    vectors = als.joined(last)
    position = {code: number for number, code in enumerate(bought.products)}
    near = {}
    for code in (code for code in SHOWN if code in position):
        rows, cosines = als.nearest(vectors, position[code], 4)
        near[code] = [bought.products[row] for row in rows]
        say(f"  near {named(code)}:")
        for row, cosine in zip(rows, cosines, strict=True):
            say(f"      {cosine:.2f}  {named(bought.products[row])}")
    customers = als.customers_of(problem, vectors)
    write(project, "product_vector", {"stock_code": bought.products, "vector": list(vectors)})
    write(project, "customer_vector", {"customer_id": bought.customers, "vector": list(customers)})
    draw_als(into / "als.png", losses, vectors, position, near)
    return Summary(losses, near=near)


def hardness(project: Project, run: Engine, into: Path, days: int) -> Summary:
    """Predict who buys in the next days; write the difficulty of each customer as feedback."""
    features, x, y = will_buy(project, days)
    keys = features.select(["customer_id"])
    say(f"{len(y):,} customers, {y.mean():.0%} of them buy again within {days} days")
    _, progress, losses = run("difficulty", difficulty.build(x, y))
    print_rounds("mean loss", [loss for loss, _ in progress])
    loop = project.definitions.source("will_buy")
    with FeedbackWriter(project.lake, loop, run_id="iterative") as feedback:
        # in a fixed order: a repeated run writes only what is missing
        for each in sorted(losses, key=lambda each: (each.round, each.block)):
            ids = {"customer_id": keys["customer_id"].to_numpy()[each.number]}
            feedback.write(ids, each.loss, each.round, each.correct)
    project.jobs.backfill("will_buy_difficulty", rebuild=True)
    feedback_scores = read_difficulty(
        project, "will_buy_difficulty", keys, as_of_ms=now_after_feedback()
    )
    score = feedback_scores.scores()
    refined = difficulty.last_difficulty(losses)
    hardest = np.argsort(-refined, kind="stable")[:8]
    say("  hardest to predict:")
    best = []
    for row in hardest:
        line = {name: features[name][int(row)].as_py() for name in features.column_names}
        say(
            f"      customer {line['customer_id']}: {line['count_365d']} invoice lines in a year, "
            f"{line['count_30d'] or 0} in the last month, {'bought' if y[row] else 'did not buy'} "
            f"again; loss {refined[row]:.2f}"
        )
        best.append((str(line["customer_id"]), float(refined[row])))
    sampler = DifficultyWeightedSampler(
        score, score_snapshot_id=feedback_scores.snapshot_id, seed=7
    )
    drawn = refined[np.fromiter(sampler, np.int64)]
    say(f"  drawn by difficulty: mean {drawn.mean():.2f}, all samples {refined.mean():.2f}")
    draw_difficulty(into / "difficulty.png", losses, refined, y)
    return Summary([loss for loss, _ in progress], best)


def now_after_feedback() -> int:
    """Return a time after all feedback."""
    return now_ms() + 1


def write(project: Project, view: str, columns: dict[str, Any]) -> None:
    """Write one version of a view's values, valid from the end of the log."""
    rows = pa.table(columns)
    at = pa.repeat(pa.scalar(log_end(), pa.int64()), rows.num_rows)
    source = project.definitions.views[view].source
    report = EventWriter.of(project.lake, source, log_end).write(rows.append_column("at_ms", at))
    project.jobs.backfill(view)
    say(f"  {report.written:,} rows in {source.table}")


def print_rounds(what: str, values: Sequence[float]) -> None:
    """Print the values of rounds: the first ones, some in the middle, the last."""
    numbers = [*range(min(3, len(values))), *range(3, len(values) - 1, 5), len(values) - 1]
    for number in dict.fromkeys(numbers):
        say(f"  round {number + 1:3}: {what} {values[number]:.6g}")


def say(line: str) -> None:
    print(line, flush=True)


def engine_of(name: str, project: Project, cluster: str | None) -> Engine:
    """Return the engine ``local`` or ``flink``."""
    if name == "flink":
        import cloudpickle

        from paimon_features.iteration.flink import IterationJob, IterationSettings

        for module in SHIPPED:
            cloudpickle.register_pickle_by_value(module)
        job = IterationJob(
            settings=IterationSettings(wire="memory"),
            cluster=cluster,
            state_dir=project.config.state_dir,
        )
        return lambda _, program: job.run(program)
    return lambda _, program: ReferenceExecutor().run(program)


def iterate(
    into: Path,
    what: Sequence[str] = ("pagerank", "als", "difficulty"),
    engine: str = "local",
    cluster: str | None = None,
    rows: int | None = None,
    days: int = 90,
) -> dict[str, Summary]:
    """Create the project in ``into`` if it does not exist, and run iterations over it.

    ``rows`` is the number of rows of the log, all by default; ``days`` is the horizon of the last
    iteration.
    """
    project = make_project(into, rows)
    run = engine_of(engine, project, cluster)
    found = {}
    for name in what:
        started = time.perf_counter()
        say(f"\n{name}")
        if name == "pagerank":
            found[name] = scores(project, run, into)
        elif name == "als":
            found[name] = embeddings(project, run, into)
        else:
            found[name] = hardness(project, run, into, days)
        say(f"  {time.perf_counter() - started:.1f} s, {into / (name + '.png')}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("what", nargs="*", help="pagerank, als, difficulty; all by default")
    parser.add_argument("--into", type=Path, required=True, help="a folder, created if necessary")
    parser.add_argument("--engine", choices=["local", "flink"], default="local")
    parser.add_argument("--cluster", help="host:port of a session cluster's REST interface")
    parser.add_argument("--rows", type=int, help="only the first rows of the log")
    parser.add_argument(
        "--days", type=int, default=90, help="prediction horizon of difficulty (default: 90)"
    )
    arguments = parser.parse_args()
    algorithms = ["pagerank", "als", "difficulty"]
    chosen = arguments.what or algorithms
    if unknown := [name for name in chosen if name not in algorithms]:
        parser.error(f"{unknown[0]!r}: expected one of {', '.join(algorithms)}")
    try:
        iterate(
            arguments.into,
            chosen,
            arguments.engine,
            arguments.cluster,
            arguments.rows,
            arguments.days,
        )
    except PaimonFeaturesError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
