"""``--cluster``: where a job runs."""

from __future__ import annotations

from pathlib import Path

import click

from paimon_features.errors import ConfigurationError

LOCAL = "local"

CLUSTER = click.option(
    "--cluster",
    is_flag=False,
    flag_value=LOCAL,
    metavar="[HOST:PORT]",
    help="Run on this session cluster (its REST interface); alone: on the local one that "
    "'paimon-features cluster start' runs.",
)


def cluster_address(state_dir: Path, cluster: str | None) -> str | None:
    """The cluster's host:port; that of the project's own one where only ``--cluster`` was given.

    Raises
    ------
    ConfigurationError
        If the project's own cluster is meant and does not run.
    """
    if cluster != LOCAL:
        return cluster
    from jobs.flink.cluster import LocalCluster

    address = LocalCluster(state_dir).status().address
    if address is None:
        raise ConfigurationError(
            "no local cluster runs; 'paimon-features cluster start' starts one, or name one: "
            "--cluster HOST:PORT"
        )
    return address
