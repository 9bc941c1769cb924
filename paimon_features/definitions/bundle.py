"""A bundle: definitions, generations and fitted transformers of a project in one document.

A host that only serves reads it instead of the definitions file, so that it runs no code of the
project. It is JSON: a first line with format, size and digest, and the content::

    {"paimon_features_bundle":1,"digest":"9f3c...","bytes":5211}
    {"project":"shop","published_at_ms":...,"generations":{...},"definitions":[...],"fitted":[...]}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paimon_features.core.documents.published_document import DocumentKind
from paimon_features.core.documents.unambiguous_json import parse_unambiguous_json
from paimon_features.core.errors import DefinitionError, TransformError
from paimon_features.definitions.collection import Definitions
from paimon_features.definitions.documents import from_documents, to_documents
from paimon_features.definitions.transformed import Fitted
from paimon_features.transformers.fitted_version import FittedVersion

FORMAT = 1
"""The format that is written; a later one is refused, and each of the earlier ones is read."""
MAX_BYTES = 16 << 20
"""The size of the largest bundle, most of which are categories of encoders."""
_AGAIN = "'paimon-features apply --bundle'"
KIND = DocumentKind("paimon_features_bundle", "bundle", FORMAT, MAX_BYTES, _AGAIN, DefinitionError)
digest_of = KIND.digest_of


@dataclass(frozen=True)
class Bundle:
    """What a project publishes for its serving hosts.

    ``generations`` is the active generation of each applied view, by name: for people, as the
    online store itself names the generation that it contains.
    """

    project: str
    definitions: Definitions
    published_at_ms: int
    generations: Mapping[str, int] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """Return the bundle's bytes, equal for equal content.

        Raises
        ------
        DefinitionError
            For definitions with code of the project (an aggregate of one's own), that do not read
            back as they are, or more than ``MAX_BYTES``.
        """
        transformed = self.definitions.transformed.values()
        versions = [self.definitions.transformation(feature).fitted for feature in transformed]
        content = {
            "project": self.project,
            "published_at_ms": self.published_at_ms,
            "generations": dict(self.generations),
            "definitions": to_documents(self.definitions),
            "fitted": [v.to_document() for v in {str(v): v for v in versions}.values()],
        }
        try:
            data = KIND.to_bytes(content)
        except DefinitionError as error:
            raise DefinitionError(f"{error}: serve these definitions from their file") from error
        _check_equal(self.definitions, Bundle.from_bytes(data).definitions)
        return data

    @classmethod
    def from_bytes(cls, data: bytes, where: str = "the bundle") -> Bundle:
        """Read a bundle.

        Raises
        ------
        DefinitionError
            For bytes that are none, damaged, too many, or of a later format; the message says
            what to do.
        """
        body = KIND.body_of(data, where)
        try:
            content = parse_unambiguous_json(body)
            fitted = {}
            for document in content["fitted"]:
                version = FittedVersion.from_document(document)
                fitted[Fitted(version.name, version.version)] = version
            definitions = Definitions.of(from_documents(content["definitions"]), versions=fitted)
            generations = {str(view): int(n) for view, n in content["generations"].items()}
            return cls(
                str(content["project"]), definitions, int(content["published_at_ms"]), generations
            )
        except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
            if isinstance(error, DefinitionError | TransformError):
                raise DefinitionError(f"{where}: {error}; publish it again: {_AGAIN}") from error
            raise DefinitionError(
                f"{where} is damaged ({type(error).__name__}: {str(error)[:200]}); publish it "
                f"again: {_AGAIN}"
            ) from error


def _check_equal(written: Definitions, read: Definitions) -> None:
    """Raise DefinitionError unless the definitions read back as they are."""
    for kind, items in written.by_kind().items():
        if kind == "derived_view":
            continue
        for name, item in items.items():
            other = read.by_kind()[kind].get(name)
            if other is None or other.to_document() != item.to_document():
                raise DefinitionError(
                    f"{kind.replace('_', ' ')} {name!r} does not read back from a bundle as it is; "
                    "serve these definitions from their file"
                )
