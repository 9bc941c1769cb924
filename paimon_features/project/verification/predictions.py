"""``verify --predictions``: logged predictions computed again from the lake.

For each logged prediction, the features are read again from the tiles of the snapshot that they
were served from, as of the time of the request, and go through the network of the version as the
registry has it, with the fitted transformers in it. The result has to be the logged one. See
``request_log.check`` for the features; where they cannot be read again, the logged ones are used.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import PaimonFeaturesError, VerificationError
from paimon_features.core.process.callbacks import OnMessage, ignore_message
from paimon_features.core.types.array_types import Array
from paimon_features.core.types.schema import type_from_text
from paimon_features.definitions.served import PREDICTION_COLUMNS
from paimon_features.lake.specs import PREDICTIONS_PREFIX
from paimon_features.models import NETWORK, ModelInput, ModelManifest, sha256_of
from paimon_features.online.store.published_models import ServedModel
from paimon_features.project import Project
from paimon_features.project.verification.request_log.check import check_rows
from paimon_features.project.verification.request_log.log_report import LogReport, ReadKey
from paimon_features.project.verification.request_log.sampled_rows import (
    LoggedRow,
    RequestKey,
    rows_of_requests,
    sampled_requests,
)
from paimon_features.serving.prediction.input_arrays import input_array
from paimon_features.serving.prediction.network import OnnxNetwork
from paimon_features.serving.request_log.log_rows import loads

RELATIVE, ABSOLUTE = 1e-5, 1e-6
"""The largest accepted difference of two outputs: float32, summed in another order in a batch of
another size."""


@dataclass(frozen=True, slots=True)
class PredictionDifference:
    """An output of a version that is not the logged one; both are lists of numbers."""

    request_id: str
    served_at_ms: int
    version: str
    entity: str
    output: str
    online: tuple[float | None, ...]
    offline: tuple[float | None, ...]

    def __str__(self) -> str:
        online, offline = (", ".join(map(str, of)) for of in (self.online, self.offline))
        return (
            f"request {self.request_id} at {self.served_at_ms}, entity {self.entity}, "
            f"{self.version} {self.output}: served {online}, from the lake {offline}"
        )


@dataclass
class PredictionReport:
    """The result of a comparison.

    ``compared`` predictions of ``requests`` requests, those of shadows included, were computed
    again; ``from_lake`` of them from features that were read again, the others from the logged
    ones. ``largest`` is the largest difference of two numbers. ``unchecked`` says why predictions
    were not compared; ``features`` is the comparison of what was read.
    """

    requests: int = 0
    compared: int = 0
    from_lake: int = 0
    largest: float = 0.0
    differences: list[PredictionDifference] = field(default_factory=list)
    unchecked: Counter[str] = field(default_factory=Counter)
    features: LogReport = field(default_factory=LogReport)

    @property
    def ok(self) -> bool:
        """Whether something was compared, and neither a prediction nor a feature differed."""
        return self.compared > 0 and not self.differences and not self.features.differences


def check_predictions(
    project: Project,
    models: Sequence[str] = (),
    *,
    since_ms: int,
    until_ms: int,
    sample: int = 200,
    seed: int = 0,
    salt: bytes | None = None,
    on_message: OnMessage = ignore_message,
) -> PredictionReport:
    """Compute ``sample`` logged requests of each model (by default all) again.

    Raises
    ------
    VerificationError
        If there is no log of predictions, or nothing in it of that time with what was read.
    MissingExtraError
        If onnxruntime is not installed.
    """
    report = PredictionReport()
    names = models or [
        table.removeprefix(PREDICTIONS_PREFIX)
        for table in project.lake.list()
        if table.startswith(PREDICTIONS_PREFIX)
    ]
    if not names:
        raise VerificationError(
            "no model has logged predictions: set [serve] prediction_log, and run "
            "'paimon-features request-log' where its files are"
        )
    for name in names:
        table = PREDICTIONS_PREFIX + name
        if not project.lake.exists(table):
            raise VerificationError(
                f"table {table!r} does not exist: set [serve] prediction_log, and run "
                "'paimon-features request-log' where its files are"
            )
        within = (since_ms, until_ms, None)
        chosen = sampled_requests(project.lake, table, within, sample, seed, having="reads")
        rows = rows_of_requests(project.lake, table, list(PREDICTION_COLUMNS), within, chosen)
        _ModelCheck(project, name, report, salt).check(rows, on_message)
        on_message(f"{name}: {len(rows):,} predictions of {len(chosen):,} requests")
    if not report.requests:
        raise VerificationError(
            f"the logged predictions of {', '.join(names)} have no request with the values that "
            f"were read from {since_ms} to {until_ms} ms; are they committed ('paimon-features "
            "request-log'), and is prediction_log_reads above 0?"
        )
    return report


class _ModelCheck:
    """The comparison of the logged predictions of one model."""

    def __init__(
        self, project: Project, name: str, report: PredictionReport, salt: bytes | None
    ) -> None:
        self._project, self._name, self._report, self._salt = project, name, report, salt
        self._networks: dict[tuple[int, str], OnnxNetwork | str] = {}

    def check(self, rows: Sequence[Mapping[str, Any]], on_message: OnMessage) -> None:
        """Compare rows; all results go to the report."""
        report = self._report
        report.requests += len({_request(row) for row in rows})
        reads: dict[tuple[RequestKey, int], list[LoggedRow]] = {}
        for row in rows:
            if row["reads"] is None:
                continue
            try:
                reads[_request(row), row["row"]] = [
                    LoggedRow.of({**row, "service": "", **read})
                    for read in json.loads(row["reads"])
                ]
            except (ValueError, TypeError, KeyError) as error:
                report.unchecked[f"not readable: {error}"] += 1
        every = [read for request_reads in reads.values() for read in request_reads]
        features = report.features
        features.requests += len({read.request for read in every})
        check_rows(self._project, every, features, salt=self._salt, on_message=on_message)
        by_version: dict[tuple[int, str], list[Mapping[str, Any]]] = {}
        for row in rows:
            by_version.setdefault((row["version"], row["manifest"]), []).append(row)
        for (version, digest), version_rows in sorted(by_version.items()):
            network = self._network(version, digest)
            if isinstance(network, str):
                report.unchecked[network] += len(version_rows)
            else:
                self._check_version(network, version_rows, reads)

    def _network(self, version: int, digest: str) -> OnnxNetwork | str:
        """Return the network of a version, or why there is none."""
        try:
            manifest = self._project.models.manifest(self._name, version)
            if sha256_of(manifest.to_bytes()) != digest:
                return f"version {version} of {self._name!r} is another one than was served"
            network = self._project.models.file(manifest, NETWORK)
        except PaimonFeaturesError as error:
            return f"version {version} of {self._name!r} cannot be loaded: {error}"
        return OnnxNetwork(ServedModel(manifest, network))

    def _check_version(
        self,
        network: OnnxNetwork,
        rows: Sequence[Mapping[str, Any]],
        reads: Mapping[tuple[RequestKey, int], Sequence[LoggedRow]],
    ) -> None:
        report = self._report
        kept: list[Mapping[str, Any]] = []
        values: list[list[Any]] = []
        for row in rows:
            row_reads = reads.get((_request(row), row["row"]))
            if row_reads is None:
                report.unchecked["what was read is not logged"] += 1
                continue
            feature_values, is_from_lake = self._known(row_reads)
            try:
                inputs = [
                    self._input(model_input, row, feature_values) for model_input in network.inputs
                ]
            except KeyError as error:
                report.unchecked[f"the log lacks the input {error}"] += 1
                continue
            try:
                json.loads(row["outputs"] or "{}")
            except ValueError as error:
                report.unchecked[f"outputs are not readable: {error}"] += 1
                continue
            kept.append(row)
            values.append(inputs)
            report.from_lake += is_from_lake
        if not kept:
            return
        columns = zip(*values, strict=True)
        arrays = [
            _array(model_input, column)
            for model_input, column in zip(network.inputs, columns, strict=True)
        ]
        outputs = network.run(arrays)
        names = [output.name for output in network.manifest.signature.outputs]
        for number, row in enumerate(kept):
            offline = {name: of[number] for name, of in zip(names, outputs, strict=True)}
            self._compare(network.manifest, row, offline)

    def _known(self, reads: Sequence[LoggedRow]) -> tuple[dict[str, Any], bool]:
        """Return the values of a request by name of the feature; whether all are from the lake."""
        values: dict[str, Any] = {}
        is_from_lake = True
        for read in reads:
            key: ReadKey = (read.request, read.row, read.view)
            truths = self._report.features.truths.get(key)
            is_from_lake &= truths is not None
            prefix = f"{read.view}:" if read.view else ""
            read_values = read.values if truths is None else truths
            values |= {
                prefix + name: (value, truths is None) for name, value in read_values.items()
            }
        return values, is_from_lake

    def _input(self, each: ModelInput, row: Mapping[str, Any], found: Mapping[str, Any]) -> Any:
        kind = type_from_text(each.type)
        if each.source == "feature":
            value, is_logged = found[each.of]
            return loads(kind, value) if is_logged else value
        if not row["entity"].startswith("["):
            raise KeyError(f"{each.of} (a key, and keys are hashed)")
        names = [key.name for key in self._project.models.manifest(
            self._name, row["version"]).signature.entities]  # fmt: skip
        return json.loads(row["entity"])[names.index(each.of)]

    def _compare(
        self, manifest: ModelManifest, row: Mapping[str, Any], offline: Mapping[str, Array]
    ) -> None:
        report = self._report
        report.compared += 1
        # of one number there is no document
        first = manifest.signature.outputs[0].name
        document = row["outputs"]
        online = {first: [row["prediction"]]} if document is None else json.loads(document)
        for name, array in offline.items():
            expected = [float(x) if np.isfinite(x) else None for x in array.tolist()]
            got = online.get(name, [])
            if len(got) == len(expected):
                pairs = list(zip(got, expected, strict=True))
                report.largest = max(
                    [report.largest, *(abs(a - b) for a, b in pairs if None not in (a, b))]
                )
                if all(_is_near(a, b) for a, b in pairs):
                    continue
            report.differences.append(
                PredictionDifference(
                    row["request_id"], row["served_at_ms"], str(manifest), row["entity"], name,
                    tuple(got), tuple(expected),
                )
            )  # fmt: skip


def _is_near(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= ABSOLUTE + RELATIVE * abs(other)


def _array(of: ModelInput, values: Sequence[Any]) -> Array:
    if of.source == "entity":
        if of.dtype == "string":
            return np.fromiter(map(str, values), np.object_, len(values)).reshape(-1, 1)
        return np.array(values, np.float64).reshape(-1, 1)
    kind = type_from_text(of.type)
    return input_array(of, Column.from_arrow(pa.array(list(values), kind.arrow)))


def _request(row: Mapping[str, Any]) -> RequestKey:
    return row["request_id"], row["worker"], row["served_at_ms"], row["number"]
