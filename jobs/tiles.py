"""The tile job of a view: events become tiles, each event exactly once.

Flink runs this file::

    flink run -m jobmanager:8081 -py jobs/tiles.py --project /project --view customer_spend
    paimon-features cluster run application tiles --view customer_spend    # application mode

``paimon-features submit`` and ``backfill`` call the same functions.
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from paimon_features.flink.cluster import cluster_address
from paimon_features.project import Project
from paimon_features.tiles.flink.submission import backfill, submit
from paimon_features.tiles.jobs.target import TileTarget


def parser() -> argparse.ArgumentParser:
    """Return the parser of this program's arguments."""
    p = argparse.ArgumentParser(prog="tiles.py", description="Run the tile job of a view.")
    p.add_argument("--project", default=".", help="Folder of the project.")
    p.add_argument("--view", required=True, help="The feature view.")
    p.add_argument("--generation", type=int, help="Default: the one that matches the definition.")
    p.add_argument("--parallelism", type=int, help="Parallel tasks; default: the project's.")
    p.add_argument("--cluster", help="HOST:PORT, where Flink does not run this program itself.")
    p.add_argument("--backfill", action="store_true", help="All past events, in one commit.")
    p.add_argument("--bounded", action="store_true", help="Stop after the present events.")
    p.add_argument("--resume", action="store_true", help="Only resume; do not start over.")
    p.add_argument("--rollback", action="store_true", help="Roll tables back to the checkpoint.")
    p.add_argument("--checkpoint", help="With --rollback: resume from this folder.")
    p.add_argument("--rebuild", action="store_true", help="Empty the generation first.")
    return p


def main(argv: Sequence[str] | None = None) -> None:
    """Submit the job; a stream is left to the cluster, anything with an end is waited for."""
    args = parser().parse_args(argv)
    target = TileTarget.of(
        Project.open(args.project), args.view, args.generation, parallelism=args.parallelism
    )
    cluster = cluster_address(target.state_dir, args.cluster)
    if args.backfill:
        result = backfill(target, cluster=cluster, rebuild=args.rebuild, on_message=print)
    else:
        result = submit(
            target,
            cluster=cluster,
            bounded=args.bounded,
            resume=args.resume,
            rollback=args.rollback,
            rebuild=args.rebuild,
            checkpoint=args.checkpoint,
            on_message=print,
        )
    print(json.dumps(asdict(result)))


if __name__ == "__main__":
    main()
