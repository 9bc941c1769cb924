"""Training sets: what they were made from, the same again, and never another by accident."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pyarrow as pa
import pytest

from paimon_features.core.errors import OwnershipError, RequestError, TableError
from paimon_features.lake import Lake, read_arrow, table_options
from paimon_features.lake.metadata.snapshots import snapshot, tagged
from paimon_features.lake.reading.deltas import live_files
from paimon_features.offline.training_set import (
    TrainingSet,
    append_training_rows,
    build_training_set,
)
from tests.offline.lake_of_views import LakeOfViews
from tests.offline.test_store import SPEND, WORDS, clicks

ROWS = pa.table(
    {
        "user": [2, 1, None, 1],
        "event_time_ms": [0, 60_001, 5, 1],
        "bought": [True, False, None, True],
    }
)


@pytest.fixture
def lake(tmp_path: Path) -> LakeOfViews:
    lake = LakeOfViews(tmp_path, SPEND, WORDS)
    lake.commit(clicks((1, 0, 1.25, "a"), (1, 60_000, None, "b"), (2, -5, 3.0, "a")))
    return lake


def build(lake: LakeOfViews, rows: pa.Table = ROWS, **options: object) -> TrainingSet:
    refs = lake.refs("spend")
    return build_training_set(lake.store, "churn", refs, rows, label="bought", **options)  # type: ignore[arg-type]


def digests(lake: Lake, built: TrainingSet) -> list[str]:
    files = live_files(lake, built.table, built.snapshot_id)
    return [hashlib.sha256(Path(f.path).read_bytes()).hexdigest() for f in files]


def test_the_table_has_the_rows_in_their_order_with_label_and_features(lake: LakeOfViews) -> None:
    built = build(lake)
    expected = lake.store.get_historical_features(lake.refs("spend"), ROWS)
    assert read_arrow(lake.lake, "training_churn") == expected.cast(
        lake.lake.schema("training_churn")
    )
    assert (built.table, built.rows, built.label) == ("training_churn", 4, "bought")
    assert built.features == ("sum_x_1h", "sum_x_7d", "count_7d")


def test_the_same_rows_are_appended_once_though_the_snapshot_of_their_commit_has_expired(
    lake: LakeOfViews,
) -> None:
    build(lake)
    more = ROWS.slice(1)
    appended = append_training_rows(lake.store, "churn", lake.refs("spend"), more)
    append_training_rows(lake.store, "churn", lake.refs("spend"), ROWS.slice(3))
    folder = Path(lake.lake.path("training_churn")) / "snapshot"
    for number in range(1, appended.snapshot_id + 1):
        (folder / f"snapshot-{number}").unlink()
    again = append_training_rows(lake.store, "churn", lake.refs("spend"), more)
    assert (again.snapshot_id, again.rows) == (appended.snapshot_id, appended.rows)
    assert read_arrow(lake.lake, "training_churn").num_rows == 4 + 3 + 1


def test_rows_without_any_feature_are_counted(lake: LakeOfViews) -> None:
    built = build(lake)  # one of four rows has a null key
    assert built.rows_without_features == 1
    assert build(lake).rows_without_features == 1
    assert build(lake, as_of=1, replace=True).rows_without_features == 4


def test_the_properties_name_every_source_snapshot(lake: LakeOfViews) -> None:
    built = build(lake)
    properties = table_options.properties(lake.lake, "training_churn")
    sources = json.loads(properties["training-set.sources"])
    assert sources == [
        {"table": table, "snapshot_id": 1, "commit": snapshot(lake.lake, table, 1).commit}
        for table in ("tiles_spend_g1", "events_clicks")
    ]
    assert [pin.to_document() for pin in built.sources] == sources
    assert properties["training-set.label"] == "bought"
    assert "training-set.as-of-ms" not in properties


def test_the_snapshots_it_was_made_from_are_tagged(lake: LakeOfViews) -> None:
    build(lake)
    for table in ("tiles_spend_g1", "events_clicks"):
        assert tagged(lake.lake, table)["training_churn"].id == 1


def test_the_same_call_gives_the_same_bytes(lake: LakeOfViews) -> None:
    first = build(lake)
    bytes_of_first = digests(lake.lake, first)
    lake.lake.drop("training_churn")
    assert digests(lake.lake, build(lake)) == bytes_of_first


def test_the_same_call_again_builds_nothing(lake: LakeOfViews) -> None:
    first = build(lake)
    seen: list[int] = []
    assert build(lake, progress=lambda done, total: seen.append(done)) == first
    assert not seen


def test_another_training_set_of_that_name_is_refused_until_replaced(lake: LakeOfViews) -> None:
    build(lake)
    lake.commit(clicks((1, 1, 5.0, "late")))
    with pytest.raises(TableError, match=r"another training set \(different: sources\).*--replace"):
        build(lake)
    with pytest.raises(TableError, match="different: .*entity-rows"):
        build(lake, ROWS[:2])
    assert read_arrow(lake.lake, "training_churn")["sum_x_7d"].to_pylist()[1] == 1.25
    built = build(lake, replace=True)
    assert read_arrow(lake.lake, "training_churn")["sum_x_7d"].to_pylist()[1] == 6.25
    assert [pin.snapshot_id for pin in built.sources] == [2, 2]
    assert tagged(lake.lake, "events_clicks")["training_churn"].id == 2


def test_a_replacement_that_cannot_be_read_leaves_the_old_training_set(
    lake: LakeOfViews, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paimon_features.offline.store import PinnedRead

    def broken(*_: object, **__: object) -> pa.Table:
        raise OSError("the disk is away")

    old = build(lake)
    lake.commit(clicks((1, 1, 5.0, "late")))
    with monkeypatch.context() as patch:
        patch.setattr(PinnedRead, "join", broken)
        with pytest.raises(OSError, match="the disk is away"):
            build(lake, replace=True)
    assert read_arrow(lake.lake, "training_churn").num_rows == old.rows
    assert build(lake, replace=True).sources[0].snapshot_id == 2


def test_a_replacement_of_other_views_lets_go_of_what_it_no_longer_reads(
    lake: LakeOfViews,
) -> None:
    build(lake)
    rows = ROWS.append_column("word", pa.array(["a", "b", None, "a"]))
    build_training_set(lake.store, "churn", lake.refs("words"), rows, replace=True)
    assert "training_churn" not in tagged(lake.lake, "tiles_spend_g1")
    for table in ("tiles_words_g1", "events_clicks"):
        assert tagged(lake.lake, table)["training_churn"].id == 1


def test_a_build_that_was_cut_off_is_made_whole(
    lake: LakeOfViews, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paimon_features.offline import training_set

    def cut_off(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training_set, "append_stream", cut_off)
        with pytest.raises(KeyboardInterrupt):
            build(lake)
    assert build(lake).rows == read_arrow(lake.lake, "training_churn").num_rows == 4


def test_as_of_is_part_of_what_it_is(lake: LakeOfViews) -> None:
    built = build(lake, as_of=1)
    assert [pin.snapshot_id for pin in built.sources] == [None, None]
    assert table_options.properties(lake.lake, "training_churn")["training-set.as-of-ms"] == "1"
    assert read_arrow(lake.lake, "training_churn")["count_7d"].to_pylist() == [None] * 4


def test_a_missing_label_and_no_rows_are_refused(lake: LakeOfViews) -> None:
    with pytest.raises(RequestError, match="label: unknown column 'bought'"):
        build(lake, ROWS.drop_columns(["bought"]))
    with pytest.raises(RequestError, match="got none"):
        build(lake, ROWS[:0])
    assert not lake.lake.exists("training_churn")


def test_two_builders_of_one_table_exclude_each_other(lake: LakeOfViews) -> None:
    import subprocess
    import sys

    code = (
        "import sys, time; from paimon_features.lake import Lake;"
        "from paimon_features.lake.ownership.lease import acquire;"
        f"lease = acquire(Lake.open({lake.lake.warehouse!r}, 'features'), 'training_churn');"
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(OwnershipError):
            build(lake)
        other.communicate()
    assert build(lake).rows == 4


def many_rows() -> pa.Table:
    users = [i % 3 for i in range(3_000)]
    times = [(i * 7919) % 100_000 for i in range(3_000)]
    return pa.table({"n": list(range(3_000)), "user": users, "event_time_ms": times})


def test_a_training_set_larger_than_memory_has_the_same_bytes(lake: LakeOfViews) -> None:
    rows, refs = many_rows(), lake.refs("spend")
    whole = build_training_set(lake.store, "many", refs, rows)
    expected = digests(lake.lake, whole)
    lake.lake.drop("training_many")
    stream = rows.to_reader(100)
    parts = build_training_set(lake.store, "many", refs, stream, memory_mb=0.02)
    assert digests(lake.lake, parts) == expected
    assert parts == whole


def test_rows_keep_their_order_over_many_files(
    lake: LakeOfViews, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paimon_features.offline import training_set

    append = training_set.append_stream
    monkeypatch.setattr(training_set, "WRITTEN_ROWS", 100)
    monkeypatch.setattr(
        training_set, "append_stream", lambda *given: append(*given, file_bytes=500)
    )
    built = build_training_set(lake.store, "many", lake.refs("spend"), many_rows())
    assert len(live_files(lake.lake, built.table, built.snapshot_id)) > 10
    assert read_arrow(lake.lake, "training_many")["n"].to_pylist() == list(range(3_000))


def test_an_error_while_answers_are_written_commits_nothing_and_leaves_no_file(
    lake: LakeOfViews, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paimon_features.offline.feature_result import FeatureResult

    whole = FeatureResult.tables

    def broken(self: FeatureResult) -> object:
        yield from whole(self)
        raise OSError("the disk is away")

    with monkeypatch.context() as patch:
        patch.setattr(FeatureResult, "tables", broken)
        with pytest.raises(OSError, match="the disk is away"):
            build_training_set(lake.store, "many", lake.refs("spend"), many_rows())
    assert not list(Path(lake.lake.path("training_many")).rglob("*.parquet"))
    assert build_training_set(lake.store, "many", lake.refs("spend"), many_rows()).rows == 3_000


def test_columns_of_the_rows_keep_their_types_and_what_no_table_holds_is_refused(
    lake: LakeOfViews,
) -> None:
    kinds = {
        "word": (pa.dictionary(pa.int32(), pa.string()), pa.string()),
        "price": (pa.decimal128(7, 2), pa.decimal128(7, 2)),
        "small": (pa.int8(), pa.int32()),
        "sizes": (pa.list_(pa.int64()), pa.list_(pa.int64())),
    }
    rows = ROWS
    for name, (kind, _) in kinds.items():
        rows = rows.append_column(name, pa.nulls(4, kind))
    build(lake, rows)
    schema = lake.lake.schema("training_churn")
    assert {name: schema.field(name).type for name in kinds} == {
        name: stored for name, (_, stored) in kinds.items()
    }
    spans = ROWS.append_column("span", pa.nulls(4, pa.duration("ms")))
    with pytest.raises(RequestError, match=r"column 'span' is duration\[ms\], which tables do not"):
        build(lake, spans, replace=True)
