"""Free ports of this host, for servers that take a port and do not choose one themselves."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_LOWEST, _HIGHEST = 15_000, 32_767
_TRIES = 200


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 on which nothing listens.

    They are below the range from which the system takes the ports of outgoing connections, one
    of which could else take the port before the server does.

    >>> len(set(free_ports(3)))
    3
    """
    highest = min(_HIGHEST, _ephemeral_from() - 1)
    probes: list[socket.socket] = []
    try:
        for attempt in range(_TRIES * count):
            if len(probes) == count:
                break
            fixed = highest > _LOWEST and attempt < _TRIES * count // 2
            probe = socket.socket()
            try:
                probe.bind(("127.0.0.1", random.randint(_LOWEST, highest) if fixed else 0))
            except OSError:
                probe.close()
                continue
            probes.append(probe)
        if len(probes) < count:
            raise OSError(f"no {count} free ports on 127.0.0.1")
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def _ephemeral_from() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text("utf-8").split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768
