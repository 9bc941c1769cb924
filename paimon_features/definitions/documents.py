"""Definitions as plain data and back: what a serving host reads instead of a definitions file.

Each object is ``{"is": "<class>", ...}`` with the arguments of its class, which is one of a fixed
list and checks them as ever. Nothing else is constructed, no name is imported, and no text is run
but expressions, which have a parser of their own.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from paimon_features.core.errors import DefinitionError, unknown_name
from paimon_features.core.types.schema import DataType, type_from_text
from paimon_features.definitions import aggregates
from paimon_features.definitions.aggregates import Aggregate
from paimon_features.definitions.collection import Definitions
from paimon_features.definitions.entity import Entity
from paimon_features.definitions.feature_view import FeatureView
from paimon_features.definitions.interaction import Interaction
from paimon_features.definitions.request import RequestSource
from paimon_features.definitions.service import FeatureService
from paimon_features.definitions.source import EventSource, FeedbackSource
from paimon_features.definitions.table_view import TableSource, TableView
from paimon_features.definitions.transformed import Fitted, Transformed

Document = Mapping[str, Any]

_PARTS = (
    Entity, EventSource, FeedbackSource, TableSource, RequestSource, Interaction, Fitted,
    Transformed, FeatureView, TableView, FeatureService,
)  # fmt: skip
_MAX_DEPTH = 40


@cache
def _classes() -> Mapping[str, type]:
    classes: dict[str, type] = {kind.__name__: kind for kind in _PARTS}
    for name in aggregates.__all__:
        kind = getattr(aggregates, name)
        if inspect.isclass(kind) and issubclass(kind, Aggregate) and kind is not Aggregate:
            classes[name] = kind
    return classes


@cache
def _arguments(name: str) -> tuple[str, ...]:
    return tuple(inspect.signature(_classes()[name]).parameters)


def to_documents(definitions: Definitions) -> list[Document]:
    """Return what online reads need of some definitions, in the order in which it is read back.

    Derived views are left out: they are read from the lake only.

    Raises
    ------
    DefinitionError
        For an object of a class that is not of this package, such as an aggregate of one's own.
    """
    kinds = definitions.by_kind()
    writer = _DocumentWriter()
    for kind in ("entity", "source", "request_source", "interaction", "feature_view", "table_view"):
        for item in kinds[kind].values():
            writer.add(item)
    for transformed in definitions.transformed.values():
        writer.add(transformed)
    for service in definitions.services.values():
        writer.add(service)
    return writer.documents


def from_documents(documents: Sequence[Any]) -> list[object]:
    """Return the objects that ``to_documents`` wrote, for ``Definitions.of``.

    Raises
    ------
    DefinitionError
        For a document that is none, names another class, or has arguments that its class rejects.
    """
    reader = _DocumentReader()
    for number, document in enumerate(documents):
        try:
            reader.read(document)
        except DefinitionError as error:
            error.add_note(f"in definition {number} of the bundle")
            raise
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise DefinitionError(
                f"definition {number} of the bundle: {type(error).__name__}: {error}"
            ) from error
    return reader.objects


class _DocumentWriter:
    def __init__(self) -> None:
        self.documents: list[Document] = []
        self._numbers: dict[int, int] = {}

    def add(self, item: object) -> int:
        """Return the number of an object that several others refer to."""
        number = self._numbers.get(id(item))
        if number is None:
            document = self._object(item)
            number = self._numbers[id(item)] = len(self.documents)
            self.documents.append(document)
        return number

    def _object(self, item: object) -> Document:
        kind, name = type(item), type(item).__name__
        if _classes().get(name) is not kind:
            raise DefinitionError(
                f"{kind.__module__}.{name} is not a class of paimon-features: a bundle "
                "contains data and no code. Serve these definitions from their file"
            )
        fields = {argument: self._value(getattr(item, argument)) for argument in _arguments(name)}
        return {"is": name, **fields}

    def _value(self, value: Any) -> Any:
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, DataType):
            return {"type": value.text}
        if isinstance(value, np.ndarray | np.generic):
            return self._value(value.tolist())
        if isinstance(value, Mapping):
            return {"map": [[self._value(key), self._value(item)] for key, item in value.items()]}
        if isinstance(value, list | tuple | set | frozenset):
            return [self._value(item) for item in value]
        if isinstance(value, Aggregate | Fitted):
            return self._object(value)
        return {"ref": self.add(value)}


class _DocumentReader:
    def __init__(self) -> None:
        self.objects: list[object] = []

    def read(self, document: Any) -> None:
        """Read the next object; it may refer to those before it."""
        self.objects.append(self._object(document, 0))

    def _object(self, document: Any, depth: int) -> object:
        if not isinstance(document, dict):
            raise DefinitionError(f"{str(document)[:80]!r} is not a definition")
        kind: Any = _classes().get(str(document.get("is")))
        if kind is None:
            raise DefinitionError(
                f"unknown kind of definition {str(document.get('is'))[:80]!r}: this version of "
                "paimon-features does not have it"
            )
        unknown = sorted(document.keys() - {"is", *_arguments(document["is"])})
        if unknown:
            message = unknown_name("argument", unknown[0], _arguments(document["is"]))
            raise DefinitionError(f"{document['is']}: {message}")
        fields = {name: self._value(v, depth) for name, v in document.items() if name != "is"}
        return kind(**fields)

    def _value(self, value: Any, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise DefinitionError(f"it is nested more than {_MAX_DEPTH} levels deep")
        if isinstance(value, list):
            return tuple(self._value(item, depth + 1) for item in value)
        if not isinstance(value, dict):
            return value
        if value.keys() == {"type"}:
            return type_from_text(str(value["type"]))
        if value.keys() == {"ref"}:
            number = value["ref"]
            if type(number) is not int or not 0 <= number < len(self.objects):
                raise DefinitionError(f"it refers to definition {number!r}, which is not before it")
            return self.objects[number]
        if value.keys() == {"map"}:
            pairs: Iterable[Any] = value["map"]
            return {
                self._value(key, depth + 1): self._value(item, depth + 1) for key, item in pairs
            }
        return self._object(value, depth + 1)
