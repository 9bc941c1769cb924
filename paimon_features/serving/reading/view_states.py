"""The views that a fetcher serves, and their last known state in the store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from paimon_features.core.errors import OnlineStoreError, PaimonFeaturesError, StoreNotReadyError
from paimon_features.core.types.schema import DataType
from paimon_features.definitions import CompiledView
from paimon_features.online.store.codec import RecordLayout
from paimon_features.online.store.keys import BucketKeys, ViewKeys
from paimon_features.online.store.markers import EpochContent, Marker, ViewState
from paimon_features.serving.reading.entities import Buckets


@dataclass(frozen=True, slots=True, eq=False)
class ViewVariant:
    """One definition of a view, with the layout of its records.

    ``kind`` numbers its entity keys: views of equal keys have the same number.
    """

    view: CompiledView
    layout: RecordLayout
    kind: int


def variants_of(views: Iterable[CompiledView]) -> dict[str, list[ViewVariant]]:
    """Return the definitions of each view, by name."""
    variants: dict[str, list[ViewVariant]] = {}
    kinds: dict[tuple[tuple[str, DataType], ...], int] = {}
    for view in views:
        kind = kinds.setdefault(tuple(view.keys.items()), len(kinds))
        variants.setdefault(view.name, []).append(ViewVariant(view, RecordLayout(view), kind))
    return variants


class Epoch:
    """An epoch of a view: the keys of its records, and the markers read last."""

    def __init__(
        self, keys: ViewKeys, name: str, content: EpochContent, variant: ViewVariant
    ) -> None:
        self.name = name
        self.content = content
        self.layout = variant.layout
        self.buckets = Buckets(list(variant.view.keys.values()), content.buckets)
        self._keys = keys
        self._bucket_keys: dict[int, BucketKeys] = {}
        self._markers: dict[int, tuple[bytes, Marker]] = {}

    def is_named(self, name: str, content: EpochContent) -> bool:
        """Return True if it is the epoch of this name and content."""
        return self.name == name and self.content == content

    def keys(self, bucket: int) -> BucketKeys:
        """Return the keys of a bucket."""
        keys = self._bucket_keys.get(bucket)
        if keys is None:
            keys = self._bucket_keys[bucket] = self._keys.bucket(self.name, bucket)
        return keys

    @cached_property
    def all_keys(self) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        """The record keys' beginning and the marker's key of each bucket; shared by all reads."""
        of_buckets = [self.keys(bucket) for bucket in range(self.buckets.count)]
        return (
            tuple(keys.record_stem for keys in of_buckets),
            tuple(keys.marker for keys in of_buckets),
        )

    def marker(self, bucket: int, raw: bytes) -> Marker:
        """Decode a marker; mostly the bytes are the same as before, and nothing is decoded."""
        cached = self._markers.get(bucket)
        if cached is None or cached[0] != raw:
            cached = self._markers[bucket] = (raw, Marker.from_bytes(raw))
        return cached[1]


@dataclass(frozen=True, slots=True, eq=False)
class ObservedState:
    """The state of a view in the store, as it was read: an epoch, or why none can be read."""

    raw: bytes | None
    fingerprint: str | None = None
    epoch: Epoch | None = None
    error: PaimonFeaturesError | None = None

    def is_as(self, other: ObservedState) -> bool:
        """Return True if both have the same epoch, or both none."""
        if self.epoch is other.epoch:
            return True
        if self.epoch is None or other.epoch is None:
            return False
        return self.epoch.is_named(other.epoch.name, other.epoch.content)


@dataclass(eq=False)
class ServedView:
    """A view, in one definition or in several at the same time.

    The definition in use is the one by which the store's records were computed.
    """

    project: str
    name: str
    variants: Sequence[ViewVariant]
    key_prefix: str
    keys: ViewKeys = field(init=False)
    last: ObservedState | None = field(init=False, default=None)
    """The state read last, assumed to be still current at the next read. Several threads replace
    it atomically."""

    def __post_init__(self) -> None:
        self.keys = ViewKeys(self.project, self.name, self.key_prefix)

    def see(self, raw: bytes | None) -> ObservedState:
        """Decode and remember the view's state."""
        last = self.last
        if last is None or last.raw != raw:
            last = self.last = self._read(raw)
        return last

    def _read(self, raw: bytes | None) -> ObservedState:
        try:
            state = ViewState() if raw is None else ViewState.from_bytes(raw)
        except OnlineStoreError as error:
            return ObservedState(raw, error=error)
        if state.epoch is None or state.content is None:
            nothing = StoreNotReadyError(
                f"feature view {self.name!r} is not in the online store yet; "
                f"run 'paimon-features materialize {self.name}' and wait until it is built"
            )
            return ObservedState(raw, error=nothing)
        fingerprint = state.content.online_fingerprint
        for variant in self.variants:
            if variant.view.online_fingerprint == fingerprint:
                last = None if self.last is None else self.last.epoch
                if last is not None and last.is_named(state.epoch, state.content):
                    return ObservedState(
                        raw, fingerprint, last
                    )  # the state only says that another epoch is being built
                epoch = Epoch(self.keys, state.epoch, state.content, variant)
                return ObservedState(raw, fingerprint, epoch)
        other = StoreNotReadyError(
            f"feature view {self.name!r} is in the online store for another definition "
            f"(generation {state.content.generation}); run 'paimon-features apply' and "
            f"'paimon-features materialize {self.name}', or read with the definition "
            "that was materialized"
        )
        return ObservedState(raw, fingerprint, error=other)
