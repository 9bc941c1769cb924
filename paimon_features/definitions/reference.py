"""References to features: ``view:feature``."""

from __future__ import annotations

from dataclasses import dataclass

from paimon_features.core.errors import DefinitionError


@dataclass(frozen=True, slots=True)
class FeatureRef:
    """One feature of one view; its text form is ``view:feature``."""

    view: str
    feature: str

    def __str__(self) -> str:
        return f"{self.view}:{self.feature}"

    @classmethod
    def parse(cls, text: str) -> FeatureRef:
        """Parse ``view:feature``; DefinitionError for anything else.

        >>> FeatureRef.parse("spend:sum_amount_1d").feature
        'sum_amount_1d'
        """
        view, colon, feature = text.partition(":")
        if not (view and colon and feature):
            raise DefinitionError(f"feature reference {text!r}: expected 'view:feature'")
        return cls(view, feature)
