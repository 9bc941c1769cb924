"""``--show-completion`` and ``--install-completion``: names of all kinds in the shell.

Names of definitions come from the text of the definitions file; nothing is run for them.
"""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from paimon_features.core.errors import unknown_name

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


def complete(command: click.Command, shell: str, *, install: bool) -> None:
    """Print what makes a shell complete on Tab, or add it to the shell's start file, once.

    ``shell`` is by default that of $SHELL; UsageError for another one than those that click knows.
    """
    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in _FILES:
        raise click.UsageError(unknown_name("shell", name, _FILES))
    if not install:
        maker = get_completion_class(name)
        assert maker is not None
        click.echo(maker(command, {}, "paimon-features", _VARIABLE).source())
        return
    path = Path(_FILES[name]).expanduser()
    text = path.read_text("utf-8") if path.is_file() else ""
    if _LINE[name] in text:
        click.echo(f"{path} has it already")
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(f"\n# paimon-features completes names on Tab\n{_LINE[name]}\n")
    click.echo(f"added to {path}; open a new terminal, or run: {_LINE[name]}")
