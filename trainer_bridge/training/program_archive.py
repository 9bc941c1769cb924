"""The file of a program of ``torch.export``, rebuilt from parts that are known to be data.

``torch.export.load`` runs what a file says: it unpickles constants, evaluates the expressions of
shapes as Python, imports the modules of enumerations, looks operators up by any dotted name, and
compiles the names of inputs into source code. So it never reads a file of the store. What this
package wrote is read here part by part, each value is compared with what it may be, and a new
archive with the same program is written of them, which is what torch loads.
"""

from __future__ import annotations

import io
import json
import math
import re
import zipfile
from collections.abc import Mapping
from typing import Any

from paimon_features.core.documents.unambiguous_json import parse_unambiguous_json
from paimon_features.core.errors import ModelError
from paimon_features.models import MAX_FILE_BYTES
from trainer_bridge.training.program_graph import checked_graph, checked_name, checked_tensor

_ROOT = "archive/"
_MODEL = "models/model.json"
_SAMPLES = "data/sample_inputs/model.pt"
_FIXED = {"archive_format": b"pt2", "archive_version": b"0", ".data/version": b"6\n",
          "byteorder": b"little"}  # fmt: skip
"""Parts with one content."""
_CONFIGS = {"data/weights/": "model_weights_config.json",
            "data/constants/": "model_constants_config.json"}  # fmt: skip
_IGNORED = (".data/serialization_id",)
_NAMES = frozenset((_MODEL, _SAMPLES, *_FIXED, *_IGNORED, *(f + n for f, n in _CONFIGS.items())))
_ARRAY = re.compile(r"data/weights/weight_[0-9]{1,6}|data/constants/tensor_[0-9]{1,6}")
_PAYLOAD = {"path_name", "is_param", "use_pickle", "tensor_meta"}
_MAX_PARTS = 20_000


def canonical_program(data: bytes) -> bytes:
    """Return the archive with the program of ``data``, which torch may load.

    Raises
    ------
    ModelError
        For a file that is not what ``torch.export.save`` writes for a program without a pickle.
    """
    try:
        return _archive(_parts(data))
    except ModelError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError, OSError, NotImplementedError,
            RuntimeError, EOFError, zipfile.BadZipFile) as error:  # fmt: skip
        raise ModelError(
            f"the file is not a program of torch.export: {type(error).__name__}: {str(error)[:300]}"
        ) from error


def _parts(data: bytes) -> dict[str, bytes]:
    """Return the parts of the archive by exact name; those that are ignored are left out."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = archive.infolist()
        size = sum(entry.file_size for entry in entries)
        if size > MAX_FILE_BYTES:
            raise ModelError(f"the program has {size:,} bytes; expected at most {MAX_FILE_BYTES:,}")
        if len(entries) > _MAX_PARTS:
            raise ModelError(f"the program has {len(entries):,} parts; expected {_MAX_PARTS:,}")
        parts: dict[str, bytes] = {}
        for entry in entries:
            name = entry.filename.removeprefix(_ROOT)
            is_known = name in _NAMES or _ARRAY.fullmatch(name) is not None
            if not entry.filename.startswith(_ROOT) or not is_known:
                raise ModelError(
                    f"the program has the part {entry.filename[:200]!r}, which could run code"
                )
            if name in parts:
                raise ModelError(f"the program has the part {entry.filename!r} twice")
            if entry.compress_type != zipfile.ZIP_STORED:
                raise ModelError(f"the program has the compressed part {entry.filename!r}")
            parts[name] = archive.read(entry)
    for name, content in _FIXED.items():
        if parts.get(name, content) != content:
            raise ModelError(f"the program's part {name} is {parts[name][:20]!r}, not {content!r}")
    if parts.get(_SAMPLES):
        raise ModelError("the program has example inputs, which are a pickle")
    return parts


def _archive(parts: Mapping[str, bytes]) -> bytes:
    written: dict[str, bytes] = {**_FIXED, _SAMPLES: b""}
    for folder, file in _CONFIGS.items():
        config = parse_unambiguous_json(parts[folder + file])
        if not isinstance(config, dict) or set(config) != {"config"}:
            raise ValueError(f"{file}: expected an object with config")
        payloads = {
            checked_name(name): _payload(folder, payload, parts)
            for name, payload in config["config"].items()
        }
        written[folder + file] = json.dumps({"config": payloads}).encode()
        for payload in payloads.values():
            path = folder + payload["path_name"]
            written[path] = parts[path]
    written[_MODEL] = json.dumps(checked_graph(parse_unambiguous_json(parts[_MODEL]))).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in written.items():
            archive.writestr(zipfile.ZipInfo(_ROOT + name), content)
    return buffer.getvalue()


def _payload(folder: str, payload: Any, parts: Mapping[str, bytes]) -> dict[str, Any]:
    """Return an array of the configuration: which part has its numbers, and how they lie there."""
    if not isinstance(payload, dict) or payload.keys() != _PAYLOAD:
        raise ValueError(f"{folder}: expected {', '.join(sorted(_PAYLOAD))} of each array")
    path, is_param = payload["path_name"], payload["is_param"]
    if payload["use_pickle"] is not False:
        raise ModelError("the program has weights that are a pickle")
    if not isinstance(path, str) or not _ARRAY.fullmatch(folder + path):
        raise ModelError(f"the program has the constant {path!r:.200}, which could run code")
    if not isinstance(is_param, bool):
        raise ValueError("is_param: expected true or false")
    meta = checked_tensor(payload["tensor_meta"])
    sizes = [entry.get("as_int") for entry in meta["sizes"]]
    if not all(type(size) is int and size >= 0 for size in sizes):
        raise ValueError(f"{path}: expected the sizes of an array, got {sizes!r:.200}")
    if math.prod(sizes) > len(parts[folder + path]):
        raise ValueError(f"{path}: {sizes!r:.200} elements in {len(parts[folder + path])} bytes")
    return {"path_name": path, "is_param": is_param, "use_pickle": False, "tensor_meta": meta}
