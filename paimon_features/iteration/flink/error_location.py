"""Errors of user functions with their location in the message.

In thread mode, Flink returns only the class and the message of an error that is raised in a task,
without traceback and notes.
"""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from paimon_features.core.errors import JobError, PaimonFeaturesError

_RUNTIME = str(Path(__file__).parents[2])
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")})


@contextmanager
def errors_located() -> Iterator[None]:
    """Convert an error inside the block to a JobError whose message has the location.

    >>> with errors_located():
    ...     int("one")
    Traceback (most recent call last):
    paimon_features.core.errors.JobError: ValueError: invalid literal for int() with base 10: ...
    """
    try:
        yield
    except PaimonFeaturesError:
        raise  # their messages are complete
    except Exception as error:
        where = [_place(error), *getattr(error, "__notes__", ())]
        raise JobError(f"{type(error).__name__}: {error} ({'; '.join(where)})") from error


def _place(error: Exception) -> str:
    """Return the innermost line of user code, otherwise the innermost line."""
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [
        frame
        for frame in frames
        if not frame.filename.startswith(_RUNTIME) and not frame.filename.startswith(_INSTALLED)
    ]
    frame = (user_frames or frames)[-1]
    return f"{Path(frame.filename).name}, line {frame.lineno}, in {frame.name}"
