"""Options of the whole command line: accepted before the command and anywhere after it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import click

_FLAGS = {
    "--json": "as_json", "-q": "quiet", "--quiet": "quiet", "-v": "verbose", "--verbose": "verbose",
}  # fmt: skip
_OPTIONAL = {"path": "--project", "as_json": "--json"}
"""Parameters that a command must ask for, by ``PROJECT`` and ``JSON``."""


def _shared(parameter: str, default: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that passes an option of the command line to a command."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def _call(*arguments: Any, **options: Any) -> Any:
            params = click.get_current_context().find_root().params
            options.setdefault(parameter, params.get(parameter, default))
            return function(*arguments, **options)

        _call.__dict__["shared_options"] = {parameter, *shared_options(function)}
        return _call

    return decorate


def shared_options(function: object) -> set[str]:
    """Return the parameters that a command's function takes from the command line."""
    return set(getattr(function, "shared_options", ()))


PROJECT = _shared("path", ".")
JSON = _shared("as_json", False)


@dataclass(frozen=True, slots=True)
class DataChanges:
    """When a run of a command changes data or definitions.

    It does not with one of the parameters ``unless``. ``names`` returns further parameters for
    lineage: what a run is about, where that is in a file.
    """

    unless: tuple[str, ...]
    names: Callable[[Mapping[str, Any]], Mapping[str, str]] | None

    def of_run(self, params: Mapping[str, Any]) -> bool:
        """Return True if a run with these parameters changes anything."""
        return all(params[name] in (None, False) for name in self.unless)


def changes_data(
    *unless: str, names: Callable[[Mapping[str, Any]], Mapping[str, str]] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that declares when a command changes data; see ``DataChanges``."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        function.__dict__["changes"] = DataChanges(unless, names)
        return function

    return decorate


def data_changes(command: click.Command) -> DataChanges | None:
    """Return what a command declares; None for one that changes nothing."""
    changes = getattr(command.callback, "changes", None)
    return changes if isinstance(changes, DataChanges) else None


def grouped(kind: type, parameter: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that passes the options that a dataclass names as one argument.

    It stands below the options, which are parameters of the command as ever.
    """
    names = [field.name for field in fields(kind)]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def _call(*arguments: Any, **options: Any) -> Any:
            options[parameter] = kind(**{name: options.pop(name) for name in names})
            return function(*arguments, **options)

        return _call

    return decorate


def take_shared(context: click.Context, command: click.Command, words: Sequence[str]) -> list[str]:
    """Move options of the whole command line from the words after a command to ``context``.

    Raises
    ------
    click.UsageError
        If the command has no use for one of them.
    """
    rest: list[str] = []
    remaining = iter(words)
    for word in remaining:
        name, equals, value = word.partition("=")
        if word == "--":
            rest += [word, *remaining]
        elif name == "--project":
            following = value if equals else next(remaining, None)
            if following is None:
                raise click.BadOptionUsage(name, f"Option '{name}' requires an argument.", context)
            context.params["path"] = following
        elif word in _FLAGS:
            parameter = _FLAGS[word]
            context.params[parameter] = context.params.get(parameter, 0) + 1
        else:
            rest.append(word)
    called = _called(context, command, rest)
    accepted = _accepted(called.command)
    for parameter, option in _OPTIONAL.items():
        if parameter not in accepted and context.params.get(parameter) not in (None, False, "."):
            raise click.NoSuchOption(option, ctx=called)
    for flag in ("as_json", "quiet"):
        context.params[flag] = bool(context.params.get(flag))
    return rest


def _accepted(command: click.Command) -> set[str]:
    accepted = shared_options(command.callback)
    if isinstance(command, click.Group) and not accepted:
        return set(_OPTIONAL)  # the group says what is missing
    return accepted


def name_shared(command: click.Command) -> None:
    """End the help of a command, and of those in a group, with the shared options it takes."""
    accepted = _accepted(command)
    options = [f"{o} FOLDER" if p == "path" else o for p, o in _OPTIONAL.items() if p in accepted]
    command.epilog = f"Also: {', '.join([*options, '--quiet, --verbose'])}."
    for child in command.commands.values() if isinstance(command, click.Group) else ():
        name_shared(child)


def _called(context: click.Context, command: click.Command, words: Sequence[str]) -> click.Context:
    """Return a context of the command, or of the one that ``words`` name in it."""
    called = click.Context(command, context, command.name)
    for word in words:
        if not isinstance(called.command, click.Group) or word == "--":
            break
        inner = called.command.get_command(called, word)
        if inner is not None:
            called = click.Context(inner, called, word)
    return called


def command_words(words: Sequence[str]) -> list[str]:
    """Return the command and its arguments: words that are no options.

    >>> command_words(["--project", "shop", "-q", "ingest", "retail"])
    ['ingest', 'retail']
    """
    before = ("", *words)
    return [
        word
        for word, previous in zip(words, before, strict=False)
        if not word.startswith("-") and previous != "--project"
    ]
