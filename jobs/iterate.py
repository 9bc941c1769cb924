"""A program of iterations (FLIP-176): bounded or unbounded loops with epochs.

Flink runs this file::

    flink run -m jobmanager:8081 -py jobs/iterate.py train.py:build --project /project

``paimon-features jobs iterate`` builds the same ``IterationJob``.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from paimon_features.flink.cluster import cluster_address
from paimon_features.iteration.flink import FileOutput, IterationJob, IterationSettings
from paimon_features.iteration.flink.job_settings import choose_wire
from paimon_features.iteration.program_file import load_program
from paimon_features.lake.storage.file_path import job_state_folder
from paimon_features.project import Project


def parser() -> argparse.ArgumentParser:
    """Return the parser of this program's arguments."""
    p = argparse.ArgumentParser(prog="iterate.py", description="Run a program of iterations.")
    p.add_argument("program", help="module:function or file.py:function.")
    p.add_argument("--project", default=".", help="Folder of the project.")
    p.add_argument("--cluster", help="HOST:PORT, where Flink does not run this program itself.")
    p.add_argument("--parallelism", type=int, help="Default: the project's.")
    p.add_argument("--mode", choices=["auto", "thread", "process"], default="auto")
    p.add_argument("--wire", help="redis://... or memory; default: [flink] wire of the project.")
    p.add_argument("--output", type=Path, help="Folder for the outputs.")
    p.add_argument("--resume", help="Resume from this savepoint or checkpoint.")
    p.add_argument("--detach", action="store_true", help="Return once the job runs.")
    return p


def main(argv: Sequence[str] | None = None) -> None:
    """Run the program; unless detached, wait for its end."""
    args = parser().parse_args(argv)
    config = Project.open(args.project).config
    cluster = cluster_address(config.state_dir, args.cluster)
    name = args.program.rpartition("/")[2].replace(":", ".").replace(".py", "")
    folder = (args.output or config.state_dir / "iterations" / name).absolute()
    job = IterationJob(
        name=name,
        settings=IterationSettings(
            mode=args.mode,
            wire=choose_wire(args.wire, config.flink, cluster),
            checkpoint_interval_ms=config.flink.checkpoint_interval_ms,
        ),
        cluster=cluster,
        state_dir=config.state_dir,
        job_state=job_state_folder(config.state_dir, config.flink),
        resume=args.resume,
        parallelism=args.parallelism or config.flink.parallelism,
    )
    running = job.execute_async(
        load_program(args.program), lambda output: FileOutput(folder / output), detached=args.detach
    )
    if not args.detach:
        running.wait()
    print(json.dumps({"job_id": running.job_id, "output": str(folder)}))


if __name__ == "__main__":
    main()
