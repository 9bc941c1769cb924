"""A bundle contains definitions as data: they read back as they are, or the reason is given."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paimon_features.core.errors import DefinitionError
from paimon_features.core.types.schema import Float64, Int64, String
from paimon_features.definitions import (
    Definitions,
    Entity,
    EventSource,
    FeatureService,
    FeatureView,
    Fitted,
    Interaction,
    RequestSource,
    TableSource,
    TableView,
    Transformed,
    load_definitions,
)
from paimon_features.definitions import bundle as module
from paimon_features.definitions.aggregates import Count, Sum
from paimon_features.definitions.bundle import Bundle, digest_of
from paimon_features.testing.sizes import every_seed
from paimon_features.transformers import FittedVersion, OneHotEncoder, StandardScaler
from paimon_features.transformers.fitted_version import FOLDER, write_version
from tests.generators import random_view

ROOT = Path(__file__).parents[2]
SOURCE = EventSource("shop", schema={"user": Int64, "t": Int64, "x": Float64}, event_time="t")
USER = Entity("user", keys={"user": Int64}, tags={"team": "growth"})
VIEW = FeatureView("spend", source=SOURCE, entity=USER,
    features=[Sum("x", windows=["1d", None], where="x > 0"), Count(windows=["7d"])],
    derive={"y": "x * 2"}, ttl="90d", max_staleness="1h", tile="10min")  # fmt: skip


def definitions(tmp_path: Path) -> Definitions:
    """A project with one of each kind."""
    payment = RequestSource("payment", schema={"price": Float64})
    ratio = Interaction("ratio", "price / spend:sum_x_1d", request=payment)
    prices = TableSource("prices", schema={"p": String, "t": Int64, "v": Float64}, event_time="t")
    table = TableView("price", source=prices, entity=Entity("product", keys={"p": String}))
    scaled = Transformed("scaled", ["spend:sum_x_1d", ratio], Fitted("scaler", 2))
    coded = Transformed("coded", "spend:count_7d", Fitted("codes", 1))
    scaler = StandardScaler().fit([[1.0, 2.0], [3.0, 9.0]])
    codes = OneHotEncoder().fit([[1], [2], [5]])
    folder = tmp_path / FOLDER
    write_version(folder, FittedVersion("scaler", 2, scaler, 5, {}))
    write_version(folder, FittedVersion("codes", 1, codes, 6, {"table": "training_x"}))
    service = FeatureService("s_v1", [VIEW, ratio, scaled, coded], owner="me")
    return Definitions.of([service, table, prices, payment], fitted=folder)


def equal(left: Definitions, right: Definitions) -> bool:
    """Whether both are the same definitions, for the registry and for the online store."""
    for kind, items in left.by_kind().items():
        others = right.by_kind()[kind]
        if {n: d.to_document() for n, d in items.items()} != {
            n: d.to_document() for n, d in others.items()
        }:
            return False
    return True


def test_one_of_each_kind_reads_back_without_its_files(tmp_path: Path) -> None:
    project = definitions(tmp_path)
    data = Bundle("shop", project, 1_000, {"spend": 3}).to_bytes()
    found = Bundle.from_bytes(data)
    assert (found.project, found.published_at_ms, found.generations) == (
        "shop",
        1_000,
        {"spend": 3},
    )
    assert equal(project, found.definitions)
    assert found.definitions.fitted is None
    outputs = found.definitions.outputs(found.definitions.services["s_v1"].items())
    assert [str(output) for output in outputs][-2:] == ["scaled", "coded"]
    # objects that several definitions share are shared again
    again = found.definitions
    assert again.views["spend"].entity is again.entities["user"]
    assert found.to_bytes() == data
    assert digest_of(data) == hashlib.sha256(data.partition(b"\n")[2]).hexdigest()


@every_seed(60)
def test_random_views_read_back_with_the_same_records(seed: int) -> None:
    view = random_view(random.Random(seed))
    project = Definitions.of([view])
    found = Bundle.from_bytes(Bundle("p", project, 0).to_bytes()).definitions.views[view.name]
    assert found.compiled.online_fingerprint == view.compiled.online_fingerprint
    assert found.to_document() == view.to_document()
    assert [f.aggregate for f in found.compiled.features] == [
        f.aggregate for f in view.compiled.features
    ]


def test_the_examples_read_back() -> None:
    project = load_definitions(ROOT / "examples/retail/features.py")
    assert equal(project, Bundle.from_bytes(Bundle("p", project, 0).to_bytes()).definitions)


@dataclass(frozen=True)
class Own(Count):
    """An aggregate of a project: code, that no bundle can contain."""


def test_code_of_the_project_is_refused_when_it_is_published() -> None:
    view = FeatureView("own", source=SOURCE, entity=USER, features=[Own(windows=["1d"])])
    with pytest.raises(DefinitionError, match=r"Own is not a class of paimon-features.*their file"):
        Bundle("p", Definitions.of([view]), 0).to_bytes()


def with_content(data: bytes, change: Any) -> bytes:
    """The bundle with changed content, and the digest of that."""
    content = json.loads(data.partition(b"\n")[2])
    change(content)
    body = json.dumps(content).encode()
    header = {
        "paimon_features_bundle": 1,
        "digest": hashlib.sha256(body).hexdigest(),
        "bytes": len(body),
    }
    return json.dumps(header).encode() + b"\n" + body


def test_a_later_format_is_refused_with_what_to_do(tmp_path: Path) -> None:
    data = Bundle("p", definitions(tmp_path), 0).to_bytes()
    later = data.replace(b'"paimon_features_bundle":1', b'"paimon_features_bundle":2', 1)
    with pytest.raises(DefinitionError, match=r"format 2, .* reads up to 1: upgrade this host"):
        Bundle.from_bytes(later)


def test_every_damaged_byte_is_noticed(tmp_path: Path) -> None:
    data = Bundle("p", definitions(tmp_path), 0).to_bytes()
    rng = random.Random(0)
    for at in [*range(120), *(rng.randrange(len(data)) for _ in range(100)), len(data) - 1]:
        broken = bytearray(data)
        broken[at] ^= 1 << rng.randrange(8)
        with pytest.raises(DefinitionError):
            Bundle.from_bytes(bytes(broken))
    for size in (0, 1, 60, len(data) - 1):
        with pytest.raises(DefinitionError):
            Bundle.from_bytes(data[:size])
    with pytest.raises(DefinitionError):
        Bundle.from_bytes(data + b" ")


def test_the_size_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = definitions(tmp_path)
    data = Bundle("p", project, 0).to_bytes()
    monkeypatch.setattr(module, "KIND", replace(module.KIND, max_bytes=len(data) - 1))
    with pytest.raises(DefinitionError, match="has at most"):
        Bundle.from_bytes(data)
    with pytest.raises(DefinitionError, match="expected at most"):
        Bundle("p", project, 0).to_bytes()


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else []


@pytest.mark.parametrize(
    ("hostile", "message"),
    [
        ({"is": "Path", "args": ["/etc/passwd"]}, "unknown kind of definition"),
        ({"is": "object"}, "unknown kind of definition"),
        ({"is": "os.system", "command": "true"}, "unknown kind of definition"),
        ({"is": "Aggregate"}, "unknown kind of definition"),
        ({"is": "Entity", "name": "e", "keys": {"map": []}, "__class__": "x"}, "unknown argument"),
        (
            {"is": "Entity", "name": "e", "keys": {"map": [["k", {"type": "code"}]]}},
            "unknown column type",
        ),
        ({"is": "Entity", "name": "../e", "keys": {"map": []}}, "entity '../e'"),
        ({"is": "Entity", "name": {"ref": 99}, "keys": {"map": []}}, "not before it"),
        ({"is": "Entity", "name": {"ref": -1}, "keys": {"map": []}}, "not before it"),
        ({"is": "Entity", "name": {"ref": True}, "keys": {"map": []}}, "not before it"),
        ({"is": "Entity", "name": "e", "keys": {"map": 7}}, "definition 0 of the bundle"),
        ({"is": "Entity", "name": "e", "keys": {"map": [[{"map": []}, 1]]}}, "definition 0"),
        ({"is": "Entity", "name": "e", "keys": nested(45)}, "nested more than 40 levels"),
        ({"is": "Interaction", "name": "i", "expression": "__import__('os')"}, "bundle"),
        ("Entity", "is not a definition"),
        (None, "is not a definition"),
    ],
)
def test_only_known_classes_with_valid_arguments_are_made(
    hostile: Any, message: str, tmp_path: Path
) -> None:
    data = Bundle("p", definitions(tmp_path), 0).to_bytes()
    with pytest.raises(DefinitionError, match=message):
        Bundle.from_bytes(with_content(data, lambda c: c.update(definitions=[hostile])))


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.pop("fitted"), lambda c: c.pop("project"), lambda c: c.update(fitted=[]),
        lambda c: c.update(fitted=[{"name": "x"}]), lambda c: c.update(definitions=5),
        lambda c: c.update(generations=[1]), lambda c: c["fitted"][0].update(version=9),
    ],
)  # fmt: skip
def test_incomplete_content_is_refused(change: Any, tmp_path: Path) -> None:
    data = Bundle("p", definitions(tmp_path), 0).to_bytes()
    with pytest.raises(DefinitionError):
        Bundle.from_bytes(with_content(data, change))


def test_numbers_of_numpy_are_written_as_numbers() -> None:
    from paimon_features.definitions.aggregates import Histogram

    edges = [float(edge) for edge in np.linspace(0, 1, 4)]
    view = FeatureView("h", source=SOURCE, entity=USER,
        features=[Histogram("x", edges=edges, windows=["1d"])])  # fmt: skip
    found = Bundle.from_bytes(Bundle("p", Definitions.of([view]), 0).to_bytes())
    assert found.definitions.views["h"].features[0].edges == tuple(edges)  # type: ignore[attr-defined]
