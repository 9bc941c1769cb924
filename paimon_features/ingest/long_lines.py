"""Lines that no job may read: longer than a limit, they are cut before the job starts.

Flink reads a line into memory, however long it is: one of 300 MB ends the JVM. A text file with
such a line is copied, each of its long lines replaced by a short one that the job rejects as
``line_too_long``. Other files are read once, and not copied.
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from paimon_features.core.errors import ConfigurationError, TableError
from paimon_features.ingest.input_files import InputFile

try:
    from isal.igzip import open as open_gzip
except ImportError:  # pypaimon installs it on x86-64 and ARM
    from gzip import open as open_gzip

MAX_LINE_BYTES = 8 << 20
"""The default limit. A job's memory is sized for lines of this length."""
CUT_LINE = "\x01[line of "
"""What stands for a line that is too long, before its bytes and its beginning."""
_CHUNK = 1 << 20
_KEPT_BYTES = 1_000
"""Bytes of a long line that the rejected row contains."""


@contextmanager
def without_long_lines(
    files: Iterable[InputFile], folder: Path, limit: int
) -> Iterator[tuple[InputFile, ...]]:
    """Yield the files, those with lines of more than ``limit`` bytes as copies in ``folder``.

    The copies are deleted at the end.

    Raises
    ------
    ConfigurationError
        For a file that cannot be read, and a CSV file whose header is too long.
    TableError
        If a copy cannot be written.
    """
    copies: list[Path] = []
    try:
        readable = []
        for file in files:
            if file.format == "parquet" or file.converted or not _has_long_line(file.path, limit):
                readable.append(file)
                continue
            # a folder of its own: a scan reads one folder
            copy = folder / f"{file.sha256[:16]}-{len(copies)}" / file.path.name
            copies.append(copy)
            _copy(file, copy, limit)
            readable.append(replace(file, copy=copy))
        yield tuple(readable)
    finally:
        for copy in copies:
            shutil.rmtree(copy.parent, ignore_errors=True)


def _has_long_line(path: Path, limit: int) -> bool:
    length = 0
    with open_text(path) as file:
        while chunk := file.read(min(_CHUNK, limit)):
            first = chunk.find(b"\n")
            if first < 0:
                length += len(chunk)
            else:
                if length + first > limit:
                    return True
                length = len(chunk) - chunk.rfind(b"\n") - 1
            if length > limit:
                return True
    return False


def _copy(file: InputFile, copy: Path, limit: int) -> None:
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        opener: Any = open_gzip if copy.suffix == ".gz" else open
        with opener(copy, "wb") as out:
            for number, line in enumerate(_lines(file.path, limit)):
                if file.format == "csv" and number == 0 and line.startswith(CUT_LINE.encode()):
                    raise ConfigurationError(
                        f"{file.path}: its first line has more than {limit:,} bytes: it is not a "
                        "CSV header"
                    )
                out.write(line)
    except OSError as error:
        raise TableError(
            f"{file.path}: it has a line of more than {limit:,} bytes, and a copy without it "
            f"cannot be written: {error}; free space, or remove the line"
        ) from error


def _lines(path: Path, limit: int) -> Iterator[bytes]:
    """Yield the lines of a file, a long one replaced by its beginning."""
    with open_text(path) as file:
        while line := file.readline(limit + 1):
            if len(line) <= limit or line.endswith(b"\n"):
                yield line
                continue
            length, begun = len(line), line[:_KEPT_BYTES]
            while not line.endswith(b"\n") and (line := file.readline(_CHUNK)):
                length += len(line)
                begun += line[: _KEPT_BYTES - len(begun)]
            yield _marked(length - line.endswith(b"\n"), begun.removesuffix(b"\n"))


def _marked(length: int, begun: bytes) -> bytes:
    # half of a character at the end would be another reason to reject the row
    shown = begun.decode("utf-8", "ignore").replace("\r", " ").replace("\n", " ")
    return f"{CUT_LINE}{length} bytes] {shown}\n".encode()


@contextmanager
def open_text(path: Path) -> Iterator[Any]:
    """Open a text file, decompressed; ConfigurationError if it cannot be read."""
    opener: Any = open_gzip if path.suffix == ".gz" else open
    try:
        with opener(path, "rb") as file:
            yield file
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigurationError(f"{path}: it cannot be read: {error}") from error
