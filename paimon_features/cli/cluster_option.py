"""``--cluster``: where a job runs."""

from __future__ import annotations

from pathlib import Path

from paimon_features.cli.options import CLUSTER, LOCAL_CLUSTER
from paimon_features.errors import ConfigurationError

__all__ = ["CLUSTER", "cluster_address"]


def cluster_address(state_dir: Path, cluster: str | None) -> str | None:
    """The cluster's host:port; that of the project's own one where only ``--cluster`` was given.

    Raises
    ------
    ConfigurationError
        If the project's own cluster is meant and does not run.
    """
    if cluster != LOCAL_CLUSTER:
        return cluster
    from paimon_features.flink.cluster import LocalCluster

    address = LocalCluster(state_dir).status().address
    if address is None:
        raise ConfigurationError(
            "no local cluster runs; 'paimon-features cluster start' starts one, or name one: "
            "--cluster HOST:PORT"
        )
    return address
