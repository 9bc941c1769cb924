"""A feature service: the features that one model reads, under one name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paimon_features.definitions.feature_view import FeatureView
from paimon_features.definitions.metadata import check_metadata, metadata
from paimon_features.errors import DefinitionError
from paimon_features.schema import check_name


@dataclass(frozen=True, slots=True)
class FeatureRef:
    """One feature of one view; its text form is ``view:feature``."""

    view: str
    feature: str

    def __str__(self) -> str:
        return f"{self.view}:{self.feature}"

    @classmethod
    def parse(cls, text: str) -> FeatureRef:
        """Read ``view:feature``; DefinitionError for anything else.

        >>> FeatureRef.parse("spend:sum_amount_1d").feature
        'sum_amount_1d'
        """
        view, colon, feature = text.partition(":")
        if not (view and colon and feature):
            raise DefinitionError(f"feature reference {text!r}: expected 'view:feature'")
        return cls(view, feature)


@dataclass(frozen=True, eq=False)
class FeatureService:
    """Whole views and single features (``"view:feature"``), in the order of the model's input."""

    name: str
    features: Sequence[FeatureView | str]
    description: str = ""
    owner: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_name("service", self.name)
        check_metadata("service", self)
        if not self.features:
            raise DefinitionError(f"service {self.name!r} has no features")
        for item in self.features:
            if isinstance(item, str):
                FeatureRef.parse(item)
            elif not isinstance(item, FeatureView):
                raise DefinitionError(
                    f"service {self.name!r}: got {item!r}; "
                    "expected a FeatureView or a reference 'view:feature'"
                )

    def refs(self) -> tuple[FeatureRef, ...]:
        """Every feature of the service, views spelled out, in order."""
        out: list[FeatureRef] = []
        for item in self.features:
            if isinstance(item, str):
                out.append(FeatureRef.parse(item))
            else:
                out.extend(FeatureRef(item.name, f.name) for f in item.compiled.features)
        double = {ref for ref in out if out.count(ref) > 1}
        if double:
            raise DefinitionError(
                f"service {self.name!r} names {', '.join(map(str, sorted(double, key=str)))} twice"
            )
        return tuple(out)

    def to_document(self) -> dict[str, object]:
        """Canonical JSON form, as it stands in the registry."""
        features = [str(ref) for ref in self.refs()]
        return {"kind": "service", "name": self.name, "features": features, **metadata(self)}
