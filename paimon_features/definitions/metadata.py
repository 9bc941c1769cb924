"""Descriptions, owners and tags of definitions."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from paimon_features.core.configuration.arguments import check_arguments
from paimon_features.core.errors import DefinitionError
from paimon_features.core.types.schema import check_name


class Described(Protocol):
    """A definition with metadata."""

    @property
    def name(self) -> str: ...
    @property
    def description(self) -> str: ...
    @property
    def owner(self) -> str: ...
    @property
    def tags(self) -> Mapping[str, str]: ...


def check_metadata(what: str, item: Described) -> None:
    """Raise DefinitionError for an invalid name, metadata that are not texts, or another argument
    that does not have its type.

    ``what`` names the kind for the message, for example ``entity``.
    """
    check_name(what, item.name)
    for part in ("description", "owner"):
        value = getattr(item, part)
        if not isinstance(value, str):
            raise DefinitionError(f"{what} {item.name!r}: {part}={value!r}; expected a text")
    tags: Any = item.tags
    if not isinstance(tags, Mapping) or not all(
        isinstance(t, str) for p in tags.items() for t in p
    ):
        raise DefinitionError(
            f"{what} {item.name!r}: tags={tags!r}; expected texts by name, "
            "for example {'team': 'growth'}"
        )
    check_arguments(f"{what} {item.name!r}", item)


def name_conflict(names: Collection[str]) -> str | None:
    """Return why results cannot have a feature of one of these names; None if they can."""
    for name in names:
        if name == "event_time_ms":
            return f"the feature {name!r} has the name of the time of entity rows; rename it"
        if (other := name.removesuffix("__status")) != name and other in names:
            return f"the feature {name!r} has the name of the status of {other!r}; rename one"
    return None


class Compiling(Described, Protocol):
    """A view with metadata, and its compiled form."""

    @property
    def compiled(self) -> object: ...


def check_compiles(what: str, view: Compiling) -> None:
    """Compile a view; a DefinitionError gets a note that names it."""
    try:
        _ = view.compiled
    except DefinitionError as error:
        error.add_note(f"in {what} {view.name!r}")
        raise


def metadata(item: Described) -> dict[str, object]:
    """Return the metadata's part of a definition's canonical JSON form."""
    return {"description": item.description, "owner": item.owner, "tags": dict(item.tags)}


def shown(item: Described) -> dict[str, object]:
    """Return the owner and the tags for a notebook; the description stands below the title."""
    return {"owner": item.owner, "tags": ", ".join(f"{k}: {v}" for k, v in item.tags.items())}
