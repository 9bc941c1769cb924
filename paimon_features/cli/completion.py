"""``completion``: commands, options and names in the shell."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from paimon_features.core.errors import ConfigurationError

_VARIABLE = "_PAIMON_FEATURES_COMPLETE"
_FILES = {
    "bash": "~/.bashrc",
    "zsh": "~/.zshrc",
    "fish": "~/.config/fish/completions/paimon-features.fish",
}
_LINE = {
    "bash": 'eval "$(_PAIMON_FEATURES_COMPLETE=bash_source paimon-features)"',
    "zsh": 'eval "$(_PAIMON_FEATURES_COMPLETE=zsh_source paimon-features)"',
    "fish": "_PAIMON_FEATURES_COMPLETE=fish_source paimon-features | source",
}


@click.command()
@click.argument("shell", type=click.Choice(sorted(_FILES)), required=False)
@click.option("--install", is_flag=True, help="Add it to the shell's start file, once.")
def completion(shell: str | None, install: bool) -> None:
    """Print what makes SHELL complete commands, options and the names of definitions on Tab.

    SHELL is by default that of $SHELL. Names come from the text of the project's definitions
    file; nothing is run for them.

    \b
    paimon-features completion --install          # for new terminals
    paimon-features completion zsh > _paimon-features
    """
    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in _FILES:
        raise ConfigurationError(
            f"the shell {name!r} is not known; expected 'completion' with {', '.join(_FILES)}"
        )
    if install:
        path = Path(_FILES[name]).expanduser()
        text = path.read_text("utf-8") if path.is_file() else ""
        if _LINE[name] in text:
            click.echo(f"{path} has it already")
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"\n# paimon-features completes names on Tab\n{_LINE[name]}\n")
        click.echo(f"added to {path}; open a new terminal, or run: {_LINE[name]}")
        return
    maker = get_completion_class(name)
    assert maker is not None
    from paimon_features.cli import cli

    click.echo(maker(cli, {}, "paimon-features", _VARIABLE).source())
