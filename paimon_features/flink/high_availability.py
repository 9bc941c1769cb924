"""Flink's high availability by ZooKeeper: a new job manager continues the jobs of a lost one."""

from __future__ import annotations

import re
from dataclasses import dataclass

from paimon_features.core.errors import ConfigurationError

SESSION_TIMEOUT_MS = 15_000
"""After so long without a sign of a job manager ZooKeeper lets another one lead."""
_ADDRESS = re.compile(r"zookeeper://([A-Za-z0-9._:,\[\]-]+:\d+)(?:/([A-Za-z0-9._-]+))?/?")


@dataclass(frozen=True, slots=True)
class HighAvailability:
    """An ensemble ``host:port,...`` and the name under which a cluster keeps its state there."""

    quorum: str
    cluster_id: str

    @classmethod
    def parse(cls, address: str) -> HighAvailability:
        """From ``zookeeper://HOST:PORT[,HOST:PORT...][/NAME]``; the name is ``default`` if missing.

        >>> HighAvailability.parse("zookeeper://zk1:2181,zk2:2181/shop")
        HighAvailability(quorum='zk1:2181,zk2:2181', cluster_id='shop')

        Raises
        ------
        ConfigurationError
            For anything else.
        """
        match = _ADDRESS.fullmatch(address)
        if match is None or not all(part.partition(":")[2] for part in match[1].split(",")):
            raise ConfigurationError(
                f"high availability {address!r}: expected zookeeper://HOST:PORT[,HOST:PORT...]"
                "[/NAME], for example zookeeper://127.0.0.1:2181/shop"
            )
        return cls(match[1], match[2] or "default")

    def options(self, storage: str) -> dict[str, str]:
        """Return Flink's options; ``storage`` is the URI of a folder that all job managers see."""
        return {
            "high-availability.type": "zookeeper",
            "high-availability.zookeeper.quorum": self.quorum,
            "high-availability.zookeeper.path.root": "/paimon-features",
            "high-availability.cluster-id": f"/{self.cluster_id}",
            "high-availability.storageDir": storage,
            "high-availability.zookeeper.client.session-timeout": f"{SESSION_TIMEOUT_MS} ms",
        }
