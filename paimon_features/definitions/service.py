"""A feature service: the features that one model reads, under one name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paimon_features.core.errors import DefinitionError
from paimon_features.core.repeated_items import duplicates
from paimon_features.definitions.feature_view import FeatureView
from paimon_features.definitions.interaction import Interaction
from paimon_features.definitions.metadata import check_metadata, metadata, shown
from paimon_features.definitions.reference import FeatureRef
from paimon_features.definitions.table_view import TableView
from paimon_features.definitions.transformed import Transformed


@dataclass(frozen=True, eq=False)
class FeatureService:
    """The features that a model reads, in the order of its input: views, features, interactions.

    A feature is written ``"view:feature"``. The inputs of an interaction or a transformed feature
    need not be listed: they are read and used, but not returned.
    """

    name: str
    features: Sequence[FeatureView | TableView | Interaction | Transformed | str]
    description: str = ""
    owner: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_metadata("service", self)
        if not self.features:
            raise DefinitionError(f"service {self.name!r} has no features")
        for item in self.features:
            if isinstance(item, str):
                FeatureRef.parse(item)
        named = [str(item) for item in self.items()]
        double = sorted(duplicates(named))
        if double:
            raise DefinitionError(f"service {self.name!r} names {', '.join(double)} twice")

    def items(self) -> tuple[FeatureRef | Interaction | Transformed, ...]:
        """Return all outputs of the service in order, views expanded to their features."""
        out: list[FeatureRef | Interaction | Transformed] = []
        for item in self.features:
            if isinstance(item, str):
                out.append(FeatureRef.parse(item))
            elif isinstance(item, Interaction | Transformed):
                out.append(item)
            else:
                out.extend(FeatureRef(item.name, f.name) for f in item.compiled.features)
        return tuple(out)

    def refs(self) -> tuple[FeatureRef, ...]:
        """Return the features that the service names directly, views expanded, in order."""
        return tuple(item for item in self.items() if isinstance(item, FeatureRef))

    def _repr_html_(self) -> str:
        from paimon_features.core.notebook.markup import card, facts, table

        rows = (
            (str(item), item.view if isinstance(item, FeatureRef) else type(item).__name__)
            for item in self.items()
        )
        outputs = table(rows, ("output, in the order of the model's input", "of"))
        return card(
            f"FeatureService {self.name}", facts(shown(self)), outputs, note=self.description
        )

    def to_document(self) -> dict[str, object]:
        """Return the canonical JSON form, as in the registry."""
        features = [str(item) for item in self.items()]
        return {"kind": "service", "name": self.name, "features": features, **metadata(self)}
