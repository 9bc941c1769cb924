"""Queues: Redis' and the one in memory do the same, and Redis' comes back after a restart."""

from __future__ import annotations

import random

import pytest

from paimon_features.core.errors import ConfigurationError, OnlineStoreError
from paimon_features.online.store.opening import open_queue
from paimon_features.online.store.queue import BEGINNING, MemoryQueue, Queue
from paimon_features.testing.servers.redis_server import RedisServer
from tests.servers.online_servers import ClusterServers


def agree(queue: Queue, seed: int, steps: int) -> None:
    """Random operations on a queue and on one in memory, whose ids differ."""
    dice, naive = random.Random(seed), MemoryQueue()
    pairs = [(BEGINNING, BEGINNING)]
    names = ["a", "run|0", "é"]
    for _ in range(steps):
        action = dice.randrange(5)
        some = dice.sample(pairs, min(len(pairs), dice.randrange(4)))
        if action == 0:
            messages = [dice.randbytes(dice.randrange(20)) for _ in range(dice.randrange(4))]
            pairs += zip(queue.append(messages), naive.append(messages), strict=True)
        elif action == 1:
            queue.delete([one for one, _ in some])
            naive.delete([other for _, other in some])
        elif action == 2:
            notes = {dice.choice(names): dice.randrange(2**62) for _ in range(dice.randrange(3))}
            queue.note(notes)
            naive.note(notes)
        elif action == 3 and dice.random() < 0.2:
            queue.forget_notes()
            naive.forget_notes()
        one, other = dice.choice(pairs)
        most = dice.randrange(1, 9)
        found, wanted = queue.read(one, most), naive.read(other, most)
        assert [message for _, message in found] == [message for _, message in wanted]
        ids = {other: one for one, other in pairs}
        assert [number for number, _ in found] == [ids[number] for number, _ in wanted]
        assert queue.contains(one) == naive.contains(other)
        name = dice.choice(names)
        assert queue.noted(name) == naive.noted(name)


@pytest.mark.redis
def test_a_redis_stream_equals_the_queue_in_memory(redis_url: str) -> None:
    for seed in range(5):
        agree(open_queue(redis_url, f"q{seed}"), seed, 60)


@pytest.mark.redis
def test_a_queue_is_on_one_node_of_a_cluster(cluster: ClusterServers) -> None:
    queue = open_queue(cluster.url, "of-a-cluster")
    queue.delete([number for number, _ in queue.read(BEGINNING, 1_000)])
    agree(queue, 1, 40)
    queue.close()


@pytest.mark.redis
def test_queues_have_names_and_hold_large_messages(redis_url: str) -> None:
    one, other = open_queue(redis_url, "one"), open_queue(redis_url, "other")
    large = [bytes([number]) * (5 << 20) for number in range(4)]
    ids = one.append(large)
    assert other.read(BEGINNING, 9) == []
    assert one.read(BEGINNING, 9) == list(zip(ids, large, strict=True))
    assert one.read(ids[1], 1) == [(ids[2], large[2])]


@pytest.mark.redis
def test_a_restarted_server_is_used_again_and_a_stopped_one_is_reported() -> None:
    with RedisServer() as server:
        queue = open_queue(server.url, "q")
        (number,) = queue.append([b"lost"])
        server.restart()
        assert not queue.contains(number)
        queue.append([b"kept"])
        assert [message for _, message in queue.read(BEGINNING, 9)] == [b"kept"]
        server.stop()
        with pytest.raises(OnlineStoreError):
            queue.append([b"refused"])


def test_a_memory_queue_needs_no_server() -> None:
    assert isinstance(open_queue("memory://", "q"), MemoryQueue)
    with pytest.raises(ConfigurationError, match="expected redis"):
        open_queue("kafka://", "q")
