"""Every error that the project raises on purpose.

::

    PaimonFeaturesError
    ├── DefinitionError (ValueError)          a definition that cannot mean anything
    │   └── ExpressionError                   ... because of one of its expressions
    ├── ConfigurationError (ValueError)       paimon-features.toml, command line, environment
    ├── UnknownNameError (LookupError)        a name that is not defined or not applied
    ├── RequestError (ValueError)             a read that cannot be answered rightly
    ├── TransformError (ValueError)           data that a transformer cannot fit or transform
    ├── SetupError (RuntimeError)             Java, jars, Redis server: what the machine lacks
    ├── MissingExtraError (ImportError)       an optional package that is not installed
    ├── TableError (RuntimeError)             a lake table is not as it has to be
    │   ├── OwnershipError                    another job or process owns the table
    │   ├── GenerationError                   a tile job may not start on this generation
    │   ├── HandoverError                     the snapshot that a stream has to start from is gone
    │   └── SnapshotExpiredError (LookupError) a snapshot that was asked for is gone
    ├── JobError (RuntimeError)               a Flink job failed or cannot be reached
    ├── OnlineStoreError (RuntimeError)       Redis is unreachable, full, or misconfigured
    │   └── StoreNotReadyError                it answers, but holds no complete view yet
    ├── OverloadedError (RuntimeError)        more requests than can be answered in time
    └── VerificationError (AssertionError)    two paths gave different numbers

A message names the thing, what was got, and what it could have been. An error is built
from its message alone, so that it crosses process borders unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable


class PaimonFeaturesError(Exception):
    """Root of all errors of this project."""


class DefinitionError(PaimonFeaturesError, ValueError):
    """A definition that cannot mean anything."""


class ExpressionError(DefinitionError):
    """An expression that does not parse or does not fit the schema."""


class ConfigurationError(PaimonFeaturesError, ValueError):
    """A setting that is missing or wrong."""


class UnknownNameError(PaimonFeaturesError, LookupError):
    """A name that is not defined, or not applied yet."""

    @classmethod
    def of(cls, what: str, name: str, known: Iterable[str]) -> UnknownNameError:
        """Build the message from what was asked for and what there is.

        >>> str(UnknownNameError.of("feature view", "spent", ["spend"]))
        "there is no feature view 'spent'; there is: spend"
        """
        choices = ", ".join(sorted(known)) or "none"
        return cls(f"there is no {what} {name!r}; there is: {choices}")


class RequestError(PaimonFeaturesError, ValueError):
    """A read that cannot be answered rightly, so it is not answered at all."""


class TransformError(PaimonFeaturesError, ValueError):
    """Data that a transformer cannot fit or transform, or one that is not fitted yet."""


class SetupError(PaimonFeaturesError, RuntimeError):
    """The machine lacks something that can be installed."""


class MissingExtraError(PaimonFeaturesError, ImportError):
    """An optional package that is not installed."""

    @classmethod
    def of(cls, package: str, extra: str, needed_for: str) -> MissingExtraError:
        """Build the message with the command that installs the extra.

        >>> str(MissingExtraError.of("redis", "serve", "the Redis store"))
        "the Redis store needs the package 'redis': pip install 'paimon-features[serve]'"
        """
        return cls(
            f"{needed_for} needs the package {package!r}: pip install 'paimon-features[{extra}]'"
        )


class TableError(PaimonFeaturesError, RuntimeError):
    """A table of the lake is not as it has to be."""


class OwnershipError(TableError):
    """Another job or process owns the table, and a table has one committer at a time."""


class GenerationError(TableError):
    """A tile job may not start on this generation as it is."""


class HandoverError(TableError):
    """The events snapshot from which a stream has to go on is no longer there."""


class SnapshotExpiredError(TableError, LookupError):
    """A snapshot that was asked for has been expired."""


class JobError(PaimonFeaturesError, RuntimeError):
    """A Flink job failed, or the cluster that runs it cannot be reached."""


class OnlineStoreError(PaimonFeaturesError, RuntimeError):
    """The online store is unreachable, full, or not configured as it has to be."""


class StoreNotReadyError(OnlineStoreError):
    """The online store answers but does not hold a complete view yet."""


class OverloadedError(PaimonFeaturesError, RuntimeError):
    """More requests than can be answered in time; nothing was read for this one."""


class VerificationError(PaimonFeaturesError, AssertionError):
    """Two paths that have to agree gave different numbers."""
