"""A version as a document and as a file: equal to the bit, and refused where it was changed."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from paimon_features.core.errors import DefinitionError, TransformError
from paimon_features.transformers import (
    FittedVersion,
    MinMaxScaler,
    OneHotEncoder,
    StandardScaler,
    StoredTransformer,
)
from paimon_features.transformers.fitted_version import canonical, read_version, write_version

GOLDEN = """\
{
  "digest": "e935eef7ea7db990",
  "fitted_at_ms": 1700000000000,
  "fitted_on": {
    "snapshot_id": 4,
    "table": "training_churn"
  },
  "name": "amount_scaler",
  "transformer": {
    "count": [
      3
    ],
    "kind": "standard_scaler",
    "mean": [
      3.0
    ],
    "mean_rest": [
      0.0
    ],
    "names": null,
    "rows": 4,
    "squares": [
      14.0
    ]
  },
  "version": 3
}
"""


def version(transformer: StoredTransformer | None = None, number: int = 3) -> FittedVersion:
    scaler = StandardScaler().fit([[1.0], [2.0], [None], [6.0]])
    on = {"table": "training_churn", "snapshot_id": 4}
    return FittedVersion("amount_scaler", number, transformer or scaler, 1_700_000_000_000, on)


def test_the_file_of_a_version_stays_as_it_is_byte_by_byte(tmp_path: Path) -> None:
    path = write_version(tmp_path, version())
    assert path == tmp_path / "amount_scaler" / "v3.json"
    assert path.read_text("utf-8") == GOLDEN
    before = path.stat().st_mtime_ns
    write_version(tmp_path, version())
    assert path.stat().st_mtime_ns == before
    assert [p.name for p in path.parent.iterdir()] == ["v3.json"]


@pytest.mark.parametrize(
    "transformer",
    [
        StandardScaler().fit([[1e9 + 1e-3, 0.1], [1e9, 1 / 3], [None, -5e-324]]),
        MinMaxScaler((0.1, 0.3)).fit([[None], [None]]),
        OneHotEncoder("ignore").fit([["ä", 1.5, True], [None, 2, False]]),
    ],
    ids=lambda transformer: transformer.kind,
)
def test_what_is_read_is_what_was_written_to_the_bit(
    tmp_path: Path, transformer: StoredTransformer
) -> None:
    write_version(tmp_path, version(transformer))
    again = read_version(tmp_path, "amount_scaler", 3)
    assert again == version(transformer)
    assert again.params == version(transformer).params
    assert again.digest == version(transformer).digest


def test_every_changed_byte_of_a_file_is_noticed(tmp_path: Path) -> None:
    path = write_version(tmp_path, version())
    text = path.read_text("utf-8")
    reformatted = json.dumps(json.loads(text))  # other blanks, the same content
    path.write_text(reformatted)
    assert read_version(tmp_path, "amount_scaler", 3) == version()
    for place in [m.start() for m in re.finditer(r"[0-9a-z]", text)]:
        path.write_text(text[:place] + chr(ord(text[place]) ^ 1) + text[place + 1 :])
        with pytest.raises(DefinitionError, match=r"v3\.json: .*fitted amount_scaler 3 --export"):
            read_version(tmp_path, "amount_scaler", 3)


def test_what_is_wrong_with_a_file_is_reported_with_the_command_that_writes_it(
    tmp_path: Path,
) -> None:
    def reported(name: str = "amount_scaler", number: int = 3) -> str:
        with pytest.raises(DefinitionError) as error:
            read_version(tmp_path, name, number)
        return str(error.value)

    write_version(tmp_path, version(number=2))
    path = tmp_path / "amount_scaler" / "v3.json"
    assert reported() == (
        f"fitted transformer 'amount_scaler' version 3: no such file: {path} (available: v2); "
        "'paimon-features fitted amount_scaler 3 --export' writes it from the lake"
    )
    path.write_text((tmp_path / "amount_scaler" / "v2.json").read_text())
    assert (
        "it contains amount_scaler v2; restore it, or delete it and export it again" in reported()
    )
    document: dict[str, Any] = version().to_document()
    document["transformer"]["mean"] = [4.0]
    path.write_text(json.dumps(document))
    assert "it was changed or damaged after it was written" in reported()
    for wrong in ("[]", "", "{}", "{" * 100_000, '{"digest": 1}', "nul", '{"a": NaN}'):
        path.write_text(wrong)
        assert str(path) in reported()
    path.write_bytes(b"\xff\xfe")
    assert "cannot be read" in reported()
    with pytest.raises(
        DefinitionError, match="exists and differs from amount_scaler v3 in the lake"
    ):
        write_version(tmp_path, version())


def test_a_document_of_a_later_version_of_this_package_is_refused() -> None:
    document = version().to_document()
    document["transformer"]["more"] = 1
    del document["digest"]
    document["digest"] = hashlib.sha256(canonical(document).encode()).hexdigest()[:16]
    with pytest.raises(TransformError, match="another version of paimon-features"):
        FittedVersion.from_document(document)
    with pytest.raises(TransformError, match="is not fitted"):
        _ = version(StandardScaler()).digest
