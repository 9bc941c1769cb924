"""Texts as numbers: which text has which code, the same for all batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.errors import ConfigurationError, RequestError


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A text's code is its place in ``words``, int32.

    Attributes
    ----------
    words
        All texts, without duplicates.
    unknown
        Code of a text that is not among them; None: that is an error.

    Examples
    --------
    >>> cities = Vocabulary.of(["Oslo", "Rome"], unknown=-1)
    >>> cities.encode(pa.array(["Rome", None, "Paris"])).to_pylist()
    [1, None, -1]
    >>> len(cities), cities.words.to_pylist()
    (2, ['Oslo', 'Rome'])
    >>> Vocabulary.of(["Oslo"]).encode(pa.array(["Paris"]))
    Traceback (most recent call last):
    ...
    paimon_features.core.errors.RequestError: 'Paris' is not among the 1 words ...
    """

    words: pa.StringArray
    unknown: int | None = None

    @classmethod
    def of(cls, words: Sequence[str], unknown: int | None = None) -> Vocabulary:
        """Return a declared vocabulary.

        Raises
        ------
        ConfigurationError
            For words that are not texts, or occur twice.
        """
        try:
            array = pa.array(words, pa.string())
        except (pa.ArrowException, TypeError) as error:
            raise ConfigurationError(f"a vocabulary of {words!r}: expected texts") from error
        if array.null_count or len(pc.unique(array)) != len(array):
            raise ConfigurationError(
                "a vocabulary with a null or a duplicate word; "
                "a word's code is its place, so each has to occur once"
            )
        return cls(array, unknown)

    @classmethod
    def collected(cls, columns: Iterable[pa.ChunkedArray]) -> Vocabulary:
        """Return all texts in some columns, or in lists within them, in the order of their UTF-8
        bytes."""
        texts = pa.array([], pa.string())
        for column in columns:
            for chunk in column.chunks:
                while pa.types.is_nested(chunk.type):
                    chunk = chunk.flatten()
                words = pc.unique(chunk).drop_null()
                if pa.types.is_dictionary(words.type):
                    words = words.dictionary_decode()
                texts = pc.unique(pa.concat_arrays([texts, words.cast(pa.string())]))
        return cls(texts.take(pc.sort_indices(texts)))

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, texts: pa.Array) -> pa.Int32Array:
        """Return the codes of texts; nulls stay nulls.

        Raises
        ------
        RequestError
            For a text that is not among the words, if ``unknown`` is None.
        """
        codes = pc.index_in(texts, value_set=self.words, skip_nulls=True)
        if codes.null_count == texts.null_count:
            return codes
        missing = pc.and_(pc.is_valid(texts), pc.is_null(codes))
        if self.unknown is None:
            text = texts.filter(missing)[0].as_py()
            raise RequestError(
                f"{text!r} is not among the {len(self)} words of the vocabulary; add it, or "
                "declare a code for the rest: Vocabulary.of(words, unknown=<code>)"
            )
        return pc.if_else(missing, pa.scalar(self.unknown, pa.int32()), codes)
