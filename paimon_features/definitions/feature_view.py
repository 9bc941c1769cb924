"""A feature view: which aggregates of which events, per entity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise

from paimon_features.core.errors import DefinitionError, unknown_name
from paimon_features.core.expressions import Expression, overflow_guard, parse, substitute
from paimon_features.core.times.durations import option_ms, optional_ms
from paimon_features.core.times.partition_days import parse_partition_days
from paimon_features.core.types.schema import DataType, Int64, check_name
from paimon_features.core.windows import (
    DAY_MS,
    HOUR_MS,
    MAX_TIME_MS,
    MIN_TIME_MS,
    MINUTE_MS,
    CalendarUnit,
    Kind,
    Length,
    Window,
    check_time_zone,
    format_duration,
    format_length,
    hop_of,
    step_of,
)
from paimon_features.definitions.aggregates import (
    EVENT_TIME,
    HIDDEN_PARTIALS,
    TILE_END,
    Aggregate,
    Guard,
    Partial,
)
from paimon_features.definitions.aggregates.decayed import Decayed
from paimon_features.definitions.compiled import CompiledFeature, CompiledView, SkipRule
from paimon_features.definitions.entity import Entity
from paimon_features.definitions.metadata import check_compiles, check_metadata, metadata, shown
from paimon_features.definitions.source import EventSource


@dataclass(frozen=True, eq=False)
class FeatureView:
    """Windowed and time-decayed aggregates of one source for one entity.

    ``tile`` is the finest granularity that is stored, and the least hop of a window. ``derive``
    names columns computed from others; ``where`` is a condition on the events. ``kind`` decides
    where the windows' edges lie: ``"sawtooth"``, ``"hop"`` or ``"exact"`` (``windows.window`` draws
    them; exact ones are read online only with ``tile="1ms"``). ``resolution`` maps window lengths
    to hops ("from 12h on, hops of 1h") and replaces the defaults of ``windows.hop_of``. Calendar
    windows ("today") begin at midnight in ``time_zone``, a name of the IANA database. With ``ttl``,
    values of an entity without an event for that long are null (EXPIRED); with ``max_staleness``,
    online values are STALE when the online store has lagged behind the tile table for longer.
    ``buckets`` is the number of shards of the tile table and the online store; all tiles of an
    entity are in one. ``read_behind`` is how far before the newest applied event, beyond the
    source's ``max_skew``, a read is served online; it decides how many fine cells a record
    contains. By default it is 10 s for sawtooth windows over tiles of 1 ms, which are meant for
    requests with an event (``FeatureService(request=...)``), and otherwise 1 h.
    ``partition_days`` is the number of days in a partition of the tile table: 1,
    8, 64, 512 or ``"none"`` (one partition); by default it is chosen by the density of the events
    when the table is filled. Changing it makes a new generation.

    Raises
    ------
    DefinitionError
        For unknown columns, wrong types, a window shorter than a tile, steps that do not divide one
        another, two features of one name.
    """

    name: str
    source: EventSource
    entity: Entity
    features: Sequence[Aggregate]
    tile: str = "5min"
    derive: Mapping[str, str] = field(default_factory=dict)
    where: str | None = None
    resolution: Mapping[str, str] | None = None
    ttl: str | None = None
    max_staleness: str | None = None
    kind: Kind = "sawtooth"
    time_zone: str | None = None
    buckets: int = 2
    description: str = ""
    owner: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    partition_days: int | str | None = None
    read_behind: str | None = None

    def __post_init__(self) -> None:
        check_metadata("feature view", self)
        if self.buckets < 1:
            raise DefinitionError(
                f"feature view {self.name!r}: buckets={self.buckets}; expected >= 1"
            )
        if not self.features:
            raise DefinitionError(f"feature view {self.name!r} has no features")
        if not self.entity.keys and self.buckets != 1:
            raise DefinitionError(
                f"feature view {self.name!r}: buckets={self.buckets}; a view without keys has one "
                "entity, and so buckets=1"
            )
        check_compiles("feature view", self)

    def __getitem__(self, feature: str) -> str:
        """Return the reference ``"view:feature"``, as services and reads take it.

        Raises
        ------
        DefinitionError
            If the view has no such feature.
        """
        names = [f.name for f in self.compiled.features]
        if feature not in names:
            raise DefinitionError(unknown_name("feature", feature, names, f"view {self.name!r}"))
        return f"{self.name}:{feature}"

    @cached_property
    def compiled(self) -> CompiledView:
        """The compiled view, for the engines."""
        return _Compiler(self).compile()

    @cached_property
    def derived(self) -> Mapping[str, Expression]:
        """The derived columns, by name, over the columns of the source."""
        return _Compiler(self).derived()

    def _repr_html_(self) -> str:
        from paimon_features.core.notebook.markup import card, facts, table

        view = self.compiled
        features = table(
            (
                (f.name, f.type.text, type(f.aggregate).__name__, f.window.name or "lifetime",
                 format_duration(f.hop_ms))
                for f in view.features
            ),
            ("feature", "type", "aggregate", "window", "hop"),
        )  # fmt: skip
        about = {
            "of": f"{self.source.name} → {self.name}, per {self.entity.name} "
            f"({', '.join(view.keys) or 'all events'})",
            "tile": f"{self.tile}, {len(view.partials)} partials",
            "windows": self.kind,
            "derive": "; ".join(f"{name} = {text}" for name, text in self.derive.items()),
            "where": self.where,
            "null without an event for": self.ttl,
            "stale after": self.max_staleness,
            **shown(self),
        }
        return card(f"FeatureView {self.name}", facts(about), features, note=self.description)

    def to_document(self) -> dict[str, object]:
        """Return the canonical JSON form, as in the registry."""
        view = self.compiled
        return {
            "kind": "feature_view",
            "name": self.name,
            "source": self.source.name,
            "entity": self.entity.name,
            "tile": format_duration(view.tile_ms),
            "buckets": view.buckets,
            **({} if self.partition_days is None else {"partition_days": self.partition_days}),
            **({} if self.read_behind is None else {"read_behind": self.read_behind}),
            "window_kind": self.kind,
            "time_zone": self.time_zone,
            "derive": dict(self.derive),
            "where": self.where,
            "ttl_ms": view.ttl_ms,
            "max_staleness_ms": view.max_staleness_ms,
            "features": {
                f.name: {
                    "type": f.type.text,
                    "window": f.window.name,
                    "hop": format_duration(f.hop_ms),
                    "offset": format_duration(f.window.offset_ms) if f.window.offset_ms else None,
                    "partials": list(f.partials),
                }
                for f in view.features
            },
            **metadata(self),
            "tiles": view.fingerprint,
            "online": view.online_fingerprint,
        }


class _Compiler:
    """Compiles one feature view, checking each part."""

    def __init__(self, view: FeatureView) -> None:
        self.view = view
        self.features = [one for aggregate in view.features for one in aggregate.each()]
        self.tile_ms = option_ms("tile", view.tile)
        resolution = view.resolution
        self.resolution = (
            None
            if resolution is None
            else {
                option_ms("resolution", w): option_ms("resolution", h)
                for w, h in resolution.items()
            }
        )
        if DAY_MS % self.tile_ms:
            raise DefinitionError(f"tile={view.tile!r} does not divide a day")
        if view.kind == "exact" and resolution is not None:
            raise DefinitionError(
                f"resolution={dict(resolution)}: exact windows have no hops; leave it out, or "
                "choose kind='sawtooth' or 'hop'"
            )
        if view.time_zone is not None:
            check_time_zone(view.time_zone)

    def compile(self) -> CompiledView:
        view = self.view
        self._check_keys()
        derived = self.derived()
        scope = {**view.source.schema, **{name: e.type for name, e in derived.items()}}
        internal = {**scope, EVENT_TIME: Int64, TILE_END: Int64}

        def parsed(text: str) -> Expression:
            return substitute(parse(text, internal), derived)

        where, undecided = self._where(scope, derived)
        partials = self._partials(scope)
        self._check_retraction(
            scope, [*derived.values(), *(parsed(p.expression) for p in partials)]
        )
        partials = self._signed(partials)
        levels = self._levels()
        rules = [
            *self._key_rules(),
            *self._time_rules(),
            *self._retraction_rules(),
            *undecided,
            *self._overflow_rules(scope, derived),
        ]
        for guard in dict.fromkeys(g for p in partials for g in p.guards):
            rules.append(SkipRule("out_of_bounds", guard.detail, parsed(guard.expression)))
        return CompiledView(
            name=view.name,
            source=view.source,
            entity=view.entity,
            tile_ms=self.tile_ms,
            levels_ms=levels,
            where=where,
            skip_rules=tuple(rules),
            partials=partials,
            expressions={p.name: parsed(p.expression) for p in partials},
            features=self._features(scope, levels),
            scope=scope,
            ttl_ms=optional_ms("ttl", view.ttl),
            buckets=view.buckets,
            partition_days=parse_partition_days(f"feature view {view.name!r}", view.partition_days),
            max_staleness_ms=optional_ms("max_staleness", view.max_staleness),
            read_behind_ms=self._read_behind_ms(),
        )

    def _read_behind_ms(self) -> int:
        if self.view.read_behind is not None:
            return option_ms("read_behind", self.view.read_behind)
        # a view does not know the services that read it: single events are kept for requests
        return 10_000 if self.tile_ms == 1 and self.view.kind == "sawtooth" else HOUR_MS

    def _check_keys(self) -> None:
        schema = self.view.source.schema
        for key, kind in self.view.entity.keys.items():
            if key not in schema:
                message = unknown_name("column", key, schema, f"source {self.view.source.name!r}")
                raise DefinitionError(f"key of entity {self.view.entity.name!r}: {message}")
            if schema[key] != kind:
                raise DefinitionError(
                    f"key {key!r} is {schema[key]!r} in source {self.view.source.name!r} "
                    f"and {kind!r} in entity {self.view.entity.name!r}"
                )

    def derived(self) -> dict[str, Expression]:
        """Return the derived columns over the source's columns; each may use earlier ones."""
        derived: dict[str, Expression] = {}
        scope = dict(self.view.source.schema)
        for name, text in self.view.derive.items():
            check_name("derived column", name)
            if name in scope:
                raise DefinitionError(f"derive: the column {name!r} exists already")
            derived[name] = substitute(parse(text, scope), derived)
            scope[name] = derived[name].type
        return derived

    def _where(
        self, scope: Mapping[str, DataType], derived: Mapping[str, Expression]
    ) -> tuple[Expression | None, list[SkipRule]]:
        """Return the view's condition over the source's columns, and a rule where it can overflow.

        Where it overflows it decides nothing: such events pass the condition, and the rule then
        skips and counts them.
        """
        if self.view.where is None:
            return None, []
        where = parse(self.view.where, scope)
        if where.type.text != "bool":
            raise DefinitionError(
                f"where={self.view.where!r} is {where.type!r}; expected a condition"
            )
        where = substitute(where, derived)
        guard = overflow_guard(where)
        if guard is None:
            return where, []
        member = parse(f"NOT ({guard.text}) OR ({where.text})", self.view.source.schema)
        return member, [SkipRule("overflow", f"where: {self.view.where}", guard)]

    def _partials(self, scope: Mapping[str, DataType]) -> tuple[Partial, ...]:
        """Return all partials by name, the hidden ones first, shared ones once."""
        partials = {p.name: p for p in HIDDEN_PARTIALS}
        guards: dict[str, dict[Guard, None]] = {}
        for aggregate in self.features:
            aggregate.check_where(scope)
            for partial in aggregate.partials(scope):
                existing = partials.setdefault(partial.name, partial)
                if existing.expression != partial.expression or existing.merge != partial.merge:
                    raise DefinitionError(
                        f"{aggregate.stem}: its partial {partial.name!r} has two meanings: "
                        f"{existing.expression!r} and {partial.expression!r}"
                    )
                if (partial.limit or 0) > (existing.limit or 0):
                    partials[partial.name] = partial
                guards.setdefault(partial.name, {}).update(dict.fromkeys(partial.guards))
        rest = sorted(name for name in partials if name not in {p.name for p in HIDDEN_PARTIALS})
        # equal partials may have several bounds: all of them apply
        return HIDDEN_PARTIALS + tuple(
            replace(p, guards=tuple(guards.get(p.name, ())))
            for p in map(partials.__getitem__, rest)
        )

    def _check_retraction(
        self, scope: Mapping[str, DataType], expressions: Sequence[Expression]
    ) -> None:
        """Check that every aggregate can retract, from the columns of the event itself."""
        source = self.view.source
        if source.retraction is None:
            return
        for aggregate in self.features:
            why = aggregate.why_not_retractable(scope)
            if why is not None:
                raise DefinitionError(
                    f"{aggregate.stem}: events of source {source.name!r} may be retracted "
                    f"(retraction={source.retraction!r}), and {aggregate.kind} cannot "
                    f"retract one: {why}"
                )
        where = () if self.view.where is None else (parse(self.view.where, scope),)
        read = set(self.view.entity.keys).union(*(e.columns for e in (*expressions, *where)))
        if source.retraction in read:
            raise DefinitionError(
                f"the retraction column {source.retraction!r} of source {source.name!r} cannot be "
                "a key or occur in an expression: a retraction would not match its event"
            )

    def _signed(self, partials: tuple[Partial, ...]) -> tuple[Partial, ...]:
        """Return the partials, negated for retractions; the newest event time is never negated."""
        withdrawal = self.view.source.withdrawal
        if withdrawal is None:
            return partials
        return tuple(
            replace(
                p,
                expression=f"CASE WHEN {withdrawal} THEN -({p.expression}) ELSE {p.expression} END",
            )
            if p.merge.retractable
            else p
            for p in partials
        )

    def _levels(self) -> tuple[int, ...]:
        """Return cell sizes from the tile up to the coarsest hop in use, each dividing the next."""
        hops = {self._hop(a, length) for a in self.features for length in a.lengths}
        steps = (
            {5 * MINUTE_MS, HOUR_MS, DAY_MS}
            if self.resolution is None
            else set(self.resolution.values())
        )
        if self.tile_ms == 1:
            # an edge within a minute would otherwise be thousands of cells of one event each
            coarser = [step for step in steps | hops if step > 1]
            steps |= {
                step
                for step in (1_000, MINUTE_MS)
                if all(max(step, other) % min(step, other) == 0 for other in coarser)
            }
        between = {s for s in steps if self.tile_ms < s < max(hops)}
        levels = tuple(sorted({self.tile_ms} | hops | between))
        for fine, coarse in pairwise(levels):
            if coarse % fine:
                raise DefinitionError(
                    f"a step of {format_duration(fine)} does not divide the next one, "
                    f"{format_duration(coarse)}; choose tile= or resolution= so that it does"
                )
        return levels

    def _hop(self, aggregate: Aggregate, length: Length) -> int:
        if self.view.kind == "exact" or (self.view.kind == "hop" and length is None):
            # nothing is rounded, or only the end, and that as little as possible
            return self.tile_ms
        if not isinstance(length, CalendarUnit):
            return hop_of(length, self.tile_ms, self.resolution)
        if self.view.time_zone is None:
            raise DefinitionError(
                f"{aggregate.stem}: the window {length.value!r} begins at a local midnight; "
                "give the view a time_zone=, for example 'Europe/London' or 'UTC'"
            )
        step_ms = step_of(self.view.time_zone)
        # a day that is read up to its last complete hop would be empty with a hop of a day
        return max(self.tile_ms, min(step_ms, HOUR_MS) if self.view.kind == "hop" else step_ms)

    def _window(self, aggregate: Aggregate, length: Length) -> Window:
        if isinstance(length, int) and length < self.tile_ms and self.view.kind != "exact":
            raise DefinitionError(
                f"{aggregate.stem}: a window of {format_length(length)} is shorter "
                f"than the tile, {self.view.tile}"
            )
        return Window(
            length,
            hop_ms=self._hop(aggregate, length),
            tile_ms=self.tile_ms,
            kind=self.view.kind,
            offset_ms=aggregate.offset_ms,
            time_zone=self.view.time_zone if isinstance(length, CalendarUnit) else None,
        )

    def _features(
        self, scope: Mapping[str, DataType], levels: tuple[int, ...]
    ) -> tuple[CompiledFeature, ...]:
        out: dict[str, CompiledFeature] = {}
        for aggregate in self.features:
            self._check_half_life(aggregate)
            names = tuple(p.name for p in aggregate.partials(scope))
            for length in aggregate.lengths:
                window = self._window(aggregate, length)
                # the lifetime cell contains what has left the top level
                level = len(levels) - 1 if length is None else levels.index(window.hop_ms)
                feature = CompiledFeature(
                    aggregate.feature_name(length),
                    aggregate,
                    window,
                    level,
                    names,
                    aggregate.output_type(scope),
                )
                if feature.name in out:
                    raise DefinitionError(
                        f"two features are named {feature.name!r}; give one of them a name="
                    )
                if feature.name in self.view.entity.keys:
                    raise DefinitionError(f"the feature {feature.name!r} has the name of a key")
                out[feature.name] = feature
        return tuple(out.values())

    def _check_half_life(self, aggregate: Aggregate) -> None:
        if isinstance(aggregate, Decayed) and aggregate.half_life_ms * 500 < self.tile_ms:
            raise DefinitionError(
                f"{aggregate.stem}: half_life={aggregate.half_life!r} is below a 500th of the "
                f"tile, {self.view.tile}; weights within a tile would underflow"
            )

    def _key_rules(self) -> list[SkipRule]:
        schema = self.view.source.schema
        return [
            SkipRule("null_key", key, parse(f"{key} IS NOT NULL", schema))
            for key in self.view.entity.keys
        ]

    def _time_rules(self) -> list[SkipRule]:
        time = self.view.source.event_time
        text = f"{time} IS NOT NULL AND {time} >= {MIN_TIME_MS} AND {time} <= {MAX_TIME_MS}"
        return [SkipRule("absurd_time", time, parse(text, self.view.source.schema))]

    def _retraction_rules(self) -> list[SkipRule]:
        source = self.view.source
        if source.retraction is None or source.withdrawal_rule is None:
            return []
        condition = parse(source.withdrawal_rule, source.schema)
        return [SkipRule("bad_retraction", source.retraction, condition)]

    def _overflow_rules(
        self, scope: Mapping[str, DataType], derived: Mapping[str, Expression]
    ) -> list[SkipRule]:
        """Return rules for derived columns and conditions of aggregates that can overflow."""
        expressions = dict(derived)
        for aggregate in self.features:
            for text in aggregate.conditions:
                expressions[f"where: {text}"] = substitute(parse(text, scope), derived)
        guards = {detail: overflow_guard(expression) for detail, expression in expressions.items()}
        return [SkipRule("overflow", d, g) for d, g in guards.items() if g is not None]
