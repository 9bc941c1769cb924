"""Expire the snapshots that still have deleted rows, by Paimon's procedures in Flink."""

from __future__ import annotations

from collections.abc import Sequence

from paimon_features.core.process.callbacks import OnMessage, ignore_message
from paimon_features.lake.metadata.rollback import is_automatic
from paimon_features.lake.ownership.lease import acquire
from paimon_features.project import Project
from paimon_features.project.forget.remains import Remaining, remaining
from paimon_features.project.maintenance.maintenance_sql import delete_tag_sql, expire_sql
from paimon_features.project.maintenance.procedures import Procedures


def expire_now(
    project: Project, remains: Sequence[Remaining], on_message: OnMessage = ignore_message
) -> list[Remaining]:
    """Expire all but the newest snapshot of these tables; returns what still remains, and why.

    Paimon's hourly tags of before the deletion are deleted. Other tags and consumers are pins:
    what they retain stays.

    Raises
    ------
    OwnershipError
        If a job or process owns one of the tables.
    JobError
        If a procedure fails.
    """
    config = project.config
    procedures = Procedures(project.lake, config.flink.parallelism, config.state_dir)
    for one in remains:
        full = f"{project.lake.database}.{one.table}"
        on_message(f"{one.table}: expiring snapshots")
        with acquire(project.lake, one.table, purpose="expire its snapshots") as lease:
            for tag in filter(is_automatic, one.tags):
                # not by pypaimon, which leaves the files that only the tag retained
                procedures.call(delete_tag_sql(full, tag), f"deleting tag {tag} of {full}")
            lease.check()
            procedures.call(expire_sql(full, 1), f"expiring snapshots of {full}")
    return remaining(project.lake, [one.table for one in remains])
