"""Names and versions of models on the command line."""

from __future__ import annotations

import re

import click

from paimon_features.core.errors import ConfigurationError

_NAMED_VERSION = re.compile(r"([a-z][a-z0-9_]*)(?:@([1-9][0-9]{0,8}))?")
NAME = click.argument("name")
VERSION = click.argument("version", type=click.IntRange(min=1), required=False)


class VersionsCommand(click.Command):
    """A command that takes churn@3, as versions are written elsewhere, for churn 3."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words: list[str] = []
        for word in args:
            name, at, version = word.partition("@")
            if at and version.isdigit() and not name.startswith("-"):
                # of two versions the name stands once: 'diff churn@1 churn@3'
                words += [version] if name in words else [name, version]
            else:
                words.append(word)
        return super().parse_args(ctx, words)


def named_version(text: str) -> tuple[str, int | None]:
    """Return the name and the version of ``NAME@VERSION``; None without a version.

    >>> named_version("churn@3"), named_version("churn")
    (('churn', 3), ('churn', None))

    Raises
    ------
    ConfigurationError
        For any other text.
    """
    match = _NAMED_VERSION.fullmatch(text)
    if match is None:
        raise ConfigurationError(f"{text[:80]!r}: expected NAME@VERSION, such as churn@3")
    return match[1], None if match[2] is None else int(match[2])
