"""Interactions: features computed from other features and request inputs at read time.

Tiles do not depend on them, so changing one needs no backfill. One expression tree is evaluated
by one implementation, online and offline.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from paimon_features.core.errors import DefinitionError, ExpressionError, unknown_name
from paimon_features.core.expressions import Expression, overflow_guard, parse, substitute
from paimon_features.core.expressions.nodes import Name, walk
from paimon_features.core.suggestions import did_you_mean
from paimon_features.core.types.schema import DataType
from paimon_features.definitions.compiled import CompiledView
from paimon_features.definitions.metadata import check_metadata, metadata, name_conflict, shown
from paimon_features.definitions.reference import FeatureRef
from paimon_features.definitions.request import RequestSource
from paimon_features.definitions.table_view import CompiledTable


@dataclass(frozen=True, eq=False)
class Interaction:
    """A feature computed from finished features, request inputs and other interactions.

    In ``expression`` a feature is written ``view:feature``, a request input or another
    interaction by its name. ``request`` declares the inputs that it may use. The language is that
    of ``derive`` and ``where``; see ``docs/reference/interactions.md``.

    Names and types are checked when the project's definitions are read, since the views are known
    only then.

    >>> ratio = Interaction(
    ...     "spend_ratio", "ratio(spend:sum_amount_1d, spend:sum_amount_30d, zero=0)")
    >>> str(ratio)
    'spend_ratio'
    """

    name: str
    expression: str
    request: RequestSource | Sequence[RequestSource] = ()
    description: str = ""
    owner: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_metadata("interaction", self)
        if conflict := name_conflict([self.name]):
            raise DefinitionError(f"interaction {self.name!r}: {conflict}")
        if not self.expression.strip():
            raise DefinitionError(f"interaction {self.name!r} has an empty expression")
        _ = self.inputs

    def __str__(self) -> str:
        return self.name

    @property
    def requests(self) -> tuple[RequestSource, ...]:
        """The request sources whose inputs it may use."""
        request = self.request
        return (request,) if isinstance(request, RequestSource) else tuple(request)

    @property
    def inputs(self) -> Mapping[str, DataType]:
        """The request inputs that it may use, by name."""
        input_types: dict[str, DataType] = {}
        for source in self.requests:
            for name, kind in source.schema.items():
                if input_types.setdefault(name, kind) != kind:
                    raise DefinitionError(
                        f"interaction {self.name!r}: the request input {name!r} is "
                        f"{input_types[name]!r} and {kind!r}; one name has one type"
                    )
        return input_types

    def _repr_html_(self) -> str:
        from paimon_features.core.notebook.markup import card, facts, mapping_text

        inputs = mapping_text({name: kind.text for name, kind in self.inputs.items()})
        about = {"expression": self.expression, "request inputs": inputs, **shown(self)}
        return card(f"Interaction {self.name}", facts(about), note=self.description)

    def to_document(self) -> dict[str, object]:
        """Return the canonical JSON form, as in the registry."""
        return {
            "kind": "interaction",
            "name": self.name,
            "expression": self.expression,
            "request": [source.name for source in self.requests],
            **metadata(self),
        }


@dataclass(frozen=True, eq=False)
class CompiledInteraction:
    """A compiled interaction: one tree over features (``view:feature``) and request inputs.

    ``guard`` tests that no step leaves its type (None: none can). ``refs`` are the features
    that it reads, ``inputs`` the request inputs that it uses, both ordered by name.
    """

    name: str
    text: str
    expression: Expression
    guard: Expression | None
    refs: tuple[FeatureRef, ...]
    inputs: Mapping[str, DataType]

    def __str__(self) -> str:
        return self.name

    @property
    def type(self) -> DataType:
        """The type of its values."""
        return self.expression.type

    def to_document(self) -> dict[str, object]:
        """Return what it is computed from, for the properties of a training set."""
        return {
            "expression": self.text,
            "canonical": self.expression.text,
            "request": {name: kind.text for name, kind in self.inputs.items()},
        }


@dataclass
class Interactions:
    """Compiles interactions against the views and the other interactions of a project."""

    views: Mapping[str, CompiledView | CompiledTable]
    named: Mapping[str, Interaction]
    _known: dict[Interaction, CompiledInteraction] = field(default_factory=dict)

    def compile(self, interaction: Interaction, path: tuple[str, ...] = ()) -> CompiledInteraction:
        """Return the compiled interaction; the same object for the same interaction.

        ``path`` are the names of the interactions that it is compiled for.

        Raises
        ------
        DefinitionError
            For an unknown name, types that do not fit, or a cycle.
        """
        cached = self._known.get(interaction)
        if cached is not None:
            return cached
        if interaction.name in path:
            cycle = [*path[path.index(interaction.name) :], interaction.name]
            raise DefinitionError(f"interactions depend on each other: {' -> '.join(cycle)}")
        try:
            compiled = self._compile(interaction, (*path, interaction.name))
        except ExpressionError as error:
            raise DefinitionError(f"interaction {interaction.name!r}: {error}") from error
        # another thread may have been first; all must get one object
        return self._known.setdefault(interaction, compiled)

    def feature_type(self, ref: FeatureRef) -> DataType:
        """Return the type of a feature; ExpressionError for an unknown one."""
        view = self.views.get(ref.view)
        if view is None:
            raise ExpressionError(unknown_name("feature view", ref.view, self.views))
        feature = view.feature(ref.feature)
        if feature is None:
            names = [f.name for f in view.features]
            owner = f"view {ref.view!r}"
            raise ExpressionError(unknown_name("feature", ref.feature, names, owner))
        return feature.type

    def _compile(self, interaction: Interaction, path: tuple[str, ...]) -> CompiledInteraction:
        scope = _Scope(self, interaction, path)
        parsed = parse(interaction.expression, scope)
        others = {name: self.compile(self.named[name]) for name in sorted(scope.interactions)}
        tree = substitute(parsed, {name: other.expression for name, other in others.items()})
        inputs = {name: interaction.inputs[name] for name in scope.inputs}
        for other in others.values():
            for name, kind in other.inputs.items():
                if inputs.setdefault(name, kind) != kind:
                    raise ExpressionError(
                        f"the request input {name!r} is {inputs[name]!r} here and {kind!r} in "
                        f"interaction {other.name!r}; one name has one type"
                    )
        leaves = sorted({node.name for node in walk(tree) if isinstance(node, Name)})
        if not leaves:
            raise ExpressionError(
                f"{interaction.expression!r} names no feature and no request input, so it is "
                "constant"
            )
        if interaction.requests and not scope.inputs:
            raise ExpressionError(
                f"{interaction.expression!r} uses none of its request inputs "
                f"({', '.join(interaction.inputs)}); leave request= out"
            )
        return CompiledInteraction(
            name=interaction.name,
            text=interaction.expression,
            expression=tree,
            guard=overflow_guard(tree),
            refs=tuple(FeatureRef.parse(name) for name in leaves if ":" in name),
            inputs={name: inputs[name] for name in leaves if ":" not in name},
        )


class _Scope(Mapping[str, DataType]):
    """The names that one interaction may use; records which of them it uses."""

    def __init__(
        self, project: Interactions, interaction: Interaction, path: tuple[str, ...]
    ) -> None:
        self._project = project
        self._of = interaction
        self._path = path
        self.inputs: set[str] = set()
        self.interactions: set[str] = set()

    def __getitem__(self, name: str) -> DataType:
        if ":" in name:
            return self._project.feature_type(FeatureRef.parse(name))
        kind = self._of.inputs.get(name)
        other = self._project.named.get(name)
        if kind is not None and other is not None:
            raise ExpressionError(f"{name!r} is a request input and an interaction; rename one")
        if kind is not None:
            self.inputs.add(name)
            return kind
        if other is None:
            raise ExpressionError(
                f"unknown request input or interaction {name!r}; request inputs of "
                f"{self._of.name!r}: {_listed(self._of.inputs)}; interactions: "
                f"{_listed(self._project.named)}; a feature is written view:feature"
                f"{did_you_mean(name, [*self._of.inputs, *self._project.named])}"
            )
        self.interactions.add(name)
        return self._project.compile(other, self._path).type

    def __contains__(self, name: object) -> bool:
        return name in self._of.inputs or name in self._project.named

    def __iter__(self) -> Iterator[str]:
        return iter(self._of.inputs)

    def __len__(self) -> int:
        return len(self._of.inputs)


def _listed(names: Mapping[str, object] | Iterator[str]) -> str:
    return ", ".join(sorted(names)) or "none"
