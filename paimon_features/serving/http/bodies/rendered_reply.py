"""Replies of feature reads: the bytes in the requested format, headers, and counts of statuses."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping

import msgspec
import numpy as np

from paimon_features.core.types.statuses import Status
from paimon_features.definitions import FeatureRef, Selection
from paimon_features.definitions.selection import Codes, all_present
from paimon_features.serving.http.bodies.formats import Format
from paimon_features.serving.http.http_errors import Headers
from paimon_features.serving.reading.direct_read import DirectResponse
from paimon_features.serving.replies.freshness import Freshness
from paimon_features.serving.replies.reply_formats import arrow_stream, feast_json, message_pack
from paimon_features.serving.replies.response import OnlineResponse, ResultBatch

INTERACTIONS = "interactions"
"""The name under which computed features are counted where views are counted."""
Writer = Callable[[OnlineResponse, bool], bytes]
WRITERS: Mapping[Format, Writer] = {
    Format.JSON: feast_json,
    Format.MESSAGE_PACK: message_pack,
    Format.ARROW: arrow_stream,
}
"""For each format a function of the response and of whether feature names are full."""


class RenderedReply(msgspec.Struct, gc=False):
    """The body of a reply, and what is counted for it.

    ``statuses`` are those of the complete batch, and None for all its responses but the first.
    """

    body: bytes
    freshness: Mapping[str, Freshness]
    statuses: dict[str, list[int]] | None


def render(response: OnlineResponse, writer: Writer, full_feature_names: bool) -> RenderedReply:
    """Write a response; statuses are counted once for all responses of a batch."""
    statuses = statuses_once(response)
    return RenderedReply(writer(response, full_feature_names), response.freshness, statuses)


def statuses_once(response: OnlineResponse) -> dict[str, list[int]] | None:
    """Return the number of values of each status, by view, at the first call for a batch.

    Then None.
    """
    if isinstance(response, DirectResponse):
        return response.statuses_once()
    batch = response.batch
    if statuses_once in batch.rendered:
        return None
    batch.rendered[statuses_once] = True
    return _status_counts(batch)


def _status_counts(batch: ResultBatch) -> dict[str, list[int]]:
    """Return the number of values of each status, by view.

    Computed features count as one more view.
    """
    if len(set(map(id, batch.codes))) == 1:
        # most batches: the features of one view share one array of codes
        codes = batch.codes[0]
        feature_counts = [len(codes), *[0] * (len(Status) - 1)]
        if not all_present(codes):
            feature_counts = np.bincount(codes, minlength=len(Status)).tolist()
        views = _views_of(batch.selection)
        return {view: [count * of_view for count in feature_counts] for view, of_view in views}
    # most features of a view share one array of codes
    outputs: dict[tuple[str, int], int] = {}
    arrays: dict[int, Codes] = {}
    for view, codes in zip(_views(batch.selection), batch.codes, strict=True):
        key = view, id(codes)
        outputs[key] = outputs.get(key, 0) + 1
        arrays[id(codes)] = codes
    counts = {
        of: np.bincount(codes, minlength=len(Status)).tolist() for of, codes in arrays.items()
    }
    out: dict[str, list[int]] = {}
    for (view, of), times in outputs.items():
        of_view = out.setdefault(view, [0] * len(Status))
        for status, count in enumerate(counts[of]):
            if count:
                of_view[status] += count * times
    return out


@functools.lru_cache(maxsize=256)
def _views(selection: Selection) -> tuple[str, ...]:
    """Return the view of each output of a selection, or the name under which it is counted."""
    return tuple(
        output.view if isinstance(output, FeatureRef) else INTERACTIONS
        for output in selection.outputs
    )


@functools.lru_cache(maxsize=256)
def _views_of(selection: Selection) -> tuple[tuple[str, int], ...]:
    """Return the views whose values a selection has, and how many outputs of each."""
    return tuple(Counter(_views(selection)).items())


def freshness_headers(freshness: Mapping[str, Freshness]) -> Headers:
    """Return ``X-Applied-Snapshot`` and ``X-Current-Ms``: ``view=number`` for each view."""
    return _headers(tuple((v, f.applied_snapshot, f.current_ms) for v, f in freshness.items()))


@functools.lru_cache(maxsize=1_024)
def _headers(views: tuple[tuple[str, int, int], ...]) -> Headers:
    snapshots = ", ".join(f"{view}={applied}" for view, applied, _ in views)
    current = ", ".join(f"{view}={current_ms}" for view, _, current_ms in views)
    return ((b"x-applied-snapshot", snapshots.encode()), (b"x-current-ms", current.encode()))
