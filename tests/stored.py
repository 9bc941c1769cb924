"""What an online store holds of one view, taken apart: for tests that look behind the answers."""

from __future__ import annotations

from collections.abc import Mapping

from paimon_features.online.store import Marker, OnlineStore, ViewState, Write
from paimon_features.online.store.keys import ViewKeys
from tests.tile_lake import PROJECT


class Stored:
    """The keys of a view of a project in a store."""

    def __init__(self, store: OnlineStore, view: str, project: str = PROJECT) -> None:
        self._store = store
        self._keys = ViewKeys(project, view, store.key_prefix)

    def everything(self) -> dict[bytes, bytes]:
        """Records, markers and leases of all epochs; without the state."""
        keys = [key for page in self._store.scan(self._keys.all_epochs) for key in page]
        values = self._store.get_many(keys)
        return {k: v for k, v in zip(keys, values, strict=True) if v is not None}

    def records(self) -> dict[bytes, bytes]:
        """The records of all entities."""
        return {key: value for key, value in self.everything().items() if b"}:" in key}

    def markers(self) -> dict[bytes, bytes]:
        """The markers of all buckets."""
        return {k: v for k, v in self.everything().items() if k.endswith(b"#marker")}

    def applied(self) -> list[int]:
        """The applied snapshot of each bucket."""
        return [Marker.from_bytes(value).applied_snapshot for value in self.markers().values()]

    def epochs(self) -> set[str]:
        """The epochs of which any key is there."""
        return {self._keys.epoch_of(key) for key in self.everything()}

    def state(self) -> ViewState:
        """Which epoch is read, and which is built."""
        raw = self._store.get_many([self._keys.state])[0]
        assert raw is not None, "there is no state"
        return ViewState.from_bytes(raw)

    def lose_state(self) -> None:
        """Delete the state, and nothing else."""
        self._store.delete([self._keys.state])

    def put(self, values: Mapping[bytes, bytes]) -> None:
        """Give these keys these values, whatever they have now."""
        self._store.delete(list(values))
        for key, value in values.items():
            assert self._store.compare_and_set_many([Write(key, None, value)]) == [True]
