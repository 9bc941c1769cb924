"""``POST /predict`` for a tabular transformer, compared with what people write today.

    python -m benchmarks.predict --feast PYTHON     # about four minutes
    python -m benchmarks.predict --feast PYTHON --small

PYTHON is the interpreter of a virtual environment with Feast (see ``benchmarks.feature_server``);
the application there is FastAPI on uvicorn (uvloop, httptools), a lookup by Feast's SDK, and the
same network in torch on one thread. Ours merges 60 tiles of an entity into 12 features at each
request; Feast reads 12 finished values. Without --feast only ours is measured, and it says so.

Printed: latency alone; requests a second at 32 connections and the processor time of a request;
latency at an open-loop rate of 70 percent of that; entity rows a second at 100 entities a request,
beside onnxruntime called by hand on rows that are ready in memory (one thread, batches of 32).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks._load import closed_loop, open_loop, post
from benchmarks._tabular_network import FEATURES, export
from benchmarks.feature_server import (
    FEAST_SETUP,
    FEAST_YAML,
    NAMES,
    Server,
    Size,
    _started,
    closed,
    fill,
    in_turn,
    ours,
    parsed,
    show,
)
from paimon_features.core.configuration.project_config import read_config
from paimon_features.definitions import load_definitions
from paimon_features.models import (
    ModelFile,
    ModelInput,
    ModelKey,
    ModelManifest,
    ModelOutput,
    ModelSignature,
    ModelStates,
    VersionState,
    sha256_of,
)
from paimon_features.online.store.published_models import PublishedModels, model_place_of
from paimon_features.testing.servers.redis_server import RedisServer
from tests.servers.online_servers import free_ports
from tests.tile_lake import PROJECT

APPLICATION = """\
import sys
sys.path += [{torch!r}, {here!r}]
import torch
from fastapi import FastAPI
from feast import FeatureStore
from pydantic import BaseModel
from benchmarks._tabular_network import network

torch.set_num_threads(1)
app, store, model = FastAPI(), FeatureStore("."), network()
FEATURES = ["spend:f%d" % i for i in range(12)]

class Entities(BaseModel):
    user: list[int]

@app.get("/health")
def health():
    return {{}}

@app.post("/predict/churn")
def predict(entities: Entities):
    found = store.get_online_features(FEATURES, [{{"user": u}} for u in entities.user]).to_dict()
    columns = [torch.tensor(found["f%d" % i], dtype=torch.float64)[:, None] for i in range(12)]
    with torch.inference_mode():
        return {{"predictions": model(*columns)[:, 0].tolist()}}
"""


def publish(folder: Path, names: Sequence[str]) -> bytes:
    """Put the network into production for the project in ``folder``; its bytes."""
    path = folder / "network.onnx"
    inputs = [f"f{number}" for number in range(len(names))]
    export(path, inputs)
    network = path.read_bytes()
    view = load_definitions(folder / "features.py").view("spend").compiled
    types = {feature.name: feature.type.text for feature in view.features}
    signature = ModelSignature(
        "churn_v1",
        (ModelKey("user", "int64"),),
        tuple(
            ModelInput(of, "feature", f"spend:{name}", types[name], "float64")
            for of, name in zip(inputs, names, strict=True)
        ),
        (ModelOutput("probability"),),
        "binary",
    )
    files = {"network.onnx": ModelFile(sha256_of(network), len(network))}
    manifest = ModelManifest("churn", 1, 1, "tabular_transformer", signature, files)
    state = VersionState(1, "production", sha256_of(manifest.to_bytes()), 10_000)
    place = model_place_of(read_config(folder), lambda: None)  # type: ignore[arg-type,return-value]
    index = PublishedModels(PROJECT, 1, {"churn": ModelStates("churn", 1, "salt", 1, (state,))})
    place.publish(
        index, {state.manifest: manifest.to_bytes, files["network.onnx"].sha256: lambda: network}
    )
    return network


def by_hand(network: bytes, rows: int, seconds: float) -> float:
    """Rows a second of processor time of onnxruntime alone, on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(network, options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    feed = {each.name: rng.random((rows, 1)) * 1_000 for each in session.get_inputs()}
    session.run(None, feed)
    began, runs, before_s = time.perf_counter(), 0, time.process_time()
    while time.perf_counter() - began < seconds:
        session.run(None, feed)
        runs += 1
    return runs * rows / (time.process_time() - before_s)


@contextmanager
def todays(python: Path, folder: Path, redis_port: int, size: Size) -> Iterator[Server]:
    """FastAPI, torch and a Feast lookup, with one worker."""
    import subprocess

    import torch

    (folder / "feature_store.yaml").write_text(FEAST_YAML.format(port=redis_port))
    setup = [python, "-c", FEAST_SETUP, str(size.users), str(NAMES)]
    subprocess.run(setup, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    assert torch.__file__ is not None
    (folder / "application.py").write_text(
        APPLICATION.format(
            torch=str(Path(torch.__file__).parents[1]), here=str(Path(__file__).parents[1])
        )
    )
    port = free_ports(1)[0]
    command = [str(python), "-m", "uvicorn", "application:app", "--port", str(port)]
    command += ["--loop", "uvloop", "--http", "httptools"]
    with _started(command, folder, port, "/health") as (process, ready_s):
        single, many = prediction_requests(size.users, lambda users: {"user": users})
        yield Server("feast", process, port, ready_s, single, many)


def prediction_requests(
    users: int, document: object, token: str = ""
) -> tuple[list[bytes], list[bytes]]:
    rng = np.random.default_rng(1)

    def body(count: int) -> bytes:
        return json.dumps(document(rng.integers(0, users, count).tolist())).encode()  # type: ignore[operator]

    single = [post("/predict/churn", body(1), token=token) for _ in range(2_000)]
    return single, [post("/predict/churn", body(100), token=token) for _ in range(200)]


def main() -> None:
    options, size = parsed(__doc__)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        redis = stack.enter_context(RedisServer())
        own = folder / "ours"
        fill(own, redis.url, size.users)
        view = load_definitions(own / "features.py").view("spend").compiled
        network = publish(own, [feature.name for feature in view.features][:FEATURES])
        server = stack.enter_context(ours(own, size))
        single, many = prediction_requests(
            size.users, lambda users: {"entities": {"user": users}}, server.token
        )
        servers = [replace(server, single=single, many=many)]
        if options.feast is None:
            print("beside FastAPI, torch and Feast: not measured, there is no --feast PYTHON")
        else:
            (folder / "feast").mkdir()
            at = Path(os.path.abspath(options.feast))
            servers.append(stack.enter_context(todays(at, folder / "feast", redis.port, size)))
        measure(servers, network, size, options.wrk)


def measure(servers: Sequence[Server], network: bytes, size: Size, wrk: Path | None) -> None:
    """All measurements."""
    for server in servers:
        warm = closed_loop(server.port, server.single, 1.0, 8)
        if not warm.count or warm.refused:
            raise RuntimeError(f"{server.name} refuses requests: {warm.refused}")
    alone = in_turn(servers, size.rounds, lambda s: closed_loop(s.port, s.single, size.seconds, 1))
    show("p50 of one entity, alone", alone, lambda m: m.ms(50), "ms")
    show("p99 of one entity, alone", alone, lambda m: m.ms(99), "ms")
    full = in_turn(servers, size.rounds, lambda s: closed(s, s.single, size.seconds, 32, wrk))
    show("requests/s, one entity, 32 connections", full, lambda m: m.per_s, "/s")
    show("  processor time of a request", full, lambda m: m.processor_us, "us")
    rates = {
        name: 0.7 * float(np.median([m.per_s for m in rounds])) for name, rounds in full.items()
    }
    paced = in_turn(
        servers,
        size.rounds,
        lambda s: open_loop(s.port, s.single, size.seconds, rates[s.name]),
    )
    print(f"  70 %: {', '.join(f'{name} {rate:,.0f}/s' for name, rate in rates.items())}")
    show("p50 at 70 % of its rate", paced, lambda m: m.ms(50), "ms")
    show("p99 at 70 % of its rate", paced, lambda m: m.ms(99), "ms")
    bulk = in_turn(servers, size.rounds, lambda s: closed(s, s.many, size.seconds, 8, wrk))
    show("entity rows/s, 100 a request", bulk, lambda m: 100 * m.per_s, "/s")
    hand, one = by_hand(network, 32, size.seconds), by_hand(network, 1, size.seconds)
    print("  rows/s of one thread of onnxruntime by hand, ready-made rows:")
    print(f"    {hand:,.0f} in batches of 32, {one:,.0f} one at a time")
    best = float(np.median([100 * m.per_s for m in bulk["ours"]]))
    print(f"  entities to predictions, in rows of onnxruntime by hand: {best / hand:.2f}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
