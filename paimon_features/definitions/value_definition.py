"""What a value means: a digest of everything that decides it, whatever its name is.

What is fitted or trained on values records it, and is not applied to values of another meaning: a
maximum under the name of a sum. Other features of the same view do not change it, nor does what
only decides how tiles are stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from paimon_features.core.documents.published_document import document_digest
from paimon_features.definitions.compiled import CompiledView
from paimon_features.definitions.interaction import CompiledInteraction
from paimon_features.definitions.reference import FeatureRef
from paimon_features.definitions.table_view import CompiledTable

PREFIX = "value-"
"""Tells these digests from those of earlier releases, which cover more than the value."""

Views = Mapping[str, CompiledView | CompiledTable]

_NOT_OF_THE_VALUE = ("windows", "lengths", "name", "own_event")


def value_definition(
    views: Views, output: FeatureRef | CompiledInteraction, request: str | None = None
) -> str:
    """Return the digest of a feature, or of an interaction with the features that it reads.

    ``request`` is the source whose events are counted in the values that are read with them.

    Examples
    --------
    >>> from paimon_features.definitions import Entity, EventSource, FeatureView
    >>> from paimon_features.definitions.aggregates import Count, Max, Sum
    >>> from paimon_features.core.types.schema import Int64
    >>> source = EventSource("s", schema={"k": Int64, "t": Int64, "x": Int64}, event_time="t")
    >>> entity = Entity("e", {"k": Int64})
    >>> def of(*features):
    ...     view = FeatureView("v", source=source, entity=entity, features=features)
    ...     return value_definition({"v": view.compiled}, FeatureRef("v", "f"))
    >>> of(Sum("x", name="f")) == of(Count(), Sum("x", name="f"))
    True
    >>> of(Sum("x", name="f")) == of(Max("x", name="f"))
    False
    """
    return digest_of_values(_document(views, output, request))


def digest_of_values(document: object) -> str:
    """Return the digest of a document that describes a value."""
    return PREFIX + document_digest(document)[:16]


def _document(
    views: Views, output: FeatureRef | CompiledInteraction, request: str | None
) -> list[object]:
    if isinstance(output, CompiledInteraction):
        read = [[str(ref), _document(views, ref, request)] for ref in output.refs]
        return [output.expression.text, output.type.text, read]
    view = views[output.view]
    if isinstance(view, CompiledTable):
        source, feature = view.source, view.feature(output.feature)
        assert feature is not None, output
        return [
            source.table, source.event_time, source.created_time, list(view.keys), view.closed,
            feature.name, feature.type.text,
        ]  # fmt: skip
    compiled = view.feature(output.feature)
    assert compiled is not None, output
    aggregate = compiled.aggregate
    settings = {
        f.name: repr(getattr(aggregate, f.name))
        for f in fields(aggregate)
        if f.name not in _NOT_OF_THE_VALUE
    }
    partials = [view.partial[name] for name in compiled.partials]
    counts_own = view.source.name == request and aggregate.counts_own_event
    return [
        view.source.table, view.source.event_time, list(view.keys),
        None if view.where is None else view.where.text,
        [[p.type.text, p.merge.value, view.expressions[p.name].text] for p in partials],
        type(aggregate).__name__, settings, compiled.type.text, compiled.window.to_document(),
        *(["own_event"] if counts_own else []),
    ]  # fmt: skip
