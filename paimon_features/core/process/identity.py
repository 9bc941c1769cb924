"""Who runs this process, for the audit log: a user on a host, and the commit that it works from."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

VARIABLE = "PAIMON_FEATURES_IDENTITY"
"""The environment variable with the name of a person or pipeline, in place of the user's."""
_LONGEST = 200
_GIT_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Identity:
    """``user`` is the configured name or that of the operating system. ``commit`` is the checked
    out commit of the project's repository, None without one; ``modified`` whether the definitions
    file differs from it."""

    user: str
    host: str
    commit: str | None = None
    modified: bool = False


def identity_of(definitions: Path) -> Identity:
    """Return the identity of this process, and the commit of the repository of a definitions
    file."""
    user = os.environ.get(VARIABLE, "").strip() or _user()
    commit, modified = _commit(definitions)
    return Identity(_plain(user), _plain(socket.gethostname()), commit, modified)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user may have no name
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"


def _plain(text: str) -> str:
    return "".join(c for c in text if c.isprintable())[:_LONGEST]


def _commit(definitions: Path) -> tuple[str | None, bool]:
    """Return the commit, and whether the file differs from it; None without git or a repository."""
    git = shutil.which("git")
    if git is None or not definitions.parent.is_dir():
        return None, False
    head = _git(git, definitions.parent, "rev-parse", "--verify", "HEAD")
    if head is None or head.returncode != 0:
        return None, False
    # an untracked file has no difference from a commit, and is not in it
    name = definitions.name
    listed = _git(git, definitions.parent, "ls-files", "--error-unmatch", "--", name)
    differs = _git(
        git, definitions.parent, "diff", "--quiet", "--no-ext-diff", "--no-textconv", "HEAD",
        "--", name,
    )  # fmt: skip
    same = all(done is not None and done.returncode == 0 for done in (listed, differs))
    return head.stdout.decode("ascii", "replace").strip()[:64], not same


def _git(git: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[bytes] | None:
    try:
        return subprocess.run(
            [git, "--no-optional-locks", "-C", str(folder), "-c", "core.fsmonitor=false",
             *arguments],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_GIT_TIMEOUT_S,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None
