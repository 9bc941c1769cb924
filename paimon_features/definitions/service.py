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
from paimon_features.definitions.source import EventSource
from paimon_features.definitions.table_view import TableView
from paimon_features.definitions.transformed import Transformed


@dataclass(frozen=True, eq=False)
class FeatureService:
    """The features that a model reads, in the order of its input: views, features, interactions.

    A feature is written ``"view:feature"``. The inputs of an interaction or a transformed feature
    need not be listed: they are read and used, but not returned.

    With ``request`` a read takes one event of that source instead of entity keys: it is as of the
    time of the event, which is counted in the features of views over the source. The keys of all
    views and the request inputs are columns of the source; ``keys`` maps a key to a column of
    another name.

    Raises
    ------
    DefinitionError
        For no feature, one named twice, or with ``request`` a key or an input that the source does
        not have, or a view whose windows do not end at the time of an event.
    """

    name: str
    features: Sequence[FeatureView | TableView | Interaction | Transformed | str]
    description: str = ""
    owner: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    request: EventSource | None = None
    keys: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_metadata("service", self)
        if self.keys and self.request is None:
            raise DefinitionError(
                f"service {self.name!r}: keys= maps entity keys to columns of the request's "
                "source; give request=, too"
            )
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
        document = {"kind": "service", "name": self.name, "features": features, **metadata(self)}
        if self.request is not None:
            document |= {"request": self.request.name, "keys": dict(self.keys)}
        return document
