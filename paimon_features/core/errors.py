"""All errors that the project raises deliberately.

::

    PaimonFeaturesError
    ├── DefinitionError (ValueError)          an invalid definition
    │   └── ExpressionError                   ... because of one of its expressions
    ├── ConfigurationError (ValueError)       paimon-features.toml, command line, environment
    ├── UnknownNameError (LookupError)        a name that is not defined or not applied
    ├── RequestError (ValueError)             a request that cannot be answered correctly
    ├── TransformError (ValueError)           data that a transformer cannot fit or transform
    │   ├── DataTypeError (TypeError)         ... because of their type
    │   ├── MissingMethodError (AttributeError) a method that its parameters exclude
    │   └── NotFittedError (AttributeError)   a transformer that is not fitted
    ├── ModelError (ValueError)               a model version that is damaged, or must not be loaded
    ├── SetupError (RuntimeError)             Java, jars, Redis server: missing on the machine
    ├── MissingExtraError (ImportError)       an optional package that is not installed
    ├── TableError (RuntimeError)             a lake table is not in the expected state
    │   ├── OwnershipError                    another job or process owns the table
    │   │   └── LeaseLostError                ... and took it over from this one
    │   ├── GenerationError                   a tile job may not start on this generation
    │   │   └── UnfilledError                 ... and nothing may read it: it was never filled
    │   ├── RecordLostError                   a record next to the tables is missing
    │   ├── DamagedFileError                  a file of the warehouse is not what was written
    │   ├── DamagedValueError                 a stored text or sketch cannot be decoded
    │   ├── StorageWriteError                 the file system refused a write: it is full, say
    │   ├── StoreUnreachableError (OSError)   the object store does not reply, or only with errors
    │   ├── PlanMovedError                    a reviewed plan is not what would be applied now
    │   ├── HandoverError                     the snapshot at which a stream must start is gone
    │   └── SnapshotExpiredError (LookupError) a requested snapshot is gone
    ├── JobError (RuntimeError)               a Flink job failed or cannot be reached
    ├── OnlineStoreError (RuntimeError)       Redis is unreachable, full, or misconfigured
    │   └── StoreNotReadyError                it responds, but contains no complete view yet
    ├── PublishError (RuntimeError)           messages of features could not be written
    ├── OverloadedError (RuntimeError)        more requests than can be answered in time
    └── VerificationError (AssertionError)    two paths returned different numbers

    SkippedEventsWarning (UserWarning)        events that are in no feature of a view

A message names the object, what was found, and what was expected. An error is constructed
from its message alone, so that it crosses process boundaries unchanged.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from paimon_features.core.suggestions import did_you_mean

SHOWN = 80
"""Characters of a client's text that a message repeats."""


_MOST_NAMES = 30
"""Known names that a message lists."""


def shortened(text: str, most: int = SHOWN) -> str:
    """Return the beginning of a text that may be of any length.

    >>> shortened("a" * 90, 3), shortened("abc", 3)
    ('aaa...', 'abc')
    """
    return text if len(text) <= most else f"{text[:most]}..."


def first_names(names: Sequence[str]) -> str:
    """Return the first thirty, and how many more there are.

    >>> first_names(["a", "b"]), first_names(["x"] * 31)[-15:]
    ('a, b', 'x, x and 1 more')
    """
    more = f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def unknown_name(kind: str, name: str, available: Iterable[str], owner: str = "") -> str:
    """Return the message about a name of this kind that does not exist (in ``owner``).

    >>> unknown_name("feature view", "spent", ["clicks", "spend"])
    "unknown feature view 'spent'; available: clicks, spend; did you mean 'spend'?"
    >>> unknown_name("column", "b", ["a"], "table 't'")
    "unknown column 'b' of table 't'; available: a"

    A name may come from a client: of a long one the message has the beginning, and of many
    available ones the first thirty.
    """
    names = sorted(available)
    choices, meant = first_names(names) or "none", did_you_mean(name, names)
    of_owner = f" of {owner}" if owner else ""
    return f"unknown {kind} {shortened(name)!r}{of_owner}; available: {choices}{meant}"


class PaimonFeaturesError(Exception):
    """Root of all errors of this project."""


class DefinitionError(PaimonFeaturesError, ValueError):
    """An invalid definition.

    ``concerns`` is the kind and name of the definition that is wrong, where that is found only when
    all definitions are known.
    """

    concerns: tuple[str, str] | None = None


class ExpressionError(DefinitionError):
    """An expression that does not parse or does not fit the schema."""


class ConfigurationError(PaimonFeaturesError, ValueError):
    """A setting that is missing or wrong."""


class UnknownNameError(PaimonFeaturesError, LookupError):
    """A name that is not defined, or not applied yet."""

    @classmethod
    def of(
        cls, kind: str, name: str, available: Iterable[str], owner: str = ""
    ) -> UnknownNameError:
        """Build the error from the name and the available ones, see ``unknown_name``."""
        return cls(unknown_name(kind, name, available, owner))


class RequestError(PaimonFeaturesError, ValueError):
    """A request that cannot be answered correctly, so it is not answered at all."""


class TransformError(PaimonFeaturesError, ValueError):
    """Data that a transformer cannot fit or transform, or one that is not fitted yet."""


class DataTypeError(TransformError, TypeError):
    """Data of a type that a transformer cannot fit or transform."""


class MissingMethodError(TransformError, AttributeError):
    """A method that a transformer does not have with its parameters."""


class NotFittedError(TransformError, AttributeError):
    """A transformer that is used before it is fitted; also scikit-learn's, where it is imported."""


class ModelError(PaimonFeaturesError, ValueError):
    """A model version that is damaged, of another form, or must not be loaded or served."""


class SetupError(PaimonFeaturesError, RuntimeError):
    """The machine lacks something that can be installed."""


class MissingExtraError(PaimonFeaturesError, ImportError):
    """An optional package that is not installed."""

    @classmethod
    def of(
        cls,
        package: str,
        extra: str,
        needed_for: str,
        *,
        newest_python: tuple[int, int] | None = None,
    ) -> MissingExtraError:
        """Build the message with the command that installs the extra.

        >>> str(MissingExtraError.of("redis", "serve", "the Redis store"))
        "the Redis store needs the package 'redis': pip install 'paimon-features[serve]'"

        A package without a release for this Python is not installed by its extra:

        >>> str(MissingExtraError.of("later", "later", "this", newest_python=(3, 1)))
        "this needs the package 'later', which has no release for Python ... install
        'paimon-features[later]' on Python 3.1"
        """
        newest = newest_python or _NEWEST_PYTHON.get(package)
        if newest is not None and sys.version_info[:2] > newest:
            have, most = (".".join(map(str, of[:2])) for of in (sys.version_info, newest))
            return cls(
                f"{needed_for} needs the package {package!r}, which has no release for Python "
                f"{have}: install 'paimon-features[{extra}]' on Python {most}"
            )
        return cls(
            f"{needed_for} needs the package {package!r}: pip install 'paimon-features[{extra}]'"
        )


_NEWEST_PYTHON = {
    "apache-flink": (3, 12),
    "pyflink": (3, 12),
    "pypaimon": (3, 13),
    "pypaimon_rust": (3, 13),
    "tensorflow": (3, 13),
}
"""The newest Python of packages whose extras have an environment marker for it."""


class TableError(PaimonFeaturesError, RuntimeError):
    """A table of the lake is not in the expected state."""


class OwnershipError(TableError):
    """Another job or process owns the table; a table has one committer at a time."""


class LeaseLostError(OwnershipError):
    """The lease was taken over or released by force; its former owner commits nothing more."""


class GenerationError(TableError):
    """A tile job may not start on this generation in its current state."""


class UnfilledError(GenerationError):
    """The tiles of a generation were not computed yet: absent tiles are no empty windows."""


class RecordLostError(TableError):
    """A record of the side folder was written before, and does not exist any more."""


class DamagedFileError(TableError):
    """A file of the warehouse is not what was written: flipped bits, cut off, or replaced."""


class DamagedValueError(TableError):
    """A stored text or sketch of a partial cannot be decoded."""


class StorageWriteError(TableError):
    """The file system refused a write (full disk, quota, rights). Nothing was committed."""


class StoreUnreachableError(TableError, OSError):
    """The object store of a warehouse does not reply, or only with errors that may pass."""


class PlanMovedError(TableError):
    """A reviewed plan is not what would be applied now: definitions or tables are others."""


class HandoverError(TableError):
    """The events snapshot at which a stream has to resume no longer exists."""


class SnapshotExpiredError(TableError, LookupError):
    """A requested snapshot has been expired."""


class JobError(PaimonFeaturesError, RuntimeError):
    """A Flink job failed, or the cluster that runs it cannot be reached."""


class OnlineStoreError(PaimonFeaturesError, RuntimeError):
    """The online store is unreachable, full, or misconfigured."""


class StoreNotReadyError(OnlineStoreError):
    """The online store responds but does not contain a complete view yet."""


class PublishError(PaimonFeaturesError, RuntimeError):
    """Fresh features could not be published; the message says where, and what to do."""


class OverloadedError(PaimonFeaturesError, RuntimeError):
    """More requests than can be answered in time; nothing was read for this one."""


class VerificationError(PaimonFeaturesError, AssertionError):
    """Two paths that must agree returned different numbers."""


class SkippedEventsWarning(UserWarning):
    """Events are in no feature of a view, because one of their values is not valid."""
