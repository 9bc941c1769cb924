"""``--quiet`` and ``--verbose``, which concern every command."""

from __future__ import annotations

import logging

_LEVEL = 0


def set_verbosity(quiet: bool, verbose: int) -> None:
    """Apply the options of this run of the command line."""
    global _LEVEL
    _LEVEL = -1 if quiet else verbose
    if verbose:
        level = logging.INFO if verbose == 1 else logging.DEBUG
        logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        logging.getLogger("paimon_features").setLevel(level)


def quiet() -> bool:
    """Return True if progress and messages are left out; results and errors never are."""
    return _LEVEL < 0


def verbose() -> bool:
    """Return True if errors show their traceback."""
    return _LEVEL > 0
