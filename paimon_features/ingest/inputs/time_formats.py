"""The formats of texts that are times, chosen by all different texts of a sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.types.schema import Timestamp
from paimon_features.ingest.cells.text_values import text_values
from paimon_features.ingest.inputs.different_texts import MOST_WRONG, DifferentTexts
from paimon_features.ingest.inputs.time_texts import TimeTexts

_DATES = (
    "%Y-%m-%d", "%d.%m.%Y", "%d.%m.%y", "%d/%m/%Y", "%m/%d/%Y", "%d/%m/%y", "%m/%d/%y",
    "%Y/%m/%d", "%Y.%m.%d", "%d-%m-%Y", "%m-%d-%Y", "%Y%m%d", "%d %b %Y", "%d %B %Y",
    "%b %d, %Y", "%B %d, %Y", "%d-%b-%Y", "%d-%b-%y", "%a, %d %b %Y", "%a %b %d %Y",
)  # fmt: skip
_CLOCKS = (
    "", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %H:%M:%S,%f", "T%H:%M", "T%H:%M:%S",
    "T%H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p", ", %H:%M", ", %H:%M:%S",
)  # fmt: skip
_DATE_LIKE = (
    r"^[0-9]{1,4}[-./ ][A-Za-z0-9]{1,9}[-./ ,]+[0-9]{2,4}|^[A-Za-z]{3,9},? |^[0-9]{8}([0-9]{4,6})?$"
)
"""What every text of a format below looks like: trying them all takes a while."""
_ZONES = ("", "%z", " %z")
_DAY = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[Zz]?$"
_ZONED = r"[Zz]$|[0-9][ ]?[+-][0-9]{2}:?[0-9]{0,2}$"
_SPREAD, _LOOKED_AT = 40, 300


@dataclass(frozen=True, slots=True)
class Rfc3339Times:
    """Texts that ``ingest`` reads as times: ``broken`` of them are none."""

    only_days: bool
    has_naive: bool
    broken: int


def rfc3339_times(values: DifferentTexts) -> Rfc3339Times | None:
    """Return what is common to texts of which all but a few are times to ``ingest``.

    None for others.
    """
    like = values.match("^[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[ TtZz]|$)")
    if not values.are_mostly(like):
        return None
    converted = text_values(values.bare, Timestamp)
    good = np.asarray(converted.values.is_valid()) & np.asarray(like)
    if not values.are_mostly(good):
        return None
    valid = DifferentTexts(values.bare.filter(pa.array(good)), values.counts[good])
    zoned = pc.and_(valid.match(_ZONED), pc.greater(pc.utf8_length(valid.bare), 11))
    return Rfc3339Times(
        valid.are_all(_DAY), not pc.all(zoned).as_py(), len(values.bare) - len(valid.bare)
    )


def find_formats(values: DifferentTexts, parser: TimeTexts, given: Sequence[str] = ()) -> list[str]:
    """Return the formats of which all but a few rows are, the likeliest first.

    The fewest broken rows; of day and month, the order in which the rows ascend, then the day.
    """
    if not values.are_mostly(values.match(_DATE_LIKE)) and not given:
        return []
    tried: list[str] = list(given)
    if not tried:
        tried = [f"{d}{c}{z}" for d in _DATES for c in _CLOCKS for z in (_ZONES if c else ("",))]
        tried += ["%Y%m%d%H%M%S", "%Y%m%d%H%M", "%d/%b/%Y:%H:%M:%S %z"]
    # few texts of all rows leave few formats, and all texts decide between these
    tried = parser.matching(_spread(values.bare, _SPREAD), tried)
    some = _spread(values.bare, _LOOKED_AT)
    tried = [f for f in tried if parser.parse(some, f).null_count <= len(some) // 2]
    ranked = []
    for form in tried:
        parsed = parser.parse(values.bare, form)
        broken = values.share(parsed.is_null())
        if broken <= MOST_WRONG:
            disorder = _disorder(parsed) if len(some) > 3 else 0
            ranked.append((broken, disorder, len(form), form))
    ranked.sort(key=lambda item: item[:2])
    return [item[-1] for item in ranked]


def _spread(texts: pa.Array, count: int) -> pa.Array:
    """Return texts from all parts of the sample."""
    if len(texts) <= count:
        return texts
    places = np.linspace(0, len(texts) - 1, count).astype(np.int64)
    return texts.take(pa.array(np.unique(places)))


def _disorder(times: pa.Array) -> int:
    plain = times.drop_null().cast(pa.int64()).to_numpy(zero_copy_only=False)
    return int((np.diff(plain) < 0).sum())
