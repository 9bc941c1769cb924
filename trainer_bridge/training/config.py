"""The configuration of a training run: typed, with its defaults, checked before torch is imported.

Hydra composes it from a file and overrides; each group (``model``, ``optimiser``, ...) is one of
the classes here.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal

from paimon_features.core.documents.typed_json import typed
from paimon_features.core.errors import (
    ConfigurationError,
    DefinitionError,
    MissingExtraError,
    unknown_name,
)
from paimon_features.core.times.durations import is_zero, parse_duration
from paimon_features.core.types.schema import check_name


@dataclass(frozen=True, slots=True)
class DataConfig:
    """The rows of a run, and how features become numbers.

    ``training_set`` is the training set, read at ``snapshot`` (number@commit, the newest by
    default); ``service`` is the feature service that serves the model, and ``exclude`` are outputs
    of it that the model does not read. The newest share ``test`` of the rows by ``time`` is for the
    report alone, the share ``validation`` before it for early stopping; rows less than ``gap``
    before either are left out, because the labels of these look into it.

    ``weights`` is a column of sample weights. Numbers are scaled by ``standard`` or ``quantile``
    (to a normal distribution); a text has a column for each of its ``max_categories`` most
    frequent values. Of the items of a list, the ``max_items`` most frequent ones are known.
    """

    training_set: str = ""
    service: str = ""
    snapshot: str | None = None
    label: str | None = None
    time: str = "event_time_ms"
    exclude: tuple[str, ...] = ()
    weights: str | None = None
    validation: float = 0.15
    test: float = 0.15
    gap: str = "0s"
    batch_size: int = 256
    threads: int = 2
    numbers: Literal["standard", "quantile"] = "standard"
    max_categories: int = 64
    max_items: int = 1_000

    @property
    def gap_ms(self) -> int:
        """The gap in milliseconds."""
        return 0 if is_zero(self.gap) else parse_duration(self.gap)


@dataclass(frozen=True, slots=True)
class TabularTransformer:
    """A token for each feature, and attention between them (Gorishniy et al. 2021)."""

    kind: Literal["tabular_transformer"] = "tabular_transformer"
    dim: int = 64
    layers: int = 4
    heads: int = 4
    dropout: float = 0.1


@dataclass(frozen=True, slots=True)
class SequenceTransformer:
    """A token for each event of the last-N lists, causal attention, the other features at its
    end."""

    kind: Literal["sequence_transformer"] = "sequence_transformer"
    dim: int = 64
    layers: int = 2
    heads: int = 4
    dropout: float = 0.1


@dataclass(frozen=True, slots=True)
class WideAndDeep:
    """A linear model and a deep one, added (Cheng et al. 2016)."""

    kind: Literal["wide_and_deep"] = "wide_and_deep"
    dim: int = 128
    layers: int = 2
    dropout: float = 0.1


@dataclass(frozen=True, slots=True)
class GradientBoosting:
    """The baseline: scikit-learn's histogram-based gradient boosting."""

    kind: Literal["gradient_boosting"] = "gradient_boosting"
    trees: int = 200
    learning_rate: float = 0.1
    leaves: int = 31
    l2: float = 0.0


ModelConfig = TabularTransformer | SequenceTransformer | WideAndDeep | GradientBoosting
MODELS: Mapping[str, type[ModelConfig]] = {
    "tabular_transformer": TabularTransformer,
    "sequence_transformer": SequenceTransformer,
    "wide_and_deep": WideAndDeep,
    "gradient_boosting": GradientBoosting,
}


@dataclass(frozen=True, slots=True)
class OptimiserConfig:
    """``weight_decay`` concerns matrices only; ``momentum`` is that of SGD. Gradients are clipped
    to the norm ``clip``."""

    name: Literal["adamw", "sgd"] = "adamw"
    lr: float = 0.001
    weight_decay: float = 0.01
    momentum: float = 0.9
    clip: float | None = 1.0


@dataclass(frozen=True, slots=True)
class ScheduleConfig:
    """``warmup`` is the share of all steps in which the rate rises linearly from 0; then it stays,
    or follows a cosine to the share ``final``."""

    name: Literal["warmup_cosine", "constant"] = "warmup_cosine"
    warmup: float = 0.05
    final: float = 0.01


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """How long and on what. ``patience`` are the checks without an improvement after which a run
    stops, null for none; validation runs every ``check_every`` batches, null: after each epoch.
    ``accumulate`` batches are one step. A checkpoint to resume from is written after each
    validation and epoch, and every ``checkpoint_every`` batches."""

    epochs: int = 10
    patience: int | None = 3
    check_every: int | None = None
    checkpoint_every: int | None = None
    accumulate: int = 1
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    compile: bool = False
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class ObjectiveConfig:
    """The loss: of a binary or a multiclass label cross entropy, of a number the squared error.

    ``positive_weight`` multiplies the loss of positive rows (binary); predictions are then no
    probabilities any more, and the report says so. ``smoothing`` is label smoothing (multiclass).
    """

    task: Literal["binary", "multiclass", "regression"] = "binary"
    positive_weight: float = 1.0
    smoothing: float = 0.0


@dataclass(frozen=True, slots=True)
class FeedbackConfig:
    """Per-sample losses of each step go into ``feedback_<loop>``; ``keys`` identify a sample.

    With ``difficulty``, a view of them, new scores enter the sampler at every ``every`` steps:
    harder rows are drawn more often, and weighed back.
    """

    loop: str | None = None
    keys: tuple[str, ...] = ("sample_id",)
    difficulty: str | None = None
    every: int | None = None


@dataclass(frozen=True, slots=True)
class RetrainConfig:
    """How ``paimon-features retrain`` continues the model with new training rows.

    A round begins with ``min_rows`` new labelled rows and reads at most ``max_rows`` of them. The
    newest share ``holdout`` by time is for the gate alone; the others are trained on in ``epochs``
    passes at ``rate`` times ``optimiser.lr``, together with ``replay`` older rows for each new one.

    A candidate replaces the version in production if its loss on the held-out rows is lower with
    the one-sided ``confidence``, and in no segment higher by more than the share ``tolerance``: a
    segment is a value of one of the columns ``segments``, with at least ``segment_rows`` rows.
    """

    min_rows: int = 500
    max_rows: int = 200_000
    holdout: float = 0.3
    replay: float = 1.0
    epochs: int = 2
    rate: float = 0.3
    confidence: float = 0.95
    segments: tuple[str, ...] = ()
    tolerance: float = 0.05
    segment_rows: int = 50


@dataclass(frozen=True, slots=True)
class RoundConfig:
    """What a round of ``retrain`` read; ``paimon-features train`` leaves ``parent`` empty.

    ``parent`` is the version that it continues (``churn@3``), trained on the rows before
    ``seen_until_ms`` of the training set's snapshot ``since``. New rows are those that were
    committed after ``since``, up to ``until`` (inclusive), before ``train_until_ms``. Held out are
    those that were committed after the snapshot ``judged``, at or after ``test_from_ms``.
    Snapshots are number@commit, times UTC ms.
    """

    parent: str = ""
    since: str = ""
    judged: str = ""
    until: str = ""
    seen_until_ms: int = 0
    train_until_ms: int = 0
    test_from_ms: int = 0


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """A training run.

    ``name`` is the model's name in the registry, ``card`` its description in Markdown, ``parents``
    are the versions that it continues, such as ``churn@3``. ``round`` is set by ``retrain``.
    """

    name: str
    data: DataConfig
    model: ModelConfig
    optimiser: OptimiserConfig = OptimiserConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    trainer: TrainerConfig = TrainerConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    feedback: FeedbackConfig = FeedbackConfig()
    retrain: RetrainConfig = RetrainConfig()
    round: RoundConfig = RoundConfig()
    seed: int = 0
    card: str = ""
    parents: tuple[str, ...] = ()

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> TrainConfig:
        """Check a configuration.

        Raises
        ------
        ConfigurationError
            For an unknown setting, one of another type, or outside its bounds; says which.
        """
        settings = dict(document)
        model = settings.pop("model", None)
        if not isinstance(model, Mapping) or model.get("kind") not in MODELS:
            kind = model.get("kind") if isinstance(model, Mapping) else model
            raise ConfigurationError(f"model.kind={kind!r}: expected {', '.join(MODELS)}")
        parts: dict[str, Any] = {"model": _part("model", MODELS[model["kind"]], model)}
        for field in fields(cls):
            default = field.default
            if field.name == "data":
                default = DataConfig()
            if is_dataclass(default):
                parts[field.name] = _part(field.name, type(default), settings.pop(field.name, {}))
        for name, kind in (("name", str), ("seed", int), ("card", str)):
            if name in settings:
                parts[name] = settings.pop(name)
                if type(parts[name]) is not kind:
                    raise ConfigurationError(f"{name}={parts[name]!r}: expected {kind.__name__}")
        parents = settings.pop("parents", ())
        if not isinstance(parents, list | tuple) or any(type(p) is not str for p in parents):
            raise ConfigurationError(f"parents={parents!r}: expected a list, such as [churn@3]")
        if settings:
            names = [field.name for field in fields(cls)]
            raise ConfigurationError(unknown_name("setting", next(iter(settings)), names))
        if "name" not in parts:
            raise ConfigurationError("name is missing: the name of the model in the registry")
        config = cls(**parts, parents=tuple(parents))
        _check(config)
        return config

    def to_document(self) -> dict[str, Any]:
        """Return the configuration in JSON values; ``from_document`` reads it."""
        document: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return document


GROUPS: Mapping[str, Mapping[str, Any]] = {
    "model": {name: kind() for name, kind in MODELS.items()},
    "optimiser": {
        "adamw": OptimiserConfig(),
        "sgd": OptimiserConfig("sgd", lr=0.05, weight_decay=0.0),
    },
    "schedule": {
        "warmup_cosine": ScheduleConfig(),
        "constant": ScheduleConfig("constant", warmup=0.0),
    },
    "trainer": {
        "standard": TrainerConfig(),
        "quick": TrainerConfig(epochs=1, patience=None, accelerator="cpu"),
    },
    "objective": {name: ObjectiveConfig(name) for name in ("binary", "multiclass", "regression")},
}
"""The choices of each group; the first one is the default."""


def compose(file: Path, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read and check a configuration file with overrides: see ``TrainConfig.from_document``.

    Raises
    ------
    ConfigurationError
        For a missing file, one that Hydra cannot compose, and as ``from_document``.
    MissingExtraError
        Without the extra ``train``.
    """
    document = composed(file, overrides)
    document.pop("sweep", None)
    return TrainConfig.from_document(document)


def composed(file: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return the document that Hydra composes; raises as ``compose``, unchecked.

    Its ``sweep`` is what a sweep searches, which concerns no single run.
    """
    try:
        from hydra import compose as hydra_compose
        from hydra import initialize_config_dir
        from hydra.core.config_store import ConfigStore
        from hydra.core.global_hydra import GlobalHydra
        from hydra.errors import HydraException
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException
        from yaml import YAMLError
    except ImportError as error:
        raise MissingExtraError.of("hydra-core", "train", "'paimon-features train'") from error
    if not file.is_file() or file.suffix not in (".yaml", ".yml"):
        raise ConfigurationError(
            f"{file}: expected a configuration file, such as churn.yaml; "
            "'paimon-features train --help' shows one"
        )
    store = ConfigStore.instance()
    for group, choices in GROUPS.items():
        for name, node in choices.items():
            store.store(name=name, node=_plain(node), group=group)
    base = {
        "defaults": [*({group: next(iter(files))} for group, files in GROUPS.items()), "_self_"],
        "name": "",
        "data": _plain(DataConfig()),
        "feedback": _plain(FeedbackConfig()),
        "retrain": _plain(RetrainConfig()),
        "seed": 0,
        "card": "",
        "parents": [],
        "sweep": {},
    }
    store.store(name="base", node=base)
    GlobalHydra.instance().clear()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with initialize_config_dir(str(file.resolve().parent), version_base="1.3"):
                composition = hydra_compose(file.stem, overrides=list(overrides))
        document = OmegaConf.to_container(composition, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        text = str(error).strip().splitlines()
        detail = " ".join(line.strip() for line in text[:4])
        raise ConfigurationError(f"{file}: {detail or type(error).__name__}") from error
    assert isinstance(document, dict)
    return {str(key): value for key, value in document.items()}


def _plain(node: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(asdict(node)))
    return document


def _part(name: str, kind: type[Any], document: Any) -> Any:
    if not isinstance(document, Mapping):
        raise ConfigurationError(f"{name}={document!r}: expected settings")
    names = [field.name for field in fields(kind)]
    for key in document:
        if key not in names:
            raise ConfigurationError(f"{name}: {unknown_name('setting', key, names)}")
    try:
        return typed(kind, dict(document))
    except ValueError as error:
        raise ConfigurationError(f"{name}.{error}") from error


def _check(config: TrainConfig) -> None:
    data, model, trainer = config.data, config.model, config.trainer
    try:
        check_name("model", config.name)
        check_name("data.training_set", data.training_set)
        check_name("data.service", data.service)
        gap_ms = data.gap_ms
    except DefinitionError as error:
        raise ConfigurationError(str(error)) from error
    bounds: list[tuple[str, float | None, float, float]] = [
        ("data.validation", data.validation, 0.01, 0.9),
        ("data.test", data.test, 0.01, 0.9),
        ("data.validation + data.test", data.validation + data.test, 0.02, 0.9),
        ("data.gap", gap_ms, 0, math.inf),
        ("data.batch_size", data.batch_size, 1, 1_000_000),
        ("data.threads", data.threads, 0, 64),
        ("data.max_categories", data.max_categories, 2, 4_096),
        ("data.max_items", data.max_items, 1, 1_000_000),
        ("optimiser.lr", config.optimiser.lr, 1e-9, 1_000),
        ("optimiser.weight_decay", config.optimiser.weight_decay, 0, 10),
        ("optimiser.momentum", config.optimiser.momentum, 0, 1),
        ("optimiser.clip", config.optimiser.clip, 1e-9, math.inf),
        ("schedule.warmup", config.schedule.warmup, 0, 1),
        ("schedule.final", config.schedule.final, 0, 1),
        ("trainer.epochs", trainer.epochs, 1, 100_000),
        ("trainer.patience", trainer.patience, 1, 100_000),
        ("trainer.check_every", trainer.check_every, 1, 2**31),
        ("trainer.accumulate", trainer.accumulate, 1, 10_000),
        ("trainer.checkpoint_every", trainer.checkpoint_every, 1, 2**31),
        ("trainer.threads", trainer.threads, 1, 1_024),
        ("objective.positive_weight", config.objective.positive_weight, 1e-6, 1e6),
        ("objective.smoothing", config.objective.smoothing, 0, 0.9),
        ("feedback.every", config.feedback.every, 1, 2**31),
        ("retrain.min_rows", config.retrain.min_rows, 2, 2**31),
        ("retrain.max_rows", config.retrain.max_rows, config.retrain.min_rows, 2**31),
        ("retrain.holdout", config.retrain.holdout, 0.01, 0.9),
        ("retrain.replay", config.retrain.replay, 0, 1_000),
        ("retrain.epochs", config.retrain.epochs, 1, 100_000),
        ("retrain.rate", config.retrain.rate, 1e-6, 1_000),
        ("retrain.confidence", config.retrain.confidence, 0.5, 0.999_999),
        ("retrain.tolerance", config.retrain.tolerance, 0, 1_000),
        ("retrain.segment_rows", config.retrain.segment_rows, 2, 2**31),
        ("seed", config.seed, 0, 2**32 - 1),
    ]
    for name in ("dim", "layers", "heads", "trees", "leaves"):
        least = 2 if name == "leaves" else 1
        bounds.append((f"model.{name}", getattr(model, name, None), least, 100_000))
    bounds.append(("model.dropout", getattr(model, "dropout", None), 0, 0.9))
    bounds.append(("model.learning_rate", getattr(model, "learning_rate", None), 1e-9, 10))
    bounds.append(("model.l2", getattr(model, "l2", None), 0, 1e9))
    for name, value, low, high in bounds:
        if value is not None and not low <= value <= high:
            most = "" if high == math.inf else f" to {high:g}"
            raise ConfigurationError(f"{name}={value!r}: expected {low:g}{most or ' or more'}")
    if isinstance(model, TabularTransformer | SequenceTransformer):
        head = model.dim // model.heads
        if model.dim % model.heads or head % 2:
            raise ConfigurationError(
                f"model.dim={model.dim} and model.heads={model.heads}: expected a dimension that "
                "divides into heads of an even size"
            )
    if trainer.precision == "16-mixed" and trainer.accelerator != "gpu":
        raise ConfigurationError(
            "trainer.precision=16-mixed needs trainer.accelerator=gpu; on a processor there is "
            "bf16-mixed"
        )
    if config.feedback.difficulty is not None and (
        config.feedback.loop is None or config.feedback.every is None
    ):
        raise ConfigurationError(
            "feedback.difficulty: new scores need feedback.loop, the feedback that they are "
            "computed from, and feedback.every, after how many steps they enter"
        )
