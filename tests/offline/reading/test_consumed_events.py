"""Tiles and events are read at one cut, and tiles that were never computed are an error."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from paimon_features.cli import cli
from paimon_features.core.errors import SnapshotExpiredError, UnfilledError
from paimon_features.core.times.clock import now_ms
from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.lake import append_arrow, latest_snapshot, table_options
from paimon_features.lake.metadata.consumers import consumers, register_consumer
from paimon_features.lake.metadata.snapshots import tagged
from paimon_features.lake.side_folder import generations
from paimon_features.offline.feature_result import commits_not_included
from paimon_features.project import Project
from paimon_features.project.monitoring.view_reader import ViewReader
from paimon_features.testing.reference.features import answer, consumed
from paimon_features.testing.reference.tiler import tile_table
from paimon_features.testing.sizes import seeds
from paimon_features.tiles.consumed import position

NOW = 1_795_000_000_000 // 300_000 * 300_000
DEFINITIONS = """
import paimon_features as pf

s = pf.EventSource("s", schema={"k": pf.Int64, "t": pf.Int64, "x": pf.Int64}, event_time="t")
e = pf.Entity("e", keys={"k": pf.Int64})
counts = [pf.Count(windows=["30d"]), pf.Sum("x", windows=["1h"]), pf.TimeSinceFirst(windows=["1d"])]
v = pf.FeatureView("v", source=s, entity=e, features=counts)
w = pf.FeatureView("w", source=s, entity=e, features=[pf.Count(windows=["30d"], name="n")])
none = pf.FeatureView("none", source=s, entity=e, where="x < 0", features=[pf.Count(name="c")])
sessions = pf.SessionView("sessions", view=v, gap="1h", features=[pf.Count(name="events")])
"""
CONFIG = '[project]\nname = "shop"\nengine = "local"\n[online]\nurl = "memory://"\n'
Row = dict[str, int]


def commit(project: Project, *times: int, key: int = 1) -> list[Row]:
    rows = [{"k": key, "t": t, "x": 1} for t in times]
    days = [{**row, "event_day": row["t"] // DAY_MS, "ingest_time_ms": 0} for row in rows]
    schema = project.lake.schema("events_s")
    append_arrow(project.lake, "events_s", pa.Table.from_pylist(days, schema=schema))
    return rows


def stream(project: Project, name: str, events: Sequence[Row], after: int, first: int = 0) -> None:
    """Play a job of Flink that has read these events, up to a snapshot."""
    lake, view = project.lake, project.definitions.view(name)
    job = {
        "kind": "stream", "job_id": "a" * 32, "events": "events_s", "rest": "", "local": False,
        "process": None, "since_ms": now_ms(), "branch": [["a" * 32, None]], "state": "STOPPED",
    }  # fmt: skip
    generations.update(lake, name, 1, job=job, commit_user="job", first_scan=first)
    if events:
        append_arrow(
            lake, f"tiles_{name}_g1", tile_table(view, events), commit_user="job_1",
            commit_identifier=after,
        )  # fmt: skip
    register_consumer(lake, "events_s", f"tiles-{name}-g1", after + 1)


def read(project: Project, *times: int, of: str = "v", **options: Any) -> pa.Table:
    rows = {"k": [1] * len(times), "event_time_ms": list(times)}
    return project.get_historical_features(of, rows, **options)


def counts(project: Project, *times: int, **options: Any) -> list[int | None]:
    found: list[int | None] = read(project, *times, **options)["count_30d"].to_pylist()
    return found


HISTORY = [NOW - i * HOUR_MS for i in range(1, 21)]


def test_a_view_that_was_never_filled_is_an_error_on_every_path(project: Project) -> None:
    commit(project, *HISTORY, NOW + 1000)
    view = project.definitions.view("v")
    record = generations.get(project.lake, "v", 1)
    error = r"'v': generation 1 .* never computed.*'paimon-features backfill v'"
    for call in (
        lambda: read(project, NOW, NOW + 1500),
        lambda: read(project, NOW, as_of=now_ms()),
        lambda: project.build_training_set("a", "v", {"k": [1], "event_time_ms": [NOW]}),
        lambda: project.derived.rows("sessions"),
        lambda: project.derived.refresh("sessions"),
        lambda: project.view_reader("v"),
        lambda: ViewReader(project.lake, view, record),
        lambda: project.jobs.roll_up("v"),
    ):
        with pytest.raises(UnfilledError, match=error):
            call()
    assert not project.lake.exists("training_a")


def test_without_any_event_no_tiles_are_complete(project: Project) -> None:
    found = read(project, NOW, statuses=True)
    assert found["count_30d__status"].to_pylist() == ["MISSING"]
    assert project.filled_generation(project.view("v")).table == "tiles_v_g1"
    commit(project, NOW)
    with pytest.raises(UnfilledError, match="never computed"):
        project.filled_generation(project.view("v"))
    assert CliRunner().invoke(cli, ["materialize", "--project", str(project.root)]).exit_code == 1


def test_an_unfinished_backfill_does_not_fill_a_view(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    from paimon_features.tiles.local import submission as backfill_job

    def cut_off(*_: Any) -> None:
        raise KeyboardInterrupt

    commit(project, *HISTORY)
    with monkeypatch.context() as patch:
        patch.setattr(backfill_job, "write_tiles", cut_off)
        with pytest.raises(KeyboardInterrupt):
            project.jobs.backfill("v")
    with pytest.raises(UnfilledError, match="its last job did not end"):
        read(project, NOW)
    project.jobs.backfill("v")
    assert counts(project, NOW) == [20]


def test_a_backfill_without_rows_fills_a_view_for_good(project: Project) -> None:
    commit(project, *HISTORY)
    project.jobs.backfill("none")
    assert latest_snapshot(project.lake, "tiles_none_g1") is None
    for as_of in (None, now_ms() + 1):
        assert read(project, NOW, of="none", as_of=as_of)["c"].to_pylist() == [None]


def test_a_source_without_events_can_be_backfilled_and_again_later(project: Project) -> None:
    assert project.jobs.backfill("v").events_read == 0
    found = read(project, NOW, statuses=True)
    assert found["count_30d__status"].to_pylist() == ["MISSING"]
    commit(project, *HISTORY)
    behind = read(project, NOW, NOW + 1000)
    assert behind["count_30d"].to_pylist() == [None, None]
    assert commits_not_included(behind.schema) == {"v": 1}
    project.jobs.backfill("v")
    assert counts(project, NOW) == [20]


def test_events_that_the_tiles_lack_are_in_no_window_and_are_counted(project: Project) -> None:
    #  events   1: 20 hours, 1 s after NOW   2: within the last hour, 0.5 s after NOW
    #  tiles   [1                        ]
    commit(project, *HISTORY, NOW + 1000)
    project.jobs.backfill("v")
    assert commits_not_included(read(project, NOW).schema) == {}
    late = (*(NOW - 600_000 * i for i in range(1, 6)), NOW + 500)
    commit(project, *late)
    found = read(project, NOW, NOW + 1500)
    assert found["count_30d"].to_pylist() == [20, 21]
    assert found["sum_x_1h"].to_pylist() == [1, 2]
    assert commits_not_included(found.schema) == {"v": 1}
    project.jobs.backfill("v", rebuild=True)
    found = read(project, NOW, NOW + 1500)
    assert found["count_30d"].to_pylist() == [25, 27]
    assert commits_not_included(found.schema) == {}


def test_views_of_one_source_are_each_read_at_their_own_cut(project: Project) -> None:
    commit(project, *HISTORY, NOW + 1000)
    project.jobs.backfill("v")
    commit(project, NOW - 1, NOW + 500)
    project.jobs.backfill("w")
    rows, names = {"k": [1, 1], "event_time_ms": [NOW, NOW + 1500]}, ["v:count_30d", "w:n_30d"]
    found = project.get_historical_features(names, rows)
    assert (found["count_30d"].to_pylist(), found["n_30d"].to_pylist()) == ([20, 21], [21, 23])
    built = project.build_training_set("both", names, rows)
    assert built.commits_not_included == {"v": 1}
    assert built.to_document()["commits_not_included"] == {"v": 1}
    recorded = table_options.properties(project.lake, "training_both")[
        "training-set.commits-not-included"
    ]
    assert json.loads(recorded) == {"v": 1}
    assert set(tagged(project.lake, "events_s")) == {"training_both", "training_both-1"}
    project.jobs.backfill("v", rebuild=True)
    project.jobs.backfill("w", rebuild=True)
    with pytest.raises(SnapshotExpiredError):  # the rebuilt tables begin again
        project.get_historical_features(names, rows, as_of="both")
    # the same training set by its name until then, and other pins of its sources after that
    project.build_training_set("both", names, rows, replace=True)
    assert set(tagged(project.lake, "events_s")) == {"training_both"}


def test_the_pins_of_views_at_different_cuts_read_the_same_again(project: Project) -> None:
    commit(project, *HISTORY, NOW + 1000)
    project.jobs.backfill("v")
    commit(project, NOW - 1, NOW + 500)
    project.jobs.backfill("w")
    names, rows = ["v:count_30d", "w:n_30d"], {"k": [1], "event_time_ms": [NOW + 1500]}
    pinned = project.offline.pin(project.refs(names))
    commit(project, NOW - 2)
    assert project.get_historical_features(names, rows, as_of=pinned.pins) == pinned.read(rows)


def test_a_time_before_the_first_tile_is_an_error(project: Project) -> None:
    commit(project, *HISTORY)
    before_ms = now_ms()
    while now_ms() <= before_ms:
        pass
    project.jobs.backfill("v")
    for time_ms in (1, before_ms):
        with pytest.raises(UnfilledError, match=f"none of its tiles .* by {time_ms} ms"):
            read(project, NOW, as_of=time_ms)
        with pytest.raises(UnfilledError, match=f"none of its tiles .* by {time_ms} ms"):
            project.derived.rows("sessions", as_of=time_ms)


def test_the_events_of_a_stream_are_those_before_its_consumer(project: Project) -> None:
    old = commit(project, *HISTORY)
    new = commit(project, NOW + 1, NOW + 2)
    commit(project, NOW + 3)
    stream(project, "v", [*old, *new], after=2, first=1)
    found = read(project, NOW + 1000)
    assert found["count_30d"].to_pylist() == [22]
    assert commits_not_included(found.schema) == {"v": 1}
    assert project.derived.refresh("sessions").commits_not_included == 1


def test_a_stream_that_has_not_read_the_first_snapshot_yet_is_not_filled(project: Project) -> None:
    old = commit(project, *HISTORY)
    stream(project, "v", old[:7], after=0, first=1)
    with pytest.raises(UnfilledError, match="not read all of snapshot 1 yet"):
        read(project, NOW)


def test_a_stream_that_began_before_the_first_event_is_filled(project: Project) -> None:
    stream(project, "v", [], after=0)
    assert read(project, NOW)["count_30d"].to_pylist() == [None]


def test_an_earlier_snapshot_of_a_stream_is_read_with_the_events_of_its_time(
    project: Project,
) -> None:
    first = commit(project, *HISTORY)
    stream(project, "v", first, after=1, first=1)
    between_ms = now_ms()
    while now_ms() <= between_ms:
        pass
    second = commit(project, NOW - 1, NOW + 1)
    stream(project, "v", second, after=2, first=1)
    assert counts(project, NOW + 2) == [22]
    assert counts(project, NOW + 2, as_of=between_ms) == [20]


def test_the_events_at_the_position_are_retained_while_nothing_reads_on(project: Project) -> None:
    commit(project, *HISTORY)
    project.jobs.backfill("v")
    commit(project, NOW)
    assert consumers(project.lake, "events_s") == {"tiles-v-g1": 2, "read-v-g1": 1}
    project.jobs.backfill("v", rebuild=True)
    assert consumers(project.lake, "events_s") == {"tiles-v-g1": 3, "read-v-g1": 2}


@pytest.mark.parametrize("seed", seeds(4))
def test_any_order_of_commits_and_backfills_equals_the_oracle(project: Project, seed: int) -> None:
    rng = random.Random(seed)
    commits: list[list[Row]] = []
    reached = {"v": -1, "w": -1}
    for _ in range(6):
        action = rng.choice(["commit", "commit", "v", "w"])
        if action == "commit":
            near = [NOW + rng.randint(-400_000, 400_000) for _ in range(rng.randint(1, 5))]
            commits.append(commit(project, *near, *rng.sample(HISTORY, 2)))
        else:
            project.jobs.backfill(action, rebuild=reached[action] > 0)
            reached[action] = len(commits)
        times = [NOW + rng.randint(-500_000, 500_000) for _ in range(8)]
        for name, column in (("v", "count_30d"), ("w", "n_30d")):
            if reached[name] < 0 and not commits:
                assert read(project, *times, of=name)[column].null_count == len(times)
                continue
            if reached[name] < 0:
                with pytest.raises(UnfilledError):
                    read(project, *times, of=name)
                continue
            view = project.definitions.view(name)
            own = consumed(commits, reached[name])
            expected = [answer(view, own, time).values[column] for time in times]
            found = read(project, *times, of=name)
            assert found[column].to_pylist() == expected
            lacking = len(commits) - reached[name]
            assert commits_not_included(found.schema) == ({name: lacking} if lacking else {})
            assert position(project.lake, generations.get(project.lake, name, 1)) == reached[name]
