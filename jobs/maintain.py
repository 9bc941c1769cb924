"""Maintenance: compact small files, expire old snapshots, roll tiles up.

Flink runs this file::

    flink run -m jobmanager:8081 -py jobs/maintain.py --project /project --pause

``paimon-features maintain`` calls the same function. Exit code 1 if a table was skipped,
unless --allow-skipped.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from paimon_features.project import Project
from paimon_features.project.maintenance.tables import maintain


def parser() -> argparse.ArgumentParser:
    """Return the parser of this program's arguments."""
    p = argparse.ArgumentParser(prog="maintain.py", description="Maintain a project's tables.")
    p.add_argument("tables", nargs="*", help="Tables; default: all of the project.")
    p.add_argument("--project", default=".", help="Folder of the project.")
    p.add_argument("--no-compact", action="store_true", help="Only expire snapshots.")
    p.add_argument("--keep-newest", type=int, help="Snapshots to keep.")
    p.add_argument("--pause", action="store_true", help="Stop detached tile jobs meanwhile.")
    p.add_argument("--allow-skipped", action="store_true", help="Exit code 0 even so.")
    return p


def main(argv: Sequence[str] | None = None) -> None:
    """Maintain each table as its owner."""
    args = parser().parse_args(argv)
    tables = maintain(
        Project.open(args.project),
        args.tables,
        compact=not args.no_compact,
        keep_newest=args.keep_newest,
        pause=args.pause,
        on_message=print,
    )
    print(json.dumps([asdict(table) for table in tables]))
    if any(table.skipped for table in tables) and not args.allow_skipped:
        sys.exit(1)


if __name__ == "__main__":
    main()
