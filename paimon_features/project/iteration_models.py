"""Fitted models of the iteration runtime as model versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paimon_features import __version__
from paimon_features.core.errors import ConfigurationError
from paimon_features.core.times.clock import now_ms
from paimon_features.models import (
    NETWORK,
    ModelFile,
    ModelInput,
    ModelManifest,
    ModelOutput,
    ModelSignature,
    TrainingPins,
    sha256_of,
)
from paimon_features.offline.reading.pinning import Pin
from paimon_features.project.model_inputs import digest_of, keys_of, type_of
from paimon_features.transformers.model_networks import network_of, task_of

if TYPE_CHECKING:
    from paimon_features.project.context import ProjectContext
    from paimon_features.transformers import FittedVersion


def fitted_manifest(
    project: ProjectContext,
    name: str,
    fitted: FittedVersion,
    service: str,
    transformer: FittedVersion | None,
    card: str,
) -> tuple[ModelManifest, dict[str, bytes]]:
    """Return the manifest and the files of a version; see ``ProjectModels.register_fitted``."""
    model = fitted.transformer
    task = task_of(model)
    outputs = project.refs(service)
    for output in outputs:
        kind = type_of(project, output)
        if not (kind.is_numeric or kind.text == "bool"):
            raise ConfigurationError(
                f"feature {output} is {kind.text}, and {fitted} reads numbers: name a service of "
                "numbers only"
            )
    inputs = tuple(
        ModelInput(
            name=str(output).replace(":", "__"),
            source="feature",
            of=str(output),
            type=type_of(project, output).text,
            dtype="float64",
            definition=digest_of(project, service, output),
        )
        for output in outputs
    )
    result = "value" if task == "regression" else "probability"
    network = network_of(
        model,
        [column.name for column in inputs],
        result,
        None if transformer is None else transformer.transformer,
    )
    classes: tuple[str, ...] = ()
    if task == "multiclass":
        classes = tuple(map(str, range(len(model.model_data["centroids"]))))  # type: ignore[attr-defined]
    signature = ModelSignature(
        service,
        keys_of(project, outputs),
        inputs,
        (ModelOutput(result, max(1, len(classes)), classes),),
        task,
    )
    versions = [fitted, *([] if transformer is None else [transformer])]
    files = {NETWORK: network}
    for file, version in zip(("model.json", "transformer.json"), versions, strict=False):
        files[file] = version.to_text().encode()
    pin = Pin.from_document(fitted.fitted_on) if fitted.fitted_on else None
    pins = TrainingPins(
        table="" if pin is None else pin.table,
        snapshot="" if pin is None else str(pin.ref),
        rows=model.rows_seen,
        fitted={str(version): version.digest for version in versions},
        code={"paimon_features": __version__},
        weights=sha256_of(fitted.params.encode()),
        finished_at_ms=fitted.fitted_at_ms,
    )
    manifest = ModelManifest(
        name=name,
        version=1,
        created_at_ms=now_ms(),
        kind=model.kind.removeprefix("flink_ml_"),
        signature=signature,
        files={file: ModelFile(sha256_of(data), len(data)) for file, data in files.items()},
        training=pins,
        card=card or _card(name, versions, pins),
    )
    return manifest, files


def _card(name: str, versions: list[FittedVersion], pins: TrainingPins) -> str:
    of = ", ".join(f"`{version}`" for version in versions)
    where = f", fitted on `{pins.table}`, snapshot {pins.snapshot}" if pins.table else ""
    return f"# {name}\n\nOf the iteration runtime: {of}{where}.\n"
