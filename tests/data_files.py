"""Replace data files of a table, for tests of files that other writers write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq


def replace_file(path: str | Path, rows: pa.Table | None = None, **options: Any) -> None:
    """Write a data file again (its own rows by default) and its new size into the manifests.

    ``options`` are those of ``pyarrow.parquet.write_table``.
    """
    path = Path(path)
    if rows is None:
        with pq.ParquetFile(path) as file:
            rows = file.read()
    path.unlink()  # readers that have mapped it keep what they read
    pq.write_table(rows, path, **options)
    (folder,) = (p / "manifest" for p in path.parents if (p / "manifest").is_dir())
    lists = sorted(folder.glob("manifest-list-*"))
    for manifest in set(folder.glob("manifest-*")) - set(lists):
        if _set_size(manifest, path.name, path.stat().st_size):
            for listed in lists:
                if _set_size(listed, manifest.name, manifest.stat().st_size):
                    _set_list_size(folder.parent, listed)


def _set_list_size(table: Path, listed: Path) -> None:
    """Set the size of a list of manifests in the snapshots and tags that have it."""
    for path in (*(table / "snapshot").glob("snapshot-*"), *(table / "tag").glob("tag-*")):
        snapshot = json.loads(path.read_text("utf-8"))
        for kind in ("base", "delta"):
            if snapshot.get(f"{kind}ManifestList") == listed.name:
                snapshot[f"{kind}ManifestListSize"] = listed.stat().st_size
        path.write_text(json.dumps(snapshot), "utf-8")


def _set_size(path: Path, name: str, size: int) -> bool:
    """Set the size of a file in a manifest, or in a list of manifests; whether it is there."""
    with path.open("rb") as file:
        reader = fastavro.reader(file)
        schema, codec = reader.writer_schema, reader.codec
        entries: list[Any] = list(reader)
    # a manifest describes data files in a field, a list describes manifests themselves
    found = [e for e in (e.get("_FILE", e) for e in entries) if e["_FILE_NAME"] == name]
    for entry in found:
        entry["_FILE_SIZE"] = size
    if found:
        with path.open("wb") as file:
            fastavro.writer(file, schema, entries, codec)
    return bool(found)
