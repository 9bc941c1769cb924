"""Delete the records of entities from the online store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paimon_features.core.types.schema import DataType
from paimon_features.online.materialize.epochs import Epochs
from paimon_features.online.store.keys import ViewKeys
from paimon_features.online.store.store import OnlineStore
from paimon_features.serving.reading.entities import Buckets, entity_keys


def delete_records(
    store: OnlineStore,
    project: str,
    view: str,
    types: Mapping[str, DataType],
    entities: Sequence[tuple[Any, ...]],
) -> int:
    """Delete the records of entities in the epochs of a view; returns how many existed.

    ``types`` are the view's keys in their order. A materializer that runs may write one of them
    again from tiles that still have it.
    """
    keys = ViewKeys(project, view, store.key_prefix)
    state = Epochs(store, keys).state()
    epochs = [(state.epoch, state.content)]
    if state.building is not None:
        epochs.append((state.building.epoch, state.building.content))
    columns = list(zip(*entities, strict=True)) or [() for _ in types]
    values = {name: list(of) for name, of in zip(types, columns, strict=True)}
    of = entity_keys(types, values)
    deleted = 0
    for epoch, content in epochs:
        if epoch is None or content is None or not entities:
            continue
        buckets = Buckets(list(types.values()), content.buckets).of([of])
        records = [
            keys.bucket(epoch, bucket).record_stem + encoded
            for bucket, encoded in zip(buckets, of.encoded, strict=True)
        ]
        for batch in _batches(records):
            deleted += sum(value is not None for value in store.get_many(batch))
            store.delete(batch)
    return deleted


def _batches(keys: Sequence[bytes], size: int = 1_000) -> Iterable[Sequence[bytes]]:
    return (keys[start : start + size] for start in range(0, len(keys), size))
