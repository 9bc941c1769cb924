"""The archive of Flink's classes: the JVM of a job maps it, and what is not whole is not used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paimon_features.core.installation.jars import jar_folder
from paimon_features.core.installation.java import find_java
from paimon_features.flink.class_archive import (
    BASE,
    DESTINATION,
    FLINK,
    archive_folder,
    is_complete,
    jvm_options,
    note_sizes,
)
from paimon_features.flink.environment import open_environment
from paimon_features.flink.gateway import JAR_GROUPS, flink_home, start_gateway
from paimon_features.project.class_archive_writer import FIRST_VERSION, write_archive

pytestmark = pytest.mark.flink


def make_archive(folder: Path) -> Path:
    folder.mkdir()
    (folder / BASE).write_bytes(b"base")
    (folder / FLINK).write_bytes(b"flink")
    note_sizes(folder)
    return folder


def test_a_complete_archive_is_used_and_no_other(tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    assert jvm_options(folder) == ""
    make_archive(folder)
    assert f"-XX:SharedArchiveFile={folder}/{BASE}:{folder}/{FLINK}" in jvm_options(folder)
    (folder / FLINK).write_bytes(b"flin")  # a full disk: Java would end with SIGBUS
    assert not is_complete(folder)
    assert jvm_options(folder) == ""
    note_sizes(folder)
    (folder / BASE).unlink()
    assert jvm_options(folder) == ""


@pytest.mark.parametrize("name", ["a b", "a:b", "a\tb"])
def test_a_path_that_the_options_cannot_name_is_not_used(tmp_path: Path, name: str) -> None:
    assert jvm_options(make_archive(tmp_path / name)) == ""


def test_another_java_and_other_jars_have_another_archive(tmp_path: Path) -> None:
    java, flink = tmp_path / "java", tmp_path / "flink"
    (flink / "lib").mkdir(parents=True)
    first = archive_folder(java, flink, ())
    assert first == archive_folder(java, flink, ())
    assert archive_folder(tmp_path / "jdk", flink, ()) != first
    (flink / "lib" / "a.jar").write_bytes(b"a")
    assert archive_folder(java, flink, ()) != first


def test_the_jvm_of_local_jobs_has_mapped_it(tmp_path: Path) -> None:
    java = find_java()
    folder = archive_folder(java.home, flink_home(), JAR_GROUPS)
    if java.version < FIRST_VERSION:
        pytest.skip(f"Java {java.version} has no archives of Flink's classes")
    if not is_complete(folder):
        pytest.skip("no archive here: paimon-features jars --class-archive")
    open_environment(state_dir=tmp_path)
    mapped = Path(f"/proc/{start_gateway().pid}/maps").read_text()
    assert str(folder / FLINK) in mapped


@pytest.mark.long
def test_an_archive_is_written_once_and_a_damaged_one_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "jars").symlink_to(jar_folder())
    monkeypatch.setenv("PAIMON_FEATURES_CACHE", str(cache))
    monkeypatch.delenv(DESTINATION, raising=False)
    folder = write_archive()
    if folder is None:
        pytest.skip("Java is too old for archives")
    written = (folder / FLINK).stat().st_mtime_ns
    assert is_complete(folder)
    assert write_archive() == folder
    assert (folder / FLINK).stat().st_mtime_ns == written
    assert sorted(path.name for path in folder.parent.iterdir()) == [".lock", folder.name]
    os.truncate(folder / BASE, 100)
    assert write_archive() == folder
    assert is_complete(folder)
    assert (folder / FLINK).stat().st_mtime_ns != written
