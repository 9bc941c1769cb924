"""``--cluster``: where a job runs."""

from __future__ import annotations

from pathlib import Path

from paimon_features.cli._options import CLUSTER

__all__ = ["CLUSTER", "cluster_address"]


def cluster_address(state_dir: Path, cluster: str | None) -> str | None:
    """Return the cluster's host:port; for ``--cluster`` alone, that of the project's own cluster.

    Raises
    ------
    ConfigurationError
        If the project's own cluster is meant and does not run.
    """
    if cluster is None:
        return None
    from paimon_features.flink import cluster as clusters

    return clusters.cluster_address(state_dir, cluster)
