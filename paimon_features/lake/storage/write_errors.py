"""Writes that the file system refuses: a full disk, a quota, missing rights."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

from paimon_features.core.errors import PaimonFeaturesError, StorageWriteError

_REMEDIES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space, or raise the quota",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f)",
    errno.EROFS: "mount the file system for writing",
    errno.EACCES: "give this user the right to write there",
    errno.EPERM: "give this user the right to write there",
    errno.EIO: "check the disk",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the machine's limit of open files",
}
_OF_RUST = re.compile(r"\(os error (\d{1,4})\)")


@contextmanager
def write_errors(what: str) -> Iterator[None]:
    """Raise StorageWriteError for what the file system refuses inside the block.

    The libraries that write (pypaimon, its native writer, pyarrow) raise errors of many types,
    with the system's error as their cause or in their text. Other errors are left as they are.
    """
    try:
        yield
    except PaimonFeaturesError:
        raise
    except Exception as error:
        number = _error_number(error)
        if number not in _REMEDIES:
            raise
        raise StorageWriteError(
            f"{what}: {os.strerror(number)}; {_REMEDIES[number]}, and repeat the write: nothing "
            "was committed"
        ) from error


def _error_number(error: BaseException) -> int:
    """Return the system's error number of an error or of one of its causes, 0 without one."""
    cause: BaseException | None = error
    for _ in range(10):
        if cause is None:
            return 0
        if isinstance(cause, OSError) and cause.errno is not None:
            return cause.errno
        if (text := _OF_RUST.search(str(cause)[:10_000])) is not None:
            return int(text[1])
        cause = cause.__cause__ or cause.__context__
    return 0
