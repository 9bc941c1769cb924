"""Checkpoints in an object store: found, read and deleted as those in a folder."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from paimon_features.core.configuration.project_config import FlinkConfig, read_config
from paimon_features.core.errors import ConfigurationError, GenerationError
from paimon_features.core.installation import jars
from paimon_features.flink.checkpoints import METADATA, find_checkpoints, read_checkpoint
from paimon_features.lake.storage.file_path import (
    CHECKPOINTS,
    FilePath,
    RemotePath,
    checkpoint_path,
    delete_folder,
    first_bytes,
    job_state_folder,
    modified_ns,
    read_bytes,
)
from tests.servers.object_store import object_store

A, B = "a" * 32, "b" * 32


@pytest.fixture(params=["folder", "store"])
def base(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[FilePath]:
    """The state of jobs in a folder, and in a store."""
    # nothing of this test for the JVMs of later ones
    monkeypatch.setattr(jars, "_checkpoint_store", None)
    if request.param == "folder":
        yield job_state_folder(tmp_path, FlinkConfig())
        return
    with object_store("bucket") as store:
        # the server keeps what earlier tests wrote
        address = f"s3://bucket/jobs-{secrets.token_hex(4)}"
        flink = FlinkConfig(checkpoints=address, checkpoint_options=store.options)
        found = job_state_folder(tmp_path, flink)
        assert isinstance(found, RemotePath)
        noted = jars.checkpoint_store()
        assert noted is not None
        assert "secret" not in repr(noted)
        assert noted.options["s3.endpoint"] == store.endpoint
        assert noted.options["s3.path.style.access"] == "true"
        yield found


def write(path: FilePath, content: bytes) -> None:
    if isinstance(path, Path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    else:
        with path.storage.open_output(path.address) as file:
            file.write(content)


def metadata(number: int) -> bytes:
    return bytes.fromhex("4960672d 00000005") + number.to_bytes(8, "big") + b"and more"


def test_checkpoints_are_found_by_their_metadata(base: FilePath) -> None:
    folder = base / CHECKPOINTS / "spend" / "g1"
    assert find_checkpoints(folder) == ()
    write(folder / A / "chk-7" / METADATA, metadata(7))
    write(folder / A / "savepoint-aaaaaa-0123" / METADATA, metadata(12))
    write(folder / B / "chk-9" / METADATA, metadata(9))
    write(folder / B / "chk-10" / "part", b"its job died while it was written")
    write(folder / B / "shared" / "deep" / METADATA, metadata(99))
    found = find_checkpoints(folder)
    assert [(c.id, c.job_id) for c in found] == [(7, A), (9, B), (12, A)]
    assert str(found[0].path) == f"{folder}/{A}/chk-7"
    assert found[0].path.as_uri().endswith(f"/checkpoints/spend/g1/{A}/chk-7")
    with pytest.raises(GenerationError, match="not a complete checkpoint"):
        read_checkpoint(folder / B / "chk-10")


def test_a_folder_is_deleted_with_its_content_and_others_stay(base: FilePath) -> None:
    for job in (A, B):
        write(base / job / "chk-1" / METADATA, metadata(1))
    delete_folder(base / A)
    delete_folder(base / "never")
    assert not (base / A).is_dir()
    assert sorted(path.name for path in base.glob("*")) == [B]


def test_the_content_of_a_checkpoint_is_read(base: FilePath) -> None:
    path = base / A / "chk-3" / METADATA
    with pytest.raises(FileNotFoundError):
        first_bytes(path, 16)
    with pytest.raises(FileNotFoundError):
        modified_ns(path)
    write(path, metadata(3))
    assert first_bytes(path, 16) == metadata(3)[:16]
    assert read_bytes(path) == metadata(3)
    assert modified_ns(path) > 1_600_000_000 * 10**9


def test_a_recorded_path_is_one_of_the_store_if_it_has_an_address(tmp_path: Path) -> None:
    assert checkpoint_path(tmp_path, FlinkConfig(), "/a/chk-1") == Path("/a/chk-1")


@pytest.mark.parametrize("address", ["/mnt/jobs", "s3://bucket", "s3:///jobs", "hdfs://host/jobs"])
def test_only_a_folder_on_s3_is_accepted(tmp_path: Path, address: str) -> None:
    (tmp_path / "paimon-features.toml").write_text(f'[flink]\ncheckpoints = "{address}"\n')
    with pytest.raises(ConfigurationError, match="expected s3://BUCKET/FOLDER"):
        read_config(tmp_path)


def test_options_of_the_warehouse_are_those_of_the_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "paimon-features.toml").write_text(
        '[lake]\nwarehouse = "s3://bucket/lake"\noptions = { endpoint = "http://s3:9000" }\n'
        '[flink]\ncheckpoints = "s3://bucket/jobs/"\n'
    )
    flink = read_config(tmp_path).flink
    assert flink.checkpoints == "s3://bucket/jobs"
    assert flink.checkpoint_options == {"endpoint": "http://s3:9000"}
    assert "9000" not in repr(flink)
