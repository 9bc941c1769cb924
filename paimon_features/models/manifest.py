"""The manifest of a model version: what it reads and returns, its files, how it was trained.

It is JSON with typed fields and bounded sizes. Files are named by the SHA-256 of their content, so
that nothing else can be loaded in their place. A version never changes: its manifest is identified
by its own SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Literal

from paimon_features.core.documents.typed_json import mapping, typed
from paimon_features.core.documents.unambiguous_json import parse_unambiguous_json
from paimon_features.core.errors import DefinitionError, ModelError, shortened
from paimon_features.core.repeated_items import duplicates
from paimon_features.core.types.schema import check_name, type_from_text

FORMAT = 1
"""The format that is written; a later one is refused."""
MAX_MANIFEST_BYTES = 1 << 20
MAX_FILE_BYTES = 1 << 30
MAX_INPUTS = 4_096
MAX_WIDTH = 65_536
"""Numbers of one input or output in a row."""
MAX_VALUES = 1 << 20
"""Numbers of all inputs in a row."""
MAX_FILES = 64
MAX_CLASSES = 10_000
NETWORK = "network.onnx"
"""The file that serving hosts run; every version has it."""

_SHA256 = re.compile(r"[0-9a-f]{64}")
_FILE = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}(\.[a-z0-9_-]{1,16}){0,3}")
_PARENT = re.compile(r"[a-z][a-z0-9_]{0,127}@[1-9][0-9]{0,8}")
_MAX_TEXT = 1_000
_MAX_VERSION = 2**31 - 1

Task = Literal["binary", "multiclass", "regression"]


@dataclass(frozen=True, slots=True)
class ModelInput:
    """One input of the network, in the order of its graph: a tensor of shape (rows, width).

    ``of`` is an output of the feature service, or an entity key, of the data type ``type``. Numbers
    and booleans are ``float64``, null is NaN; in a string tensor, null is ``null_text``. A list has
    its first ``width`` items, and is padded with null at its end. ``definition`` is a digest of the
    feature's definition at the time of training, empty where it is unknown.
    """

    name: str
    source: Literal["feature", "entity"]
    of: str
    type: str
    dtype: Literal["float64", "string"]
    width: int = 1
    null_text: str = ""
    definition: str = ""


@dataclass(frozen=True, slots=True)
class ModelOutput:
    """One output of the network: float32, shape (rows, width).

    ``classes`` names the columns of a classifier of several classes, and is empty for others.
    """

    name: str
    width: int = 1
    classes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelKey:
    """One key of the entity, with its data type."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class ModelSignature:
    """What a model reads and returns.

    The first of ``outputs`` is the prediction: for ``binary`` the probability of true (width 1),
    for ``multiclass`` one probability per class, for ``regression`` the value.
    """

    service: str
    entities: tuple[ModelKey, ...]
    inputs: tuple[ModelInput, ...]
    outputs: tuple[ModelOutput, ...]
    task: Task


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A file of a version, by the SHA-256 of its content (hexadecimal) and its size."""

    sha256: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric on ``rows`` rows with its confidence interval (95 %), computed by ``method``."""

    value: float
    low: float | None = None
    high: float | None = None
    rows: int = 0
    method: str = ""


@dataclass(frozen=True, slots=True)
class TrainingPins:
    """Everything that a training run depends on.

    ``table`` at ``snapshot`` (number@commit) has the rows; ``sources`` are the snapshots that it
    was built from, by table, ``generations`` those of the views, by view; ``fitted`` the digests of
    the service's fitted transformers. ``code`` are versions of the code, ``libraries`` those of
    packages, ``machine`` what can change the last bits. The configuration is the file
    ``config.json``. ``weights`` is the SHA-256 of the trained weights, and ``run`` the name of the
    run, by which its feedback and its choices of scores are found.
    """

    table: str
    snapshot: str
    rows: int
    seeds: Mapping[str, int] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    generations: Mapping[str, int] = field(default_factory=dict)
    fitted: Mapping[str, str] = field(default_factory=dict)
    code: Mapping[str, str] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=dict)
    weights: str = ""
    started_at_ms: int = 0
    finished_at_ms: int = 0
    run: str = ""


@dataclass(frozen=True)
class ModelManifest:
    """A model version: checked when it is constructed.

    ``kind`` is the architecture, ``card`` a description in Markdown, ``parents`` are the versions
    that it was trained from, such as ``churn@3``.

    Raises
    ------
    ModelError
        For a name, size, type or hash that cannot be right; says which.
    """

    name: str
    version: int
    created_at_ms: int
    kind: str
    signature: ModelSignature
    files: Mapping[str, ModelFile]
    training: TrainingPins | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    card: str = ""
    parents: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        try:
            check_name("model", self.name)
            _check(0 < self.version <= _MAX_VERSION, f"version={self.version}, expected 1 or more")
            check_name("kind of model", self.kind)
            _check_signature(self.signature)
            _check_files(self.files)
            for parent in self.parents:
                _check(_PARENT.fullmatch(parent), f"the parent {_shown(parent)}; expected NAME@1")
            for name, metric in self.metrics.items():
                numbers = (metric.value, metric.low, metric.high)
                finite = all(number is None or math.isfinite(number) for number in numbers)
                _check(finite, f"the metric {_shown(name)} is not finite")
        except (ModelError, DefinitionError) as error:
            raise ModelError(f"model {shortened(str(self.name))!r}: {error}") from error

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    def _repr_html_(self) -> str:
        from paimon_features.core.notebook.markup import card, facts, table, utc

        pins = self.training
        about = {
            "kind": self.kind,
            "made": f"{utc(self.created_at_ms)} UTC",
            "service": self.signature.service,
            "inputs": len(self.signature.inputs),
            "task": self.signature.task,
            "trained on": None if pins is None else f"{pins.table} at {pins.snapshot}",
            "rows": None if pins is None else pins.rows,
            "parents": ", ".join(self.parents),
            "files": ", ".join(self.files),
        }
        metrics = table(
            ((n, m.value, m.low, m.high, m.rows) for n, m in self.metrics.items()),
            ("metric", "value", "95 % from", "to", "rows"),
        )
        return card(f"Model {self}", facts(about), metrics)

    @property
    def network(self) -> ModelFile:
        """The file that serving hosts run."""
        return self.files[NETWORK]

    def to_bytes(self) -> bytes:
        """Return the manifest as JSON, as it was read; ModelError for more than
        ``MAX_MANIFEST_BYTES``."""
        return self._bytes

    @cached_property
    def _bytes(self) -> bytes:
        document = {"format": FORMAT, **asdict(self)}
        data = json.dumps(document, sort_keys=True, indent=1, allow_nan=False).encode() + b"\n"
        if len(data) > MAX_MANIFEST_BYTES:
            raise ModelError(
                f"model {self}: its manifest has {len(data):,} bytes; expected at most "
                f"{MAX_MANIFEST_BYTES:,}: shorten the card, or make it a file"
            )
        return data

    @classmethod
    def from_bytes(cls, data: bytes, where: str = "the manifest") -> ModelManifest:
        """Read a manifest.

        Raises
        ------
        ModelError
            For bytes that are none, too many, of a later format, or that ``__init__`` rejects.
        """
        if len(data) > MAX_MANIFEST_BYTES:
            raise ModelError(
                f"{where} has {len(data):,} bytes; a manifest has at most {MAX_MANIFEST_BYTES:,}"
            )
        try:
            document = dict(mapping(parse_unambiguous_json(data), "format"))
            version = document.pop("format")
            if type(version) is int and version > FORMAT:
                raise ModelError(
                    f"{where} has format {version}, and this version of paimon-features reads up "
                    f"to {FORMAT}: upgrade this host"
                )
            if type(version) is not int or version < 1:
                raise ValueError(f"format={_shown(version)}, expected {FORMAT}")
            manifest: ModelManifest = typed(cls, document)
        except ModelError as error:
            raise ModelError(f"{where}: {error}") from error
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{where} is no manifest of a model: {str(error)[:300]}") from error
        # another release may write it differently, and its hash is what versions are known by
        manifest.__dict__["_bytes"] = data
        return manifest


def sha256_of(data: bytes) -> str:
    """Return the SHA-256 of a file's content, as hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def verified(data: bytes | None, file: ModelFile, what: str, remedy: str) -> bytes:
    """Return the content of a file if it has its SHA-256 and size; ModelError otherwise."""
    if data is None:
        raise ModelError(f"{what} is missing: {remedy}")
    if len(data) != file.bytes or sha256_of(data) != file.sha256:
        raise ModelError(
            f"{what} is damaged: it has {len(data):,} bytes and SHA-256 {sha256_of(data)[:16]}..., "
            f"expected {file.bytes:,} bytes and {file.sha256[:16]}...: {remedy}"
        )
    return data


def _check(condition: object, problem: str) -> None:
    if not condition:
        raise ModelError(problem)


def _shown(value: object) -> str:
    return shortened(repr(value))


def _check_signature(signature: ModelSignature) -> None:
    check_name("service", signature.service)
    inputs, outputs = signature.inputs, signature.outputs
    _check(signature.entities, "it has no entity keys")
    _check(0 < len(inputs) <= MAX_INPUTS, f"{len(inputs):,} inputs, expected 1 to {MAX_INPUTS:,}")
    _check(0 < len(outputs) <= 64, f"{len(outputs):,} outputs, expected 1 to 64")
    for key in signature.entities:
        check_name("entity key", key.name)
        _check(type_from_text(key.type).is_key, f"entity key {key.name!r} of type {key.type!r}")
    keys = {key.name for key in signature.entities}
    for kind, names in (
        ("entity key", [key.name for key in signature.entities]),
        ("input", [field_.name for field_ in inputs]),
        ("output", [field_.name for field_ in outputs]),
    ):
        twice = sorted(duplicates(names))
        _check(not twice, f"the {kind} {_shown(next(iter(twice), ''))} is there twice")
    values = 0
    for field_ in inputs:
        _check_text("input", field_.name)
        _check_text("input", field_.of)
        _check(
            len(field_.null_text) <= _MAX_TEXT, f"the null_text of input {field_.name!r} is long"
        )
        _check(
            len(field_.definition) <= 64, f"the definition of input {field_.name!r} is no digest"
        )
        _check(len(field_.type) <= 100, f"the type of input {field_.name!r} is long")
        type_from_text(field_.type)
        _check(
            0 < field_.width <= MAX_WIDTH, f"input {field_.name!r} has the width {field_.width:,}"
        )
        unknown = field_.source == "entity" and field_.of not in keys
        _check(
            not unknown, f"input {field_.name!r} is of {_shown(field_.of)}, no key of its entity"
        )
        values += field_.width
    _check(values <= MAX_VALUES, f"{values:,} values in a row, expected at most {MAX_VALUES:,}")
    for out in outputs:
        _check_text("output", out.name)
        _check(0 < out.width <= MAX_WIDTH, f"output {out.name!r} has the width {out.width:,}")
        _check(
            len(out.classes) <= MAX_CLASSES, f"output {out.name!r}: {len(out.classes):,} classes"
        )
        _check(
            not out.classes or len(out.classes) == out.width,
            f"output {out.name!r}: {len(out.classes):,} classes for the width {out.width:,}",
        )
    first = outputs[0]
    _check(
        first.width == 1 if signature.task != "multiclass" else len(first.classes) >= 2,
        f"the first output, {first.name!r}, is not that of the task {signature.task!r}",
    )


def _check_text(what: str, text: str) -> None:
    wrong = not text or len(text) > _MAX_TEXT or not text.isprintable()
    _check(
        not wrong, f"the {what} {_shown(text)}: expected 1 to {_MAX_TEXT:,} printable characters"
    )


def _check_files(files: Mapping[str, ModelFile]) -> None:
    _check(NETWORK in files, f"it has no file {NETWORK!r}")
    _check(len(files) <= MAX_FILES, f"{len(files):,} files, expected at most {MAX_FILES}")
    for name, file in files.items():
        # a name is written as a file by 'export': no folder, no hidden file, nothing above
        _check(_FILE.fullmatch(name), f"the file name {_shown(name)} is not allowed")
        _check(
            _SHA256.fullmatch(file.sha256), f"file {name!r}: {_shown(file.sha256)} is no SHA-256"
        )
        _check(
            0 < file.bytes <= MAX_FILE_BYTES,
            f"file {name!r} has {file.bytes:,} bytes, expected 1 to {MAX_FILE_BYTES:,}",
        )
