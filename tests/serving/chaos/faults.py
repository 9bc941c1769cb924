"""What goes wrong: each fault breaks something, waits a while, and lets it be well again."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from typing import Protocol

from paimon_features.core.errors import OnlineStoreError
from paimon_features.testing.servers.redis_server import RedisServer
from tests.servers.online_servers import SentinelServers, send_command, wait_for
from tests.serving.chaos.processes import Follower, Proxy, Server
from tests.serving.chaos.shop import Shop


class Scene(Protocol):
    """What faults are done to."""

    rng: random.Random
    shop: Shop
    server: Server
    follower: Follower
    redis: RedisServer
    proxy: Proxy
    sentinels: SentinelServers

    def breaks_now(self) -> None:
        """Connections of clients may break about now."""


Fault = Callable[[Scene], None]


def killed_and_empty(scene: Scene) -> None:
    _kill(scene)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{scene.redis._folder}/dump.rdb")
    scene.redis.start()


def killed_and_older(scene: Scene) -> None:
    """It comes back as it was some time ago."""
    send_command(scene.redis.port, "SAVE")
    if scene.rng.random() < 0.3:
        scene.follower.kill()  # it starts to rebuild, and is killed meanwhile
        scene.shop.new_generation()
        scene.follower.start()
        time.sleep(scene.rng.uniform(1, 3))
    time.sleep(scene.rng.uniform(0, 1))
    _kill(scene)
    scene.redis.start()


def paused(scene: Scene) -> None:
    with _stopped(scene.redis.pid):
        time.sleep(scene.rng.uniform(0.5, 3))


def slow(scene: Scene) -> None:
    if scene.proxy is not None and scene.rng.random() < 0.5:
        scene.proxy.delay_s = scene.rng.choice((0.01, 0.1, 0.4))
        time.sleep(1.5)
        scene.proxy.delay_s = 0
    elif scene.rng.random() < 0.5:
        send_command(
            scene.redis.port, "CLIENT", "PAUSE", str(scene.rng.randrange(200, 1_500)), "ALL"
        )
    else:
        send_command(scene.redis.port, "DEBUG", "SLEEP", f"{scene.rng.uniform(0.2, 0.9):.2f}")


def full(scene: Scene) -> None:
    send_command(scene.redis.port, "CONFIG", "SET", "maxmemory", "1mb")
    time.sleep(scene.rng.uniform(0.5, 5))
    send_command(scene.redis.port, "CONFIG", "SET", "maxmemory", "0")


def read_only(scene: Scene) -> None:
    send_command(scene.redis.port, "CONFIG", "SET", "min-replicas-to-write", "1")
    time.sleep(scene.rng.uniform(0.5, 5))
    send_command(scene.redis.port, "CONFIG", "SET", "min-replicas-to-write", "0")


def flushed(scene: Scene) -> None:
    send_command(scene.redis.port, "FLUSHALL")


def connections_reset(scene: Scene) -> None:
    for _ in range(scene.rng.randrange(1, 6)):
        send_command(scene.redis.port, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        time.sleep(scene.rng.uniform(0, 0.3))
    if scene.proxy is not None:
        scene.proxy.cut = scene.rng.choice((0.05, 0.5))
        time.sleep(1)
        scene.proxy.cut = 0


def worker_killed(scene: Scene) -> None:
    scene.breaks_now()
    scene.server.kill_worker(scene.rng)


def worker_paused(scene: Scene) -> None:
    with _stopped(scene.rng.choice(scene.server.workers)):
        time.sleep(scene.rng.uniform(0.2, 1))


def materializer_killed(scene: Scene) -> None:
    if scene.rng.random() < 0.5:
        _store_flushed(scene)  # so that it is killed while it builds
        time.sleep(scene.rng.uniform(0, 0.3))
    scene.follower.kill()
    time.sleep(scene.rng.choice((0, 0, 4)))
    scene.follower.start()


def materializer_paused(scene: Scene) -> None:
    with _stopped(scene.follower.process.pid):
        time.sleep(4)


def generation_switched(scene: Scene) -> None:
    scene.shop.new_generation()


def definitions_reloaded(scene: Scene) -> None:
    scene.shop.factors.append(scene.shop.factors[-1] + 1)
    scene.shop.define()
    time.sleep(1.5)


def view_redefined(scene: Scene) -> None:
    """Longer or shorter windows: other records, to be built by another materializer."""
    scene.shop.long = not scene.shop.long
    scene.shop.define()
    if scene.rng.random() < 0.5:
        time.sleep(1.5)  # the servers know it before the store does, or not
    scene.follower.kill()
    scene.follower.start()


def primary_killed(scene: Scene) -> None:
    old, primary = _primary(scene)
    os.kill(primary.pid, signal.SIGKILL)
    _failed_over(scene, old)
    primary.start()


def primary_paused(scene: Scene) -> None:
    old, primary = _primary(scene)
    with _stopped(primary.pid):
        _failed_over(scene, old)


def failed_over(scene: Scene) -> None:
    old, _ = _primary(scene)
    send_command(scene.sentinels.ports[0], "SENTINEL", "FAILOVER", "features")
    _failed_over(scene, old)


OF_EVERYTHING: list[Fault] = [
    worker_killed, worker_paused, materializer_killed, materializer_paused, generation_switched,
    definitions_reloaded, view_redefined,
]  # fmt: skip
OF_ONE_SERVER: list[Fault] = [
    killed_and_empty, killed_and_older, paused, slow, full, read_only, flushed, connections_reset,
]  # fmt: skip
OF_SENTINELS: list[Fault] = [primary_killed, primary_paused, failed_over]


def _kill(scene: Scene) -> None:
    os.kill(scene.redis.pid, signal.SIGKILL)
    wait_for(lambda: not scene.redis.running, "the store is gone")
    time.sleep(scene.rng.uniform(0, 1.5))


@contextlib.contextmanager
def _stopped(pid: int):  # type: ignore[no-untyped-def]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _store_flushed(scene: Scene) -> None:
    port = scene.redis.port if scene.redis is not None else scene.sentinels.primary_port()
    with contextlib.suppress(OnlineStoreError):
        send_command(port, "FLUSHALL")


def _primary(scene: Scene) -> tuple[int, RedisServer]:
    """The primary, once its replica is in step."""
    sentinels = scene.sentinels
    old = sentinels.primary_port()
    wait_for(lambda: sentinels.agree_on(old), "the sentinels agree", 30)
    one, other = sentinels.servers
    primary, replica = (one, other) if one.port == old else (other, one)
    wait_for(
        lambda: "master_link_status:up" in str(send_command(replica.port, "INFO", "replication")),
        "the replica is in step",
        # the sentinels make a former primary a replica some time after it has returned
        120,
    )
    time.sleep(1.2)  # what the sentinels know of the replica is a second old
    return old, primary


def _failed_over(scene: Scene, old: int) -> None:
    sentinels = scene.sentinels
    [new] = [server.port for server in sentinels.servers if server.port != old]
    wait_for(lambda: sentinels.agree_on(new), "the sentinels agree on the other", 30)
