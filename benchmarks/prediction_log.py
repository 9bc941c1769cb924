"""What the log of predictions costs ``POST /predict``: processor time of a request, and latency.

    python -m benchmarks.prediction_log            # about two minutes
    python -m benchmarks.prediction_log --small

The network and the requests are those of ``benchmarks.predict``, one entity each; one worker. The
processor time is that of the whole worker, the thread that writes the log included, at 32
connections. ``off``: no log; ``scores``: predictions without what was read (prediction_log_reads =
0); ``tenth``: what was read in a tenth of the requests; ``all``: in each. All four run in turn.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks._load import closed_loop
from benchmarks._tabular_network import FEATURES
from benchmarks.feature_server import closed, fill, in_turn, ours, parsed, show
from benchmarks.predict import prediction_requests, publish
from paimon_features.definitions import load_definitions
from paimon_features.testing.servers.redis_server import RedisServer

LOGS = {"off": None, "scores": 0.0, "tenth": 0.1, "all": 1.0}
CONNECTIONS = 32


def main() -> None:
    options, size = parsed(__doc__)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        redis = stack.enter_context(RedisServer())
        first = folder / "off"
        fill(first, redis.url, size.users)
        view = load_definitions(first / "features.py").view("spend").compiled
        publish(first, [feature.name for feature in view.features][:FEATURES])
        servers = []
        for name, reads in LOGS.items():
            own = folder / name
            if reads is not None:
                shutil.copytree(first, own)
                config = own / "paimon-features.toml"
                config.write_text(
                    f'{config.read_text()}prediction_log = "spool"\n'
                    f"prediction_log_reads = {reads}\nprediction_log_hash = false\n"
                )
            server = stack.enter_context(ours(own, size))
            single, _ = prediction_requests(
                size.users, lambda users: {"entities": {"user": users}}, server.token
            )
            servers.append(replace(server, name=name, single=single))
        for server in servers:
            closed_loop(server.port, server.single, 1.0, 8)
        alone = in_turn(
            servers, size.rounds, lambda s: closed_loop(s.port, s.single, size.seconds / 2, 1)
        )
        show("p50 of one entity, alone", alone, lambda m: m.ms(50), "ms")
        show("p99 of one entity, alone", alone, lambda m: m.ms(99), "ms")
        full = in_turn(
            servers,
            size.rounds,
            lambda s: closed(s, s.single, size.seconds / 2, CONNECTIONS, options.wrk),
        )
        show(f"requests/s, {CONNECTIONS} connections", full, lambda m: m.per_s, "/s")
        show("  processor time of a request", full, lambda m: m.processor_us, "us")
        for name in LOGS:
            files = list((folder / name).glob("spool/predictions/churn/*"))
            if files:
                print(f"  {name}: {sum(f.stat().st_size for f in files):,} bytes of spool files")


if __name__ == "__main__":
    main()
