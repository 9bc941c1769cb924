"""Whether what was answered while processes were killed is what some snapshot of the tiles says."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from paimon_features.definitions import FeatureView
from paimon_features.lake import Lake, read_arrow
from paimon_features.testing.reference.features import Entered, answer, entered
from tests.flink.loop.traffic import MAX_STALENESS_MS, NOBODY, VALUES, Exchange, Producer

COUNT, SUM = "p_rows", "p_sum_amount"
"""The partials of the number of events and of the sum of their amounts."""
REFUSALS = {"not_ready", "store_unavailable", "overloaded"}


class Judge:
    """Says what is wrong with a reply.

    A user's features are right if they are those of the first ``count`` events that were sent,
    by the oracle, and if a snapshot at or after the one that the reply names has as many.
    """

    def __init__(self, lake: Lake, view: FeatureView, table: str, producer: Producer) -> None:
        self._lake, self._view, self._table, self._producer = lake, view, table, producer
        self._counts: dict[int, dict[int, int]] = {}
        self._expected: dict[tuple[int, int, int], dict[str, Any]] = {}
        self._entered: dict[int, Entered] = {}
        self.statuses: Counter[str] = Counter()
        self.stale = 0

    def read_snapshots(self, ids: set[int]) -> list[str]:
        """Read the tiles of snapshots; returns what is wrong with them."""
        with ThreadPoolExecutor(3) as pool:
            found = dict(zip(ids, pool.map(self._read, ids), strict=True))
        self._counts = {}
        wrong = []
        for number, sums in found.items():
            self._counts[number] = {user: count for user, (count, _) in sums.items()}
            for user, (count, total) in sums.items():
                first = self._producer.of_user[user][:count]
                if len(first) != count or sum(event["amount"] for event in first) != total:
                    wrong.append(f"snapshot {number}, user {user}: {count} events of {total}")
        return wrong

    def _read(self, number: int) -> dict[int, tuple[int, int]]:
        rows = read_arrow(self._lake, self._table, snapshot_id=number).to_pylist()
        sums: dict[int, tuple[int, int]] = {}
        for row in rows:
            count, total = sums.get(row["user"], (0, 0))
            sums[row["user"]] = (count + row[COUNT], total + int(row[SUM]))
        return sums

    def wrong(self, one: Exchange, may_break: bool) -> str | None:
        """What is wrong with a reply; ``may_break``: the server was killed about then."""
        self.statuses[self._kind(one)] += 1
        if one.status == 0:
            return None if may_break else f"the connection broke: {one.reply}"
        if one.status == 503:
            known = one.retry_after is not None and one.reply["code"] in REFUSALS
            return None if known else f"503 {one.reply}, retry-after {one.retry_after}"
        if one.status != 200:
            return f"{one.status} {one.reply}"
        meta = one.reply["metadata"]
        columns = dict(zip(meta["feature_names"], one.reply["results"], strict=True))
        fresh = meta["freshness"]["spend"]
        if columns["user"]["values"] != [*one.users] or meta["as_of_ms"] != one.as_of_ms:
            return f"the reply to another question: {meta}"
        self.stale += fresh["stale"]
        if fresh["stale"] != (one.got_ms - fresh["current_ms"] > MAX_STALENESS_MS) and not (
            one.sent_ms - fresh["current_ms"] <= MAX_STALENESS_MS < one.got_ms - fresh["current_ms"]
        ):
            return f"not as stale as it says: {fresh}, {one.sent_ms}, {one.got_ms}"
        for row, user in enumerate(one.users):
            values = {name: columns[name]["values"][row] for name in VALUES}
            if text := self._wrong_values(one, user, values, fresh["applied_snapshot"]):
                statuses = [columns[name]["statuses"][row] for name in VALUES]
                return f"user {user}: {text}; {values}, {statuses}, {fresh}"
        return None

    def _kind(self, one: Exchange) -> str:
        if one.status == 503:
            return f"503 {one.reply.get('code')}"
        return {0: "connection broke"}.get(one.status, str(one.status))

    def _wrong_values(
        self, one: Exchange, user: int, values: dict[str, Any], snapshot: int
    ) -> str | None:
        count = values["count"] or 0
        if count > one.sent.get(user, 0):
            return f"more events than the {one.sent.get(user, 0)} that were sent"
        if count < self._counts.get(snapshot, {}).get(user, 0):
            return f"fewer events than the {self._counts[snapshot][user]} of snapshot {snapshot}"
        if user == NOBODY or not count:
            return None if set(values.values()) <= {None, 0} else "values of nobody"
        expected = self._answer(user, count, one.as_of_ms)
        return None if values == expected else f"expected {expected}"

    def _answer(self, user: int, count: int, as_of_ms: int) -> dict[str, Any]:
        key = (user, count, as_of_ms)
        if key not in self._expected:
            events = self._producer.of_user[user]
            if len(self._entered.get(user, ())) != len(events):
                self._entered[user] = entered(self._view, events)
            first = Entered(self._entered[user][:count])
            self._expected[key] = answer(self._view, first, as_of_ms, online=True).values
        return self._expected[key]
