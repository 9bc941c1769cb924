"""A manifest reads back as it was written, and says what is wrong with a hostile one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from paimon_features.core.errors import ModelError
from paimon_features.models import MAX_MANIFEST_BYTES, Metric, ModelManifest, TrainingPins
from paimon_features.models.manifest import MAX_CLASSES, verified
from tests.models.networks import manifest


def full() -> ModelManifest:
    pins = TrainingPins("training_churn", "3@ab12", 900, {"order": 7}, {"tiles": "5@c"}, {"v": 2})
    metrics = {"auc": Metric(0.81, 0.78, 0.84, 900, "DeLong"), "log_loss": Metric(0.4)}
    return replace(manifest(), training=pins, metrics=metrics, parents=("churn@1",))


def test_a_manifest_reads_back_as_it_was_written() -> None:
    written = full()
    assert ModelManifest.from_bytes(written.to_bytes()) == written
    assert str(written) == "churn@1"


def test_a_manifest_of_another_release_keeps_its_bytes() -> None:
    # their hash is in the states; another release may order fields otherwise, or have fewer
    document = json.loads(full().to_bytes())
    assert document["training"].pop("run") == ""
    data = json.dumps(document, indent=4).encode()
    read = ModelManifest.from_bytes(data)
    assert read == full()
    assert read.to_bytes() == data
    assert replace(read, version=2).to_bytes() != data


HOSTILE: list[tuple[str, Any, str]] = [
    ("format", 2, "upgrade this host"),
    ("format", "1", "expected 1"),
    ("format", True, "expected 1"),
    ("name", "../churn", "a name starts with"),
    ("name", "a" * 200, "at most 128"),
    ("version", 0, "expected 1 or more"),
    ("version", 2**40, "expected 1 or more"),
    ("version", 1.5, "expected int"),
    ("surprise", 1, "unknown field"),
    ("files", {}, "no file 'network.onnx'"),
    ("files.../../etc/passwd", {"sha256": "0" * 64, "bytes": 1}, "is not allowed"),
    ("files..hidden", {"sha256": "0" * 64, "bytes": 1}, "is not allowed"),
    ("files.network.onnx", {"sha256": "../../x", "bytes": 1}, "is no SHA-256"),
    ("files.network.onnx", {"sha256": "A" * 64, "bytes": 1}, "is no SHA-256"),
    ("files.network.onnx", {"sha256": "0" * 64, "bytes": 2**40}, "expected 1 to"),
    ("files.network.onnx", {"sha256": "0" * 64, "bytes": -1}, "expected 1 to"),
    ("signature.task", "magic", "task='magic'"),
    ("signature.inputs", [], "0 inputs"),
    ("signature.inputs.0.width", 10**9, "has the width"),
    ("signature.inputs.0.width", 0, "has the width"),
    ("signature.inputs.0.dtype", "float16", "dtype='float16'"),
    ("signature.inputs.0.type", "list(" * 30 + "float64" + ")" * 30, "long"),
    ("signature.inputs.0.type", "pickle", "unknown column type"),
    ("signature.inputs.0.name", "a\x00b", "printable"),
    ("signature.inputs.1.name", "amount", "there twice"),
    ("signature.inputs.0.source", "entity", "no key of its entity"),
    ("signature.entities", [], "no entity keys"),
    ("signature.entities.0.type", "float64", "of type 'float64'"),
    ("signature.outputs.0.width", 3, "not that of the task"),
    ("signature.outputs.0.classes", ["x"] * (MAX_CLASSES + 1), "classes"),
    ("parents", ["churn"], "expected NAME@1"),
    ("metrics", {"auc": {"value": 1e999}}, "JSON|finite"),
    ("training", {"table": "t"}, "missing field 'snapshot'"),
    ("card", "x" * MAX_MANIFEST_BYTES, "at most"),
]


@pytest.mark.parametrize(("path", "value", "message"), HOSTILE)
def test_a_hostile_manifest_is_refused_with_its_reason(path: str, value: Any, message: str) -> None:
    document = json.loads(full().to_bytes())
    # the name of a file has dots of its own
    parent, key = ("files", path[6:]) if path.startswith("files.") else path.rpartition(".")[::2]
    at: Any = document
    for part in filter(None, parent.split(".")):
        at = at[int(part)] if part.isdecimal() else at[part]
    at[key] = value
    with pytest.raises(ModelError, match=message):
        ModelManifest.from_bytes(json.dumps(document).encode())


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"null", b"{", b"\xff\xfe", b"[" * 100_000, b'{"format": 1}', b'{"format": NaN}'],
)
def test_bytes_that_are_no_manifest_are_refused(data: bytes) -> None:
    with pytest.raises(ModelError, match="no manifest of a model"):
        ModelManifest.from_bytes(data)


def test_a_file_is_what_its_hash_and_size_say() -> None:
    file = manifest().network
    for data in (None, b"", b"x" * file.bytes):
        with pytest.raises(ModelError, match="do this"):
            verified(data, file, "the network", "do this")
