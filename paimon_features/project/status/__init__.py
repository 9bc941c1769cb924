"""The status of a project: jobs, freshness, tables, leases and what needs attention."""

from paimon_features.project.status.project_status import ProjectStatus, StatusReader

__all__ = ["ProjectStatus", "StatusReader"]
