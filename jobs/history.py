"""Historical features: entity rows with their features at their own times, as a Parquet file.

Flink runs this file::

    flink run -m jobmanager:8081 -py jobs/history.py --project /project --features churn_v1 \\
        --rows rows.parquet --output features.parquet

``paimon-features training-set --engine flink --output`` calls the same function. The file is
written by this program: in application mode on the job manager's host.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from paimon_features.project import Project
from paimon_features.project.engines import EngineOptions


def parser() -> argparse.ArgumentParser:
    """Return the parser of this program's arguments."""
    p = argparse.ArgumentParser(prog="history.py", description="Write historical features.")
    p.add_argument("--project", default=".", help="Folder of the project.")
    p.add_argument("--features", required=True, help="A service, a view, or view:feature,...")
    p.add_argument("--rows", required=True, help="Entity rows: a file, a pattern, or a table.")
    p.add_argument("--output", required=True, type=Path, help="The Parquet file to write.")
    p.add_argument("--statuses", action="store_true", help="Also <feature>__status columns.")
    p.add_argument("--cluster", help="HOST:PORT, where Flink does not run this program itself.")
    return p


def main(argv: Sequence[str] | None = None) -> None:
    """Run one batch job for each feature view, and write the file."""
    args = parser().parse_args(argv)
    written = Project.open(args.project).write_historical_features(
        args.features.split(",") if "," in args.features else args.features,
        args.rows,
        args.output,
        statuses=args.statuses,
        engine=EngineOptions("flink", args.cluster, print),
    )
    print(json.dumps(written.to_document()))


if __name__ == "__main__":
    main()
