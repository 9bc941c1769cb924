"""Names and versions of models on the command line."""

from __future__ import annotations

import click

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
