"""Only the holder of a key writes what is unpickled, and pickles are read in known places only."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from paimon_features.core.documents.signed_pickle import Seal
from paimon_features.core.errors import JobError

ROOT = Path(__file__).parents[1]
READS = {"load", "loads", "Unpickler"}
MODULES = {"pickle", "cloudpickle", "marshal", "shelve", "dill", "joblib"}

PICKLES_ARE_READ = {
    # what a job carries to its own tasks and what they return through Flink
    "paimon_features/iteration/flink/hosts.py": "stages and messages within a job",
    "paimon_features/lake/reading/splits.py": "splits that this process has planned",
    "paimon_features/iteration/envelope.py": "messages between the subtasks of a job",
    # Flink's own state: whoever writes a checkpoint decides what the job does
    "paimon_features/iteration/flink/keyed_state.py": "state of the job",
    "paimon_features/iteration/state_backend.py": "state of the job",
    "paimon_features/iteration/operators/replay.py": "state of the job",
    # sealed
    "paimon_features/iteration/operators/control.py": "notices of the wire, opened by its seal",
    "paimon_features/iteration/operators/head.py": "payloads of the wire, opened by its seal",
    "paimon_features/iteration/wires/redis.py": "messages opened by the job's seal",
}


def reads_pickles(source: str) -> bool:
    if not any(module in source for module in MODULES):  # most files; parsing takes seconds
        return False
    tree = ast.parse(source)
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in READS
        and isinstance(node.value, ast.Name)
        and node.value.id in MODULES
        for node in ast.walk(tree)
    ) or any(
        isinstance(node, ast.ImportFrom)
        and node.module in MODULES
        and any(alias.name in READS for alias in node.names)
        for node in ast.walk(tree)
    )


def test_pickles_are_read_in_these_places_only() -> None:
    """A new place needs a reason why nobody else can choose its bytes."""
    found = {
        str(path.relative_to(ROOT))
        for package in ("paimon_features", "trainer_bridge", "jobs")
        for path in (ROOT / package).rglob("*.py")
        if reads_pickles(path.read_text(encoding="utf-8"))
    }
    assert found == set(PICKLES_ARE_READ)


def test_only_the_same_key_and_context_open_the_content() -> None:
    seal = Seal.random()
    sealed = seal.close(b"context", b"content")
    assert seal.open(b"context", sealed, "it") == b"content"
    others = [
        (Seal.random(), b"context", sealed),
        (seal, b"contex", sealed),
        (seal, b"", b"context" + sealed),
        *((seal, b"context", sealed[:size]) for size in range(len(sealed))),
        *(
            (seal, b"context", bytes(b ^ (i == at) << bit for i, b in enumerate(sealed)))
            for at in range(len(sealed))
            for bit in range(8)
        ),
    ]
    for other, context, data in others:
        with pytest.raises(JobError, match="it was not written with the key of this job"):
            other.open(context, data, "it")
    assert "key" not in repr(seal)
