"""Transformed features: computed at each read by a fitted transformer of a pinned version.

The transformer is read from its exported file next to the definitions, because a serving host has
no access to the lake. One implementation computes it online and offline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import DefinitionError, unknown_name
from paimon_features.core.types.schema import DataType, Float64, List, check_name
from paimon_features.definitions.interaction import CompiledInteraction, Interaction, Interactions
from paimon_features.definitions.metadata import check_metadata, metadata
from paimon_features.definitions.reference import FeatureRef
from paimon_features.definitions.value_definition import value_definition
from paimon_features.transformers.fitted_version import FittedVersion, read_version

TransformerInput = FeatureRef | CompiledInteraction
"""One input column of a transformer."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """A fitted transformer of the project, pinned by its version.

    >>> str(Fitted("amount_scaler", version=3))
    'amount_scaler v3'
    """

    name: str
    version: int

    def __post_init__(self) -> None:
        check_name("fitted transformer", self.name)
        if type(self.version) is not int or self.version < 1:
            raise DefinitionError(
                f"fitted transformer {self.name!r}: version={self.version!r}; expected 1 or more"
            )

    def __str__(self) -> str:
        return f"{self.name} v{self.version}"


@dataclass(frozen=True, eq=False)
class Transformed:
    """A feature, an interaction, or several of them, through a fitted transformer.

    ``of`` are the transformer's columns in the order in which it was fitted: ``"view:feature"``,
    an ``Interaction`` or its name. One column results in a value (Float64), several columns or an
    encoder in a list (List(Float64, n)); see ``docs/transformers.md``.

    >>> scaled = Transformed("spend_scaled", "spend:sum_amount_30d", Fitted("spend_scaler", 3))
    >>> str(scaled), scaled.parts
    ('spend_scaled', ('spend:sum_amount_30d',))
    """

    name: str
    of: str | Interaction | Sequence[str | Interaction]
    fitted: Fitted
    description: str = ""
    owner: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_metadata("transformed feature", self)
        if not self.parts:
            raise DefinitionError(
                f"transformed feature {self.name!r}: of={self.of!r}; expected 'view:feature', an "
                "Interaction or its name, or several of them"
            )

    def __str__(self) -> str:
        return self.name

    @property
    def parts(self) -> tuple[str | Interaction, ...]:
        """Its inputs, in order."""
        single = isinstance(self.of, str) or not isinstance(self.of, Sequence)
        return (self.of,) if single else tuple(self.of)  # type: ignore[arg-type, return-value]

    def to_document(self) -> dict[str, object]:
        """Return the JSON form of the definition; the canonical form also has the digest."""
        return {
            "kind": "transformed",
            "name": self.name,
            "of": [str(part) for part in self.parts],
            "fitted": {"name": self.fitted.name, "version": self.fitted.version},
            **metadata(self),
        }


@dataclass(frozen=True, eq=False)
class CompiledTransformed:
    """A compiled transformed feature: the transformer itself, and its inputs.

    ``refs`` are the features that it reads, ``inputs`` the request inputs of the
    interactions among its parts. ``problem`` says why it must not be read: a part is defined
    otherwise than the feature that the transformer was fitted on; None if it is not.
    """

    definition: Transformed
    fitted: FittedVersion
    parts: tuple[TransformerInput, ...]
    refs: tuple[FeatureRef, ...]
    inputs: Mapping[str, DataType]
    type: DataType
    problem: str | None = None

    @property
    def name(self) -> str:
        return self.definition.name

    @property
    def description(self) -> str:
        return self.definition.description

    @property
    def owner(self) -> str:
        return self.definition.owner

    @property
    def tags(self) -> Mapping[str, str]:
        return self.definition.tags

    def __str__(self) -> str:
        return self.name

    def apply(self, columns: Sequence[Column]) -> tuple[Column, npt.NDArray[np.bool_] | None]:
        """Return the values, and the rows that the transformer cannot transform (null there).

        These are rows without a null and with an unknown category, or with a value that becomes
        infinite.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            applied = self.fitted.transformer.apply(columns)
        failed = applied.failed
        for column in applied.columns:
            bad = ~np.isfinite(column.values)
            if bad.any():
                bad = bad if column.valid is None else bad & column.valid
                failed = bad if failed is None else failed | bad
        if failed is None or not failed.any():
            return self._joined(applied.columns, None), None
        value = self._joined(applied.columns, ~failed)
        for column in columns:
            if column.valid is not None:
                failed = failed & column.valid
        return value, failed

    def _joined(self, columns: Sequence[Column], kept: npt.NDArray[np.bool_] | None) -> Column:
        """Return one column from all: its values, or lists of them, null where all of them are."""
        gaps = [(j, c.valid) for j, c in enumerate(columns) if c.valid is not None]
        if self.fitted.transformer.is_scalar:
            values, valid = columns[0].values, columns[0].valid
        else:
            rows = np.column_stack([column.values for column in columns]).tolist()
            for j, mask in gaps:
                for i in np.flatnonzero(~mask):
                    rows[i][j] = None
            values = np.fromiter(rows, np.object_, len(rows))
            some = len(gaps) == len(columns)
            valid = np.logical_or.reduce([mask for _, mask in gaps]) if some else None
        if kept is not None:
            valid = kept if valid is None else valid & kept
        return Column(values, valid)

    def to_document(self) -> dict[str, object]:
        """Return the canonical JSON form, as in the registry, with the pinned version."""
        document = self.definition.to_document()
        pinned = {**self._pinned(), "kind": self.fitted.kind}
        return {**document, "fitted": pinned, "type": self.type.text}

    def to_property(self) -> dict[str, object]:
        """Return what it is computed from, for the properties of a training set."""
        parts = [
            {"name": part.name, **part.to_document()}
            if isinstance(part, CompiledInteraction)
            else str(part)
            for part in self.parts
        ]
        return {"of": parts, "fitted": self._pinned(), "kind": self.fitted.kind}

    def _pinned(self) -> dict[str, object]:
        fitted = self.fitted
        return {"name": fitted.name, "version": fitted.version, "digest": fitted.digest}


@dataclass
class Transformations:
    """Compiles transformed features against a project's interactions and exported versions.

    ``folder`` contains the exported versions; None where there is no project.
    """

    interactions: Interactions
    folder: Path | None
    _known: dict[Transformed, CompiledTransformed] = field(default_factory=dict)
    _versions: dict[Fitted, FittedVersion] = field(default_factory=dict)

    def compile(self, transformed: Transformed) -> CompiledTransformed:
        """Return the compiled transformed feature; the same object for the same one.

        Raises
        ------
        DefinitionError
            For a version without its file, a damaged one, an unknown name, or columns for which the
            transformer was not fitted.
        """
        cached = self._known.get(transformed)
        if cached is not None:
            return cached
        try:
            compiled = self._compile(transformed)
        except DefinitionError as error:
            raise DefinitionError(f"transformed feature {transformed.name!r}: {error}") from error
        # another thread may have been first; all must get one object
        return self._known.setdefault(transformed, compiled)

    def _compile(self, transformed: Transformed) -> CompiledTransformed:
        parts = tuple(self._part(part) for part in transformed.parts)
        fitted = self._version(transformed.fitted)
        transformer = fitted.transformer
        if len(parts) != transformer.width:
            names = f" ({', '.join(transformer.names)})" if transformer.names else ""
            raise DefinitionError(
                f"{fitted} was fitted on {transformer.width} columns{names}, and of= names "
                f"{len(parts)}: {', '.join(map(str, parts))}"
            )
        if not transformer.numeric_output:
            raise DefinitionError(
                f"{fitted}, of kind {fitted.kind}, returns texts, but a transformed feature is a "
                "number or a list of numbers; append an encoder in a Pipeline"
            )
        types = [
            self.interactions.feature_type(part) if isinstance(part, FeatureRef) else part.type
            for part in parts
        ]
        for index, (part, kind) in enumerate(zip(parts, types, strict=True)):
            if not transformer.accepts(index, kind):
                raise DefinitionError(
                    f"{part} is {kind!r}, and {fitted}, a {fitted.kind}, was fitted on other "
                    "values; name a feature of the type that it was fitted on"
                )
        refs: dict[FeatureRef, None] = {}
        inputs: dict[str, DataType] = {}
        for part in parts:
            refs.update(dict.fromkeys([part] if isinstance(part, FeatureRef) else part.refs))
            for name, kind in ({} if isinstance(part, FeatureRef) else part.inputs).items():
                if inputs.setdefault(name, kind) != kind:
                    raise DefinitionError(
                        f"the request input {name!r} is {inputs[name]!r} and {kind!r}; one name "
                        "has one type"
                    )
        out = Float64 if transformer.is_scalar else List(Float64, transformer.width_out)
        problem = self._other_values(transformed.name, fitted, parts)
        return CompiledTransformed(transformed, fitted, parts, tuple(refs), inputs, out, problem)

    def _other_values(
        self, name: str, fitted: FittedVersion, parts: Sequence[TransformerInput]
    ) -> str | None:
        """Return what is defined otherwise than what the transformer was fitted on."""
        names, recorded = fitted.transformer.names, fitted.fitted_on.get("definitions", {})
        for column, part in zip(names or list(recorded), parts, strict=False):
            recorded_definition = recorded.get(column)
            if recorded_definition is not None and recorded_definition != value_definition(
                self.interactions.views, part
            ):
                return (
                    f"transformed feature {name!r}: {fitted} was fitted on {column!r}, and {part} "
                    "is defined otherwise now. Fit it again ('paimon-features fit'), export the "
                    f"new version ('paimon-features fitted {fitted.name} --export') and pin it: "
                    f"Fitted({fitted.name!r}, version=...); or restore the definition"
                )
        return None

    def _part(self, part: str | Interaction) -> TransformerInput:
        if isinstance(part, Interaction):
            return self.interactions.compile(part)
        if ":" not in part:
            interaction = self.interactions.named.get(part)
            if interaction is None:
                message = unknown_name("interaction", part, self.interactions.named)
                raise DefinitionError(f"{message}; a feature is written view:feature")
            return self.interactions.compile(interaction)
        return FeatureRef.parse(part)

    def _version(self, fitted: Fitted) -> FittedVersion:
        cached = self._versions.get(fitted)
        if cached is not None:
            return cached
        if self.folder is None:
            raise DefinitionError(
                f"{fitted} is read from a file next to the definitions, and these have no folder; "
                "pass the folder of exported versions as Definitions.of(..., fitted=)"
            )
        version = self._versions[fitted] = read_version(self.folder, fitted.name, fitted.version)
        return version
