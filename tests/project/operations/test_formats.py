"""What a later release has written is refused, with what to do: docs/reference/formats.md."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from paimon_features.core.errors import PaimonFeaturesError, TableError
from paimon_features.lake import Lake
from paimon_features.lake.side_folder import format_version
from paimon_features.lake.table_folders import SIDE_FOLDER
from paimon_features.online.store.markers import Marker, ViewState
from paimon_features.project.backup import copying
from paimon_features.serving.request_log.log_rows import log_schema
from paimon_features.serving.request_log.spool import SpoolFile, described_schema, read_spool
from trainer_bridge.order.reader_state import ReaderState
from trainer_bridge.streams.following_state import FollowState

PAGE = Path(__file__).parents[3] / "docs/reference/formats.md"


def side_folder(folder: Path) -> None:
    format_version.raise_to(folder / SIDE_FOLDER, 2)
    Lake.open(folder, "features")


def marker(_: Path) -> None:
    data = Marker(1, 2, 3, 4, 5, 6).to_bytes()
    Marker.from_bytes(struct.pack("B", data[0] + 1) + data[1:])


def view_state(_: Path) -> None:
    document = json.loads(ViewState("1a2b3c4d").to_bytes())
    ViewState.from_bytes(json.dumps({**document, "format": document["format"] + 1}).encode())


def spool(folder: Path) -> None:
    schema = described_schema(log_schema(), "shop", "w")
    later = json.loads(schema.metadata[b"paimon_features"])
    later["format"] += 1
    file = SpoolFile(
        folder, "a", log_schema().with_metadata({"paimon_features": json.dumps(later)})
    )
    file.append(pa.RecordBatch.from_pylist([], log_schema()))
    read_spool(file.complete(), log_schema())


def backup(folder: Path) -> None:
    (folder / copying.DESCRIPTION).write_text(json.dumps({"format": copying.FORMAT + 1}))
    copying.describe(folder)


def reader_state(_: Path) -> None:
    ReaderState.from_dict({"version": 3})


def follow_state(_: Path) -> None:
    FollowState.from_dict({"version": 3})


REFUSED: dict[str, Callable[[Path], None]] = {
    "records of the side folder": side_folder,
    "markers of the online store": marker,
    "states of views in the online store": view_state,
    "spool files of the request log": spool,
    "backups": backup,
    "states of readers": reader_state,
    "states of following readers": follow_state,
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_a_later_release_wrote_is_refused_with_what_to_do(what: str, tmp_path: Path) -> None:
    with pytest.raises(PaimonFeaturesError, match=re.compile("format|version")) as refused:
        REFUSED[what](tmp_path)
    assert re.search("release|version", str(refused.value))
    assert f"| {what} |" in PAGE.read_text("utf-8")


def test_a_side_folder_of_an_earlier_release_has_no_format_and_is_read(tmp_path: Path) -> None:
    assert Lake.open(tmp_path, "features").list() == []
    format_version.raise_to(tmp_path / SIDE_FOLDER, 1)
    assert not (tmp_path / SIDE_FOLDER / format_version.FILE).exists()
    (tmp_path / SIDE_FOLDER).mkdir()
    for content in ('{"format": "2"}', "[]"):
        (tmp_path / SIDE_FOLDER / format_version.FILE).write_text(content)
        with pytest.raises(TableError, match="expected a number"):
            Lake.open(tmp_path, "features")
    (tmp_path / SIDE_FOLDER / format_version.FILE).write_text('{"format": 1, "release": "0"}')
    Lake.open(tmp_path, "features")
