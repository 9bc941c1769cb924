"""What a model reads of a service: types, definitions and keys, as its signature has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paimon_features.core.types.schema import DataType
from paimon_features.definitions.reference import FeatureRef
from paimon_features.definitions.selection import Output
from paimon_features.models import ModelKey

if TYPE_CHECKING:
    from paimon_features.project.context import ProjectContext


def type_of(project: ProjectContext, output: Output) -> DataType:
    """Return the data type of an output."""
    if not isinstance(output, FeatureRef):
        return output.type
    feature = project.any_view(output.view).feature(output.feature)
    assert feature is not None, output
    return feature.type


def digest_of(project: ProjectContext, service: str, output: Output) -> str:
    """Return a digest of what the values of an output of a service mean, with the features that
    they are computed from."""
    reads = project.event_reads(service)
    request = None if reads is None else reads.source.name
    return project.definitions.value_definition(output, request)


def keys_of(project: ProjectContext, outputs: Sequence[Output]) -> tuple[ModelKey, ...]:
    """Return the entity keys that the outputs are read by."""
    refs = [
        ref
        for output in outputs
        for ref in ([output] if isinstance(output, FeatureRef) else output.refs)
    ]
    keys = {
        name: kind.text
        for view in dict.fromkeys(ref.view for ref in refs)
        for name, kind in project.any_view(view).keys.items()
    }
    return tuple(ModelKey(name, kind) for name, kind in keys.items())
