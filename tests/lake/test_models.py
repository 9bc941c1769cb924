"""Model versions in the lake: each one commit, verified when read; states by compare-and-set."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paimon_features.core.errors import (
    DamagedFileError,
    ModelError,
    OwnershipError,
    UnknownNameError,
)
from paimon_features.lake import Lake, append_arrow, read_arrow
from paimon_features.models import ModelManifest, ModelStates, VersionNote
from paimon_features.models import versions_table as models
from paimon_features.models.versions_table import (
    change_states,
    load_file,
    load_manifest,
    load_manifests,
    model_names,
    notes_of,
    register_version,
    states_of,
)
from tests.models.networks import manifest, network

SPAWN = multiprocessing.get_context("spawn")


def files(weight: float = 1.0) -> dict[str, bytes]:
    return {"network.onnx": network(weight).SerializeToString(), "report.html": b"<h1>ok</h1>"}


def register(lake: Lake, weight: float, now_ms: int = 5) -> ModelManifest:
    return register_version(lake, manifest(), files(weight), now_ms)


def test_versions_are_numbered_and_read_back(lake: Lake) -> None:
    assert model_names(lake) == []
    first, second = register(lake, 1.0), register(lake, 2.0, 6)
    assert (first.version, second.version) == (1, 2)
    assert load_manifests(lake, "churn") == {1: first, 2: second}
    for made, weight in ((first, 1.0), (second, 2.0)):
        assert {name: load_file(lake, made, name) for name in made.files} == files(weight)
    assert [each.state for each in states_of(lake, "churn").versions] == ["candidate"] * 2
    assert model_names(lake) == ["churn"]


def test_versions_continue_where_the_side_folder_was_lost(lake: Lake) -> None:
    first = register(lake, 1.0)
    shutil.rmtree(str(lake.side_folder / "models"))
    assert register(lake, 2.0).version == 2
    assert load_manifest(lake, "churn", 1) == first


def test_registering_the_newest_version_again_returns_it(lake: Lake) -> None:
    first = register(lake, 1.0)
    assert register(lake, 1.0, now_ms=99) == first
    assert register(lake, 2.0).version == 2
    # not the newest one any more
    assert register(lake, 1.0).version == 3


def test_large_files_are_stored_in_parts(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_PART_BYTES", 100)
    data = os.urandom(1_234)
    made = register_version(lake, manifest(), {**files(), "weights.bin": data}, 5)
    assert load_file(lake, made, "weights.bin") == data


def test_unknown_names_are_listed(lake: Lake) -> None:
    made = register(lake, 1.0)
    with pytest.raises(UnknownNameError, match="unknown model 'chrun'; available: churn"):
        states_of(lake, "chrun")
    with pytest.raises(UnknownNameError, match="has no version 7; it has: 1"):
        load_manifest(lake, "churn", 7)
    with pytest.raises(UnknownNameError, match=r"network\.onnx, report\.html"):
        load_file(lake, made, "weights")


def test_a_network_that_must_not_be_loaded_is_not_registered(lake: Lake) -> None:
    bad = network()
    bad.graph.node[0].domain = "evil.ops"
    with pytest.raises(ModelError, match=r"evil\.ops"):
        register_version(lake, manifest(), {"network.onnx": bad.SerializeToString()}, 5)
    other = network()
    other.graph.input[0].name = "other"
    with pytest.raises(ModelError, match="not those of its signature"):
        register_version(lake, manifest(), {"network.onnx": other.SerializeToString()}, 5)
    with pytest.raises(ModelError, match=r"no file 'network\.onnx'"):
        register_version(lake, manifest(), {"report.html": b"x"}, 5)
    assert model_names(lake) == []


def test_states_change_by_compare_and_set(lake: Lake) -> None:
    register(lake, 1.0)
    register(lake, 2.0)
    serial = states_of(lake, "churn").serial

    def promote(version: int) -> ModelStates:
        return change_states(
            lake,
            "churn",
            lambda states: states.changed(version, "production", 7),
            now_ms=7,
            expected_serial=serial,
        )

    after = promote(1)
    assert states_of(lake, "churn") == after
    with pytest.raises(OwnershipError, match="changed meanwhile"):
        promote(2)
    assert states_of(lake, "churn") == after


def test_damage_is_found_when_it_is_read(lake: Lake) -> None:
    made = register(lake, 1.0)
    rows = read_arrow(lake, "models_churn").to_pylist()
    table = read_arrow(lake, "models_churn").slice(0, 0)

    def add(**changes: Any) -> None:
        kind = changes.pop("kind")
        row = next(row for row in rows if row["kind"] == kind)
        own = type(table).from_pylist([{**row, **changes}], table.schema)
        append_arrow(lake, "models_churn", own)

    add(kind="file", data=b"damaged", part=0, name=made.network.sha256)
    with pytest.raises(ModelError, match="is damaged"):
        load_file(lake, made, "network.onnx")
    add(kind="manifest", document="{}")
    with pytest.raises(DamagedFileError, match="does not match its SHA-256"):
        load_manifest(lake, "churn", 1)
    add(kind="states", document="{}", serial=99)
    with pytest.raises(DamagedFileError, match="do not match their digest"):
        states_of(lake, "churn")


def test_a_note_is_part_of_the_commit_that_it_explains(lake: Lake) -> None:
    register(lake, 1.0)
    note = VersionNote(1, 5, "promoted", "better", {"rows": 3})
    after = change_states(
        lake, "churn", lambda states: states.changed(1, "production", 5), now_ms=5, note=note
    )
    assert notes_of(lake, "churn") == [note]
    alone = VersionNote(1, 6, "alarm", "worse")
    noted = change_states(lake, "churn", lambda states: states, now_ms=6, note=alone)
    assert noted == replace(after, serial=after.serial + 1)
    assert notes_of(lake, "churn") == [note, alone]
    with pytest.raises(ModelError, match="expected at most"):
        VersionNote(1, 0, "promoted", "x" * 70_000)
    rows = read_arrow(lake, "models_churn")
    own = next(row for row in rows.to_pylist() if row["kind"] == "note")
    damaged = type(rows).from_pylist([{**own, "document": "{}"}], rows.schema)
    append_arrow(lake, "models_churn", damaged)
    with pytest.raises(DamagedFileError, match="note does not match its digest"):
        notes_of(lake, "churn")


def _register_until_killed(warehouse: str, first: int, started: Any) -> None:
    lake = Lake.open(warehouse, "features")
    for number in range(first, first + 1_000):
        register_version(lake, manifest(), files(float(number)), number)
        started.set()


def test_a_killed_writer_leaves_complete_versions_only(tmp_path: Path) -> None:
    warehouse = str(tmp_path / "lake")
    kills = int(os.environ.get("PAIMON_FEATURES_KILLS", "1"))
    count = 0
    for number in range(kills):
        started = SPAWN.Event()
        process = SPAWN.Process(
            target=_register_until_killed, args=(warehouse, number * 1_000, started)
        )
        process.start()
        assert started.wait(120)
        time.sleep(number % 10 * 0.013)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        lake = Lake.open(warehouse, "features")
        found = load_manifests(lake, "churn")
        assert sorted(found) == list(range(1, len(found) + 1))
        assert len(found) > count
        count = len(found)
        newest = found[count]
        assert {name: load_file(lake, newest, name) for name in newest.files}
    made = register(Lake.open(warehouse, "features"), -1.0)
    assert made == replace(made, version=count + 1)
