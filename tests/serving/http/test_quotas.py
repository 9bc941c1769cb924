"""Rates of clients: equal to a token bucket that is kept step by step, shared by processes."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from paimon_features.serving.http.access.access import ANYBODY, Quota, Rights, quota_key
from paimon_features.serving.http.access.quotas import SLOTS, Quotas
from paimon_features.serving.http.http_errors import RequestRejected


def client(
    name: str, requests_per_s: float | None = None, rows_per_s: float | None = None
) -> Rights:
    quota = Quota(requests_per_s, rows_per_s)
    return Rights(name, ANYBODY.grants, name, quota, quota_key("token", name))


def admits_rows(quotas: Quotas, rights: Rights, rows: int, now_s: float) -> bool:
    try:
        quotas.take_rows(rights, rows, now_s)
    except RequestRejected:
        return False
    return True


@given(
    st.integers(1, 1_000),
    st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 2_000)), max_size=40),
)
def test_rates_are_those_of_a_token_bucket(per_s: int, steps: list[tuple[int, int]]) -> None:
    quotas, rights = Quotas(), client("a", rows_per_s=per_s)
    # the reference counts in thousandths of a row: exact, and a debt where a large request passed
    level, full, now_ms = per_s * 1_000, per_s * 1_000, 10_000
    for waited_ms, rows in steps:
        now_ms += waited_ms
        level = min(full, level + waited_ms * per_s)
        expected = level >= min(rows * 1_000, full)
        # at the edge floats of seconds round: there either answer is right
        close = abs(level - min(rows * 1_000, full)) <= 1
        admitted = admits_rows(quotas, rights, rows, now_ms / 1_000)
        assert close or admitted == expected
        if admitted:
            level -= rows * 1_000


def test_a_slow_rate_admits_one_request_per_interval() -> None:
    quotas, rights = Quotas(), client("a", requests_per_s=0.1)

    def admits(now_s: float) -> str | None:
        try:
            quotas.take_request(rights, now_s)
        except RequestRejected as rejection:
            return dict(rejection.headers)[b"retry-after"].decode()
        return None

    assert [admits(at_s) for at_s in (100.0, 101.0, 109.9, 110.0, 110.5)] == [
        None, "9", "1", None, "10",
    ]  # fmt: skip
    assert rights.usage.refused == 3


def test_workers_share_the_rates_of_a_file(tmp_path: Path) -> None:
    first, second = Quotas(tmp_path / "quotas"), Quotas(tmp_path / "quotas")
    rights = client("a", rows_per_s=10)
    assert admits_rows(first, rights, 6, 5.0)
    assert not admits_rows(second, rights, 6, 5.0)
    assert admits_rows(second, rights, 4, 5.0)


def test_more_clients_than_entries_take_no_more_memory(tmp_path: Path) -> None:
    quotas = Quotas(tmp_path / "quotas")
    busy = client("busy", rows_per_s=1)
    assert admits_rows(quotas, busy, 2, 5.0)
    size = (tmp_path / "quotas").stat().st_size
    for number in range(SLOTS):  # whose buckets are full again before the busy one's
        assert admits_rows(quotas, client(f"client {number}", rows_per_s=1_000), 1, 5.0)
    assert not admits_rows(quotas, busy, 1, 5.5)
    assert (tmp_path / "quotas").stat().st_size == size
