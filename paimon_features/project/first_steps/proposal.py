"""A first feature view for an input, and the two files of a project that define it."""

from __future__ import annotations

import keyword
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from paimon_features.core.documents.generated_text import (
    docstring_line,
    one_line,
    python_literal,
    toml_key,
    toml_value,
)
from paimon_features.core.errors import ConfigurationError
from paimon_features.core.suggestions import did_you_mean
from paimon_features.core.times.durations import DAY_MS, HOUR_MS, MINUTE_MS, format_duration
from paimon_features.ingest.inputs.column_types import InputColumnProfile
from paimon_features.ingest.inputs.profiles import InputProfile, iter_roles

_LADDER = (HOUR_MS, 6 * HOUR_MS, DAY_MS, 7 * DAY_MS, 30 * DAY_MS, 90 * DAY_MS, 365 * DAY_MS)
MOST_MEASURES = 4


@dataclass(frozen=True, slots=True)
class Proposal:
    """The first view: names, keys, windows. ``others`` are columns that could be the key, too."""

    source: str
    entity: str
    keys: tuple[InputColumnProfile, ...]
    view: str
    tile: str
    windows: tuple[str, ...]
    measures: tuple[InputColumnProfile, ...]
    category: InputColumnProfile | None
    others: tuple[InputColumnProfile, ...]


def propose(profile: InputProfile, name: str, entity: Sequence[str] = ()) -> Proposal:
    """Choose an entity, windows that suit the span and density of events, and aggregates.

    Raises
    ------
    ConfigurationError
        For a column of ``entity`` that cannot be a key.
    """
    candidates = list(iter_roles(profile))
    if entity:
        keys = tuple(_key(profile, column) for column in entity)
    else:
        keys = tuple(candidates[:1])
    others = tuple(c for c in candidates if c not in keys)[:5]
    stem = "_".join(key.name.removesuffix("_id") for key in keys) or "everything"
    view = f"{stem}_{name}" if stem != name else f"{name}_features"
    days = profile.event_time.days_only
    return Proposal(
        name,
        stem,
        keys,
        view,
        "1d" if days else "5min",
        _windows(profile, keys, DAY_MS if days else 5 * MINUTE_MS),
        tuple(c for c in profile.of_role("measure") if c not in keys)[:MOST_MEASURES],
        next((c for c in profile.of_role("category") if c not in keys), None),
        others,
    )


def _key(profile: InputProfile, name: str) -> InputColumnProfile:
    column = next((c for c in profile.columns if name in (c.field, c.name)), None)
    if column is None or column.type is None:
        fields = [c.field for c in profile.columns if c.type is not None]
        raise ConfigurationError(
            f"--entity {name}: {profile.path} has no such column{did_you_mean(name, fields)}; it "
            f"has: {', '.join(fields)}"
        )
    if not column.type.is_key or column.role == "event time":
        raise ConfigurationError(
            f"--entity {name}: it is {column.role if column.role == 'event time' else column.type};"
            " a key is an integer, a text, a boolean or a day. Name a column that identifies what "
            "features are about"
        )
    return column


def _windows(
    profile: InputProfile, keys: Sequence[InputColumnProfile], tile_ms: int
) -> tuple[str, ...]:
    """Two or three windows: from about the time between events of an entity to the span."""
    span = max(profile.last_ms - profile.first_ms, 1)
    ladder = [w for w in _LADDER if w >= tile_ms and w <= span] or [max(HOUR_MS, tile_ms)]
    gap = _median_gap(profile, keys)
    first = next((i for i, w in enumerate(ladder) if w >= gap), len(ladder) - 1)
    usable = ladder[first:]
    chosen = [usable[0], usable[len(usable) // 2], usable[-1]]
    return tuple(format_duration(w) for w in dict.fromkeys(chosen))


def _median_gap(profile: InputProfile, keys: Sequence[InputColumnProfile]) -> float:
    """Return the median time between two events of an entity, in ms."""
    times = profile.times.fill_null(0).to_numpy(zero_copy_only=False)
    if keys:
        column = profile.sample.column(keys[0].field)
        codes = column.combine_chunks()
        if not pa.types.is_dictionary(codes.type):
            codes = codes.dictionary_encode()
        groups = codes.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    else:
        groups = np.zeros(len(times), np.int64)
    order = np.lexsort((times, groups))
    gaps = np.diff(times[order])[np.diff(groups[order]) == 0]
    gaps = gaps[gaps > 0]
    return float(np.median(gaps)) if len(gaps) else 0.0


def definitions_text(profile: InputProfile, proposal: Proposal) -> str:
    """Return the text of features.py."""
    source = _variable(proposal.source, "source")
    entity = _variable(proposal.entity, "entity", source)
    lines = [
        *_heading_lines(profile),
        *_source_lines(profile, proposal, source),
        *_entity_lines(proposal, entity),
        *_view_lines(profile, proposal, source, entity),
    ]
    if proposal.keys:
        lines += [
            "# A service is what one model reads, in the order of its inputs.",
            f"service = pf.FeatureService({python_literal(f'{proposal.source}_v1')}, [view])",
            "",
        ]
    return "\n".join(lines)


def _heading_lines(profile: InputProfile) -> list[str]:
    return [
        f'"""First features of {docstring_line(profile.path.name[:60])}: a proposal of '
        "`paimon-features init --from`.",
        "",
        "Change anything; `paimon-features try features.py FILE` shows the values, `plan` what",
        "`apply` would create.",
        '"""',
        "",
        "import paimon_features as pf",
        "",
    ]


def _source_lines(profile: InputProfile, proposal: Proposal, variable: str) -> Iterator[str]:
    yield "# An event source is a typed log that only grows. Columns that no feature needs may go."
    yield f"{variable} = pf.EventSource("
    yield f"    {python_literal(proposal.source)},"
    yield "    schema={"
    typed = [column for column in profile.columns if column.type is not None]
    width = max(len(column.name) for column in typed)
    for column in typed:
        key = f"{python_literal(column.name)}:".ljust(width + 3)
        yield f"        {key} pf.{column.type!r},  # {_about(column, profile)}".rstrip()
    yield "    },"
    yield f"    event_time={python_literal(profile.event_time.name)},  # UTC milliseconds"
    for column in profile.of_role("event id")[:1]:
        yield (
            f"    # {_shown(column.name)} is different in each row. If a sender may repeat events, "
            "this counts each once:"
        )
        yield f'    # event_id={python_literal(column.name)}, dedup_horizon="1d",'
    yield ")"
    yield ""
    for column in profile.columns:
        if column.type is None:
            notes = _shown("; ".join(column.notes), 300)
            yield f"# Not a column of the source: {_shown(column.field)}: {notes}"


def _entity_lines(proposal: Proposal, variable: str) -> Iterator[str]:
    yield "# An entity is what features are about, by its keys."
    if proposal.others:
        yield "# Other columns that could be keys:"
    for column in proposal.others:
        yield f"#   {_shown(column.name)}, {column.distinct:,} values"
    keys = ", ".join(f"{python_literal(key.name)}: pf.{key.type!r}" for key in proposal.keys)
    yield f"{variable} = pf.Entity({python_literal(proposal.entity)}, keys={{{keys}}})"
    yield ""


def _view_lines(
    profile: InputProfile, proposal: Proposal, source: str, entity: str
) -> Iterator[str]:
    yield f"# Windows for events of {_span(profile)}; more windows of the same sums cost little."
    yield "view = pf.FeatureView("
    yield f"    {python_literal(proposal.view)},"
    yield f"    source={source},"
    yield f"    entity={entity},"
    yield f'    tile="{proposal.tile}",  # the lake keeps sums per tile; a window merges tiles'
    if not proposal.keys:
        yield "    buckets=1,"
    yield "    features=["
    for line in _feature_lines(proposal):
        yield f"        {line}"
    yield "    ],"
    yield ")"
    yield ""


def _feature_lines(proposal: Proposal) -> Iterator[str]:
    windows = python_literal(proposal.windows)
    longest = python_literal(proposal.windows[-1:])
    yield f"pf.Count(windows={windows}),"
    for column in proposal.measures:
        scale = ""
        if column.type is not None and column.type.is_float and column.decimals is not None:
            scale = f", scale={column.decimals}"
            yield f"# values have {column.decimals} decimals: with scale= sums are exact"
        name = python_literal(column.name)
        yield f"pf.Sum({name}, windows={windows}{scale}),"
        yield f"pf.Mean({name}, windows={longest}{scale}),"
        yield f"pf.Max({name}, windows={longest}),"
    if proposal.category is not None:
        yield f"pf.Last({python_literal(proposal.category.name)}, windows={longest}),"
    for column in [c for c in proposal.others if c.role in ("key", "event id")][:1]:
        yield f"pf.ApproxCountDistinct({python_literal(column.name)}, windows={longest}),"
    yield f"pf.TimeSinceLast(windows={longest}),"


def _variable(name: str, kind: str, *taken: str) -> str:
    """Return a variable for a definition: its name, if no other variable or word of Python is
    that."""
    is_free = name not in ("pf", "view", "service", *taken) and not keyword.iskeyword(name)
    return name if is_free else f"{name}_{kind}"


def _about(c: InputColumnProfile, profile: InputProfile) -> str:
    parts: list[str] = [c.role] if c.role not in ("other", "measure", "category") else []
    if c.field != c.name:
        parts.append(f"in the file: {_shown(c.field)}")
    if c.type is not None and c.type.text == "string" and c.distinct:
        parts.append(f"{c.distinct:,} different")
    if c.nulls:
        parts.append(f"{100 * c.nulls / profile.rows:.0f} % empty")
    parts.append(f"as {_shown(c.example)}")
    return ", ".join(parts)


def _shown(text: str, most: int = 60) -> str:
    """Return text from outside for a comment: one line, cut off."""
    return one_line(text)[:most]


def _span(profile: InputProfile) -> str:
    import datetime as dt

    first, last = (
        (dt.datetime(1970, 1, 1) + dt.timedelta(milliseconds=ms)).date().isoformat()
        for ms in (profile.first_ms, profile.last_ms)
    )
    return f"{first} to {last}"


def inputs_text(profile: InputProfile, source: str) -> str:
    """Return the table ``[inputs.NAME]`` of paimon-features.toml.

    Empty for files that need none.
    """
    document = profile.settings.to_document()
    if not document:
        return ""
    lines = [
        "",
        f"# How the files of {source} are written, as `init --from` found it.",
        f"[inputs.{toml_key(source)}]",
        *(f"{toml_key(name)} = {toml_value(value)}" for name, value in document.items()),
    ]
    return "\n".join(lines) + "\n"
