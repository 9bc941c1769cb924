"""Which tensors are features, labels and weights: the structure that Keras takes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paimon_features.core.errors import ConfigurationError, UnknownNameError
from trainer_bridge.readers.loss_weights import SAMPLE_WEIGHT


@dataclass(frozen=True)
class Roles:
    """What makes an element of named tensors."""

    features: str | tuple[str, ...]
    label: str | tuple[str, ...] | None
    weight: str | None

    @classmethod
    def of(
        cls,
        names: Collection[str],
        features: str | Sequence[str] | None,
        label: str | Sequence[str] | None,
        weight: str | None,
    ) -> Roles:
        """Check the requested roles against the tensors that there are.

        Raises
        ------
        UnknownNameError
            For a name that is none of them.
        ConfigurationError
            For a weight without a label, or if no feature is left.
        """
        labels = _as_names(label)
        for name in (*_as_names(features), *labels, *_as_names(weight)):
            if name not in names:
                raise UnknownNameError.of("tensor", name, names)
        if weight is None and label is not None and SAMPLE_WEIGHT in names:
            weight = SAMPLE_WEIGHT
        if weight is not None and label is None:
            raise ConfigurationError(f"weight={weight!r} goes with a label; give label= as well")
        taken = {*labels, *_as_names(weight)}
        if features is None:
            features = [name for name in names if name not in taken]
        if not features:
            raise ConfigurationError("no column is left for the features; read more of them")
        return cls(
            features if isinstance(features, str) else tuple(features),
            label if label is None or isinstance(label, str) else tuple(label),
            weight,
        )

    def __call__(self, tensors: Mapping[str, Any]) -> Any:
        parts = [_pick(tensors, self.features)]
        if self.label is not None:
            parts.append(_pick(tensors, self.label))
        if self.weight is not None:
            parts.append(tensors[self.weight])
        return parts[0] if len(parts) == 1 else tuple(parts)


def _as_names(names: str | Sequence[str] | None) -> tuple[str, ...]:
    if names is None:
        return ()
    return (names,) if isinstance(names, str) else tuple(names)


def _pick(tensors: Mapping[str, Any], names: str | tuple[str, ...]) -> Any:
    return tensors[names] if isinstance(names, str) else {name: tensors[name] for name in names}
