"""A cluster whose slots move and whose nodes die: errors or right values, and recovery."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import pytest
from redis.crc import key_slot

from paimon_features.core.errors import OnlineStoreError
from paimon_features.online.store import OnlineStore, Write
from paimon_features.testing.servers.redis_server import RedisServer
from paimon_features.testing.sizes import seeds
from tests.online.store.test_failures import until_suspended
from tests.patient_stores import patient_store
from tests.servers.online_servers import ClusterServers, send_command, wait_for

pytestmark = pytest.mark.redis


@pytest.fixture
def store(cluster: ClusterServers) -> Iterator[OnlineStore]:
    wait_for(cluster.is_well, "the cluster is well")
    cluster.flush()
    with closing(patient_store(cluster.url)) as store:
        yield store


def bucket(number: int, count: int) -> list[bytes]:
    """Keys of one hash tag."""
    return [b"pf:{a:v:e:%d}:%d" % (number, i) for i in range(count)]


def bucket_of(cluster: ClusterServers, node: int, count: int = 3) -> list[bytes]:
    """Keys of a bucket that a primary is in charge of."""
    numbers = (n for n in range(1000) if 3 * key_slot(bucket(n, 1)[0]) // 16384 == node)
    return bucket(next(numbers), count)


def fill(store: OnlineStore, keys: list[bytes]) -> None:
    assert all(store.compare_and_set_many([Write(key, None, key) for key in keys]))


def test_a_cluster_is_distinguished_from_a_single_server(
    cluster: ClusterServers, redis_url: str
) -> None:
    alone = redis_url.replace("redis://", "redis+cluster://")
    expected = "not part of a cluster; use redis://"
    with closing(patient_store(alone)) as store, pytest.raises(OnlineStoreError, match=expected):
        store.get_many([b"k"])
    one = patient_store(f"redis://127.0.0.1:{cluster.nodes[0].port}")
    expected = "one node of a cluster; use redis.cluster://"
    with closing(one), pytest.raises(OnlineStoreError, match=expected):
        one.get_many(bucket_of(cluster, 1))


def test_each_node_receives_one_pipeline(cluster: ClusterServers, store: OnlineStore) -> None:
    keys = [key for number in range(30) for key in bucket(number, 2)]
    assert store.get_many(keys) == [None] * 60

    def calls(node: RedisServer) -> int:
        lines = str(send_command(node.port, "INFO", "stats")).splitlines()
        return next(int(line.partition(":")[2]) for line in lines if "total_reads" in line)

    def one_each() -> bool:
        before = [calls(node) for node in cluster.nodes[:3]]
        store.get_many(keys)
        after = [calls(node) for node in cluster.nodes[:3]]
        return all(now - was < 4 for now, was in zip(after, before, strict=True))

    # our own two INFO are read too, and the nodes' gossip is not; what the replica acknowledges
    # each second is, which may come in between
    wait_for(one_each, "each node receives one pipeline")


@pytest.mark.parametrize("seed", seeds(2))
def test_keys_are_read_and_written_while_their_slot_moves(
    cluster: ClusterServers, store: OnlineStore, seed: int
) -> None:
    rng = random.Random(seed)
    keys = bucket_of(cluster, 1, 12)
    others = bucket_of(cluster, 2, 2)
    fill(store, others)
    model: dict[bytes, bytes] = {}
    slot = str(key_slot(keys[0]))
    source, target = (cluster.nodes[i].port for i in (1, 2))
    ids = {port: str(send_command(port, "CLUSTER", "MYID")) for port in (source, target)}

    def step() -> None:
        """One write, and one reading of everything, half of it unknown to the store."""
        chosen = rng.sample(keys[:8], rng.choice((1, 3)))
        writes = [Write(key, model.get(key), b"%09d" % rng.randrange(10**9)) for key in chosen]
        assert store.compare_and_set_many(writes) == [True] * len(writes)
        model.update((write.key, write.value) for write in writes)
        wrong = [Write(key, b"other", b"x") for key in keys]
        assert store.compare_and_set_many(wrong) == [False] * len(keys)
        assert store.get_many(keys + others) == [*map(model.get, keys), *others]

    def move(source: int, target: int, between: Callable[[], None]) -> None:
        """As redis-cli moves a slot; ``between`` happens after each key."""
        send_command(target, "CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
        send_command(source, "CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
        while here := send_command(source, "CLUSTER", "GETKEYSINSLOT", slot, "100"):
            assert isinstance(here, list)
            between()
            key = str(rng.choice(here))
            send_command(source, "MIGRATE", "127.0.0.1", str(target), key, "0", "60000")
        for node in (target, source, cluster.nodes[0].port):
            send_command(node, "CLUSTER", "SETSLOT", slot, "NODE", ids[target])
        # a node that has not heard of an epoch may claim the slot by an older one for ever
        wait_for(cluster.is_well, "all nodes agree")

    step()
    steps = iter(range(10))  # writes of new keys go to the target: the source runs empty
    move(source, target, lambda: step() if next(steps, None) is not None else None)
    step()
    found = {key for page in store.scan(keys[0][:-1]) for key in page}
    assert found == set(model)
    # and back, with no command in between: the store's map is wrong until a node redirects it
    move(target, source, lambda: None)
    step()


def test_a_failed_node_affects_only_its_own_keys(
    cluster: ClusterServers, store: OnlineStore
) -> None:
    lost, others = bucket_of(cluster, 2), bucket_of(cluster, 1)
    fill(store, lost)
    fill(store, others)
    node = cluster.nodes[2]
    os.kill(node.pid, signal.SIGKILL)
    try:
        for _ in range(5):
            with pytest.raises(OnlineStoreError, match=str(node.port)):
                store.get_many(lost + others)
            assert store.get_many(others) == others
        # reads of the other nodes' keys never wait for the lost one: its breaker is open
        until_suspended(store, lost)
        assert store.get_many(others) == others
    finally:
        wait_for(lambda: not node.running, "the node is gone")
        node.start()
    wait_for(cluster.is_well, "the cluster is well")
    # it has lost its keys, which is no error of the store: the marker of the bucket is gone too
    wait_for(lambda: store.get_many(lost + others) == [None] * 3 + others, "it is read")
    store.check()


def test_readers_continue_after_a_failover(cluster: ClusterServers, store: OnlineStore) -> None:
    """A writer moves records, then their marker, on; a reading never has the marker ahead."""
    records, stop = bucket_of(cluster, 0, 2), threading.Event()
    others = bucket_of(cluster, 1, 2)
    first, replica = cluster.nodes[0], cluster.nodes[3]
    acknowledged = [0]
    answered = [0]

    def write() -> None:
        with closing(patient_store(cluster.url)) as own:
            while not stop.is_set():
                with suppress(OnlineStoreError):
                    for keys in (records, others):
                        run, (old, reported) = own.run_and_values(keys)
                        new = b"%09d" % (int(old or 0) + 1)
                        if own.compare_and_set_many([Write(keys[0], old, new)], run) == [True]:
                            own.compare_and_set_many([Write(keys[1], reported, new)], run)
                            acknowledged[0] += 1

    def read() -> None:
        while not stop.is_set():
            with suppress(OnlineStoreError):
                value, marker, other, other_marker = store.get_many(records + others)
                assert int(value or 0) >= int(marker or 0)
                assert int(other or 0) >= int(other_marker or 0)
                answered[0] += 1

    with ThreadPoolExecutor(2) as pool:
        work = [pool.submit(write), pool.submit(read)]
        try:
            wait_for(lambda: acknowledged[0] > 20, "there is something to lose")
            os.kill(first.pid, signal.SIGKILL)
            wait_for(lambda: not first.running, "the node is gone")
            send_command(replica.port, "CLUSTER", "FAILOVER", "TAKEOVER")
            wait_for(
                lambda: "role:master" in str(send_command(replica.port, "INFO", "replication")),
                "the replica is promoted",
            )
            wait_for(cluster.is_well, "the cluster is well")
            for count in (answered, acknowledged):
                before = count[0]
                wait_for(lambda c=count, b=before: c[0] > b + 10, "calls succeed again")
        finally:
            stop.set()
            first.start()
        for one in work:
            one.result()
    value, marker = store.get_many(records)
    assert value is not None
    assert marker is not None
    wait_for(cluster.is_well, "the cluster is well")
    # back to the roles of before
    send_command(first.port, "CLUSTER", "FAILOVER", "TAKEOVER")
    wait_for(
        lambda: "role:slave" in str(send_command(replica.port, "INFO", "replication")), "roles"
    )
