"""``forget``: an entity is gone from every table and the store, and nothing else has changed."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paimon_features.core.errors import GenerationError, OwnershipError, RequestError
from paimon_features.core.process.ports import free_ports
from paimon_features.core.types.schema import Bool, Date, Int64, String
from paimon_features.lake import append_arrow, latest_snapshot, read_arrow
from paimon_features.lake.metadata.tags import create_tag
from paimon_features.lake.ownership.lease import ProcessHolder, acquire
from paimon_features.lake.specs import (
    feedback_spec,
    outcomes_spec,
    predictions_spec,
    served_spec,
)
from paimon_features.lake.writing import overwrite
from paimon_features.project.forget import Deletion, EntitySet
from paimon_features.project.forget import deletion as module
from paimon_features.project.forget.rejected import RejectedRows
from paimon_features.project.verification.parity import verify
from paimon_features.serving.request_log.log_rows import EntityText
from tests.project.operations.conftest import SALES, Shop

pytestmark = pytest.mark.redis

SALT = b"a salt of some length"


def everything(shop: Shop) -> dict[str, list[dict[str, Any]]]:
    """All rows of all tables, in an order of their own."""
    lake = shop.project.lake
    return {
        table: sorted(read_arrow(lake, table).to_pylist(), key=repr)
        for table in lake.list()
        if latest_snapshot(lake, table) is not None
    }


def theirs(row: dict[str, Any], customer: int = 1) -> bool:
    """Whether a row has the customer anywhere, by the plainest look at it."""
    if "raw" in row:
        return bool(json.loads(row["raw"])["customer_id"] == customer)
    if "detail" in row:
        return f" customer_id={customer} " in row["detail"]
    if "entity" in row:
        hashed = EntityText(SALT)
        pairs = ["FR", "DE"]
        own = {f"[{customer}]", hashed([customer]), *(f'["{c}",{customer}]' for c in pairs)}
        own |= {hashed([c, customer]) for c in pairs}
        computed = row.get("view") == "" and row["request_id"] == f"r{customer}"
        return row["entity"] in own or computed
    return row.get("customer_id") == customer


def without(tables: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    return {name: [row for row in rows if not theirs(row)] for name, rows in tables.items()}


def online(shop: Shop) -> dict[str, Any]:
    """Online features of all entities now."""
    project, at = shop.project, shop.now_ms
    customers = {"customer_id": [1, 2, 3]}
    pairs = {"country": ["FR", "DE"] * 3, "customer_id": [1, 1, 2, 2, 3, 3]}
    return {
        "spend": project.get_online_features("spend", customers, at).to_pylist(),
        "pairs": project.get_online_features("pairs", pairs, at).to_pylist(),
        "lands": project.get_online_features("lands", {"country": ["FR", "DE"]}, at).to_pylist(),
    }


def add_copies(shop: Shop) -> None:
    """A training set, feedback, and a request log in clear and hashed."""
    project = shop.project
    rows = pa.table({"customer_id": [1, 2, 3, 1], "event_time_ms": [shop.now_ms] * 4})
    project.build_training_set("churn", "spend", rows)
    feedback = feedback_spec("feedback_loop", {"customer_id": Int64})
    project.lake.create(feedback)
    append_arrow(
        project.lake, feedback.name, pa.table({"customer_id": [1, 2], "loss": [0.5, 0.25]})
    )
    project.lake.create(served_spec("served_shop"))
    hashed = EntityText(SALT)
    logged = [
        *(("spend", f"[{c}]", c) for c in (1, 2)),
        *(("spend", hashed([c]), c) for c in (1, 3)),
        *(("pairs", hashed(["FR", c]), c) for c in (1, 2)),
        ("pairs", '["DE",1]', 1),
        ("lands", '["FR"]', 2),
        *(("", f"[{c}]", c) for c in (1, 2)),
    ]
    table = pa.table(
        {
            "served_day": pa.array([0] * len(logged), pa.int32()),
            "view": [view for view, _, _ in logged],
            "entity": [entity for _, entity, _ in logged],
            "request_id": [f"r{customer}" for _, _, customer in logged],
            "worker": ["w"] * len(logged),
            "number": [1] * len(logged),
            "row": pa.array([0] * len(logged), pa.int32()),
        }
    )
    append_arrow(project.lake, "served_shop", table)
    pytest.importorskip("onnx", reason="networks for tests")
    from tests.serving.prediction.networks import linear, number

    model = linear([1.0], [number("spend:count_7d")], key=("customer_id", "int64"))
    project.models.register(model.manifest, {"network.onnx": model.network})
    texts = [f"[{c}]" for c in (1, 2)] + [hashed([c]) for c in (1, 3)]
    own = {
        "served_day": pa.array([0] * 4, pa.int32()),
        "entity": texts,
        "request_id": ["r"] * 4,
        "number": list(range(4)),
    }
    for spec, more in (
        (predictions_spec("predictions_churn"), {}),
        # the entity of a hashed row may be unknown
        (outcomes_spec("outcomes_churn", {"customer_id": Int64}), {"customer_id": [1, 2, None, 3]}),
    ):
        project.lake.create(spec)
        append_arrow(project.lake, spec.name, pa.table({**own, **more}))


@pytest.fixture
def full(served: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setenv("PAIMON_FEATURES_REQUEST_LOG_SALT", SALT.decode())
    add_copies(served)
    return served


def deletion(shop: Shop, *texts: str, **options: Any) -> Deletion:
    types = {"customer_id": Int64, "country": String}
    entities = EntitySet.of(texts or ["customer_id=1"], types)
    return Deletion(shop.project, entities, **options)


def test_an_entity_is_gone_everywhere_and_all_others_are_as_before(full: Shop) -> None:
    before, values = everything(full), online(full)
    expected = without(before)
    assert all(expected[name] != before[name] for name in TOUCHED), "the test has copies everywhere"

    report = full.json("forget", "--entity", "customer_id=1", "--yes")
    assert everything(full) == expected
    rows = {table["table"]: table["rows"] for table in report["tables"] if table["rows"]}
    assert rows == {
        name: len(before[name]) - len(expected[name])
        for name in before
        if len(before[name]) > len(expected[name])
    }
    assert report["online"] == {"spend": 1, "pairs": 2}
    assert any("lands" in note for note in report["notes"])

    for looked_up in (online(full), full.run("materialize") and online(full)):
        for view, found in looked_up.items():
            kept = [row for row in values[view] if row.get("customer_id") != 1]
            assert [row for row in found if row.get("customer_id") != 1] == kept
            gone = [row for row in found if row.get("customer_id") == 1]
            assert all(
                v is None
                for row in gone
                for k, v in row.items()
                if k[:5] in ("sum_a", "count_", "max_a")
            )
    again = full.json("forget", "--entity", "customer_id=1", "--yes")
    assert (sum(table["rows"] for table in again["tables"]), again["online"]["spend"]) == (0, 0)


TOUCHED = (
    "events_sales", "rejected_sales", "tiles_spend_g1", "tiles_pairs_g1", "training_churn",
    "feedback_loop", "served_shop", "predictions_churn", "outcomes_churn", "skipped_spend_g1",
)  # fmt: skip


@pytest.mark.long
def test_a_rebuild_has_no_trace_and_equals_the_sum_of_the_others(full: Shop) -> None:
    full.run("forget", "--entity", "customer_id=1", "--yes")
    kept = everything(full)
    for view in ("spend", "lands", "pairs"):
        full.run("backfill", view, "--rebuild")
    rebuilt = everything(full)
    for name in ("tiles_spend_g1", "tiles_pairs_g1", "skipped_spend_g1"):
        assert rebuilt[name] == kept[name]
    full.run("materialize")
    past = [
        (c, land, amount) for c, land, amount, at in SALES if at < 0 and c != 1 and amount < 2**60
    ]
    for row in online(full)["lands"]:
        own = [amount for _, land, amount in past if land == row["country"]]
        assert (row["sum_amount"], row["count"]) == (sum(own), len(own))
    for view in ("spend", "lands", "pairs"):
        report = verify(full.project, view, settle_s=0.0)
        assert report.ok
        assert report.compared


@pytest.mark.long
def test_it_is_resumed_after_an_end_at_any_step(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps are the start and the end of each table, and the moment between its two commits.

    Each table has four: every fifth step is each of the four, of another table.
    """
    monkeypatch.setenv("PAIMON_FEATURES_REQUEST_LOG_SALT", SALT.decode())
    add_copies(shop)
    expected = without(everything(shop))
    step, end_at = 0, -3

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any) -> Any:
            nonlocal step
            step += 1
            if step == end_at:
                raise KeyboardInterrupt
            result = call(*arguments)
            step += 1
            if step == end_at:
                raise KeyboardInterrupt
            return result

        return counting

    for where, name in ((module, "delete_rows"), (overwrite, "complete_files")):
        monkeypatch.setattr(where, name, counted(getattr(where, name)))
    ended = True
    while ended:
        end_at, step = end_at + 5, 0
        copy = Shop(Path(shutil.copytree(shop.folder, tmp_path / f"copy-{end_at}")))
        try:
            deletion(copy, online=False).carry_out()
            ended = False
        except KeyboardInterrupt:
            step, most = -1_000, end_at
            deletion(copy, online=False).carry_out()
        assert everything(copy) == expected
    assert most > 4 * len(TOUCHED) - 8


def test_a_killed_deletion_is_finished_by_the_next_one(full: Shop) -> None:
    expected = without(everything(full))
    code = (
        "import os, signal\nfrom paimon_features.lake.writing import overwrite\n"
        "real, seen = overwrite.complete_files, []\n"
        "def die(*a):\n    seen.append(real(*a))\n"
        "    if len(seen) == 4: os.kill(os.getpid(), signal.SIGKILL)\n"
        "overwrite.complete_files = die\n"
        "from paimon_features.cli import main\n"
        "main(['forget', '--entity', 'customer_id=1', '--yes'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=full.folder, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    halfway = everything(full)
    assert without(halfway) == expected
    assert halfway != expected
    full.run("forget", "--entity", "customer_id=1", "--yes")
    assert everything(full) == expected


def test_several_entities_of_a_file_are_deleted(shop: Shop, tmp_path: Path) -> None:
    file = tmp_path / "ids.csv"
    file.write_text("customer_id\n1\n3\n77\n")
    before = everything(shop)
    report = shop.json("forget", "--file", str(file), "--yes", "--no-online")
    assert report["entities"] == 3
    expected = {
        name: [row for row in rows if not theirs(row, 1) and not theirs(row, 3)]
        for name, rows in before.items()
    }
    found = everything(shop)
    assert found.pop("rejected_sales") == []  # both held events were theirs
    assert expected.pop("rejected_sales") == []
    assert found == expected


def test_an_entity_of_two_keys_is_deleted_by_both(shop: Shop) -> None:
    before = everything(shop)
    shop.run("forget", "--entity", "customer_id=1,country=DE", "--yes", "--no-online")
    pair = {"customer_id": 1, "country": "DE"}
    found = everything(shop)
    for name, gone in (("events_sales", 2), ("tiles_pairs_g1", 1)):
        kept = [row for row in before[name] if not pair.items() <= row.items()]
        assert len(kept) == len(before[name]) - gone
        assert found[name] == kept
    assert found["tiles_spend_g1"] == before["tiles_spend_g1"]


def test_a_dry_run_and_a_refused_confirmation_change_nothing(full: Shop) -> None:
    before = everything(full)
    snapshots = {name: latest_snapshot(full.project.lake, name) for name in before}
    planned = full.json("forget", "--entity", "customer_id=1", "--dry-run")
    assert planned["dry_run"]
    assert {t["table"] for t in planned["tables"] if t["rows"]} == set(TOUCHED)
    assert "Aborted" in full.run("forget", "--entity", "customer_id=1", code=1).output
    assert {name: latest_snapshot(full.project.lake, name) for name in before} == snapshots


@pytest.mark.long
def test_a_table_with_an_owner_or_unread_events_is_refused(shop: Shop) -> None:
    before = everything(shop)
    other = deletion(shop, online=False)
    owner = ProcessHolder.of(os.getppid())
    with (
        acquire(shop.project.lake, "tiles_pairs_g1", owner),
        pytest.raises(OwnershipError, match="'tiles_pairs_g1' is owned by process"),
    ):
        other.carry_out()
    shop.sell([(2, "DE", 1, -5)])
    with pytest.raises(
        GenerationError, match="has not read 1 commits of 'events_sales'.*--bounded"
    ):
        other.carry_out()
    found = everything(shop)
    assert len(found.pop("events_sales")) == len(before.pop("events_sales")) + 1
    assert found == before
    for view in ("spend", "lands", "pairs"):
        shop.run("backfill", view, "--rebuild")
    assert deletion(shop, online=False).carry_out().rows > 0
    # what it committed itself does not count as unread
    assert deletion(shop, online=False).carry_out().rows == 0


def test_what_remains_is_reported_until_when(shop: Shop) -> None:
    lake = shop.project.lake
    create_tag(lake, "events_sales", "kept", 1)
    report = shop.json("forget", "--entity", "customer_id=1", "--yes", "--no-online")
    remains = {one["table"]: one for one in report["remains"]}
    events = remains["events_sales"]
    assert (events["snapshots"], events["tags"]) == (1, ["kept"])
    assert events["until_ms"] - events["replaced_ms"] == 2 * 3_600_000
    assert "tiles_lands_g1" not in remains


def test_a_log_hashed_with_another_salt_is_reported(
    full: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAIMON_FEATURES_REQUEST_LOG_SALT", "another salt of some length")
    report = deletion(full).carry_out()
    for rows in ("served_shop: 4 rows", "predictions_churn: 2 rows", "outcomes_churn: 2 rows"):
        assert any(rows in note and "salt" in note for note in report.notes)


def test_an_unreachable_store_stops_it_before_anything_is_deleted(shop: Shop) -> None:
    before = everything(shop)
    done = shop.run("forget", "--entity", "customer_id=1", "--yes", code=1)
    assert "online store" in done.output or "redis" in done.output
    assert everything(shop) == before


def test_a_project_with_little_to_search_has_notes_on_what_was_not(
    shop: Shop, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles never computed, a store never written, an empty log, a table of no known model."""
    monkeypatch.setenv("PAIMON_FEATURES_ONLINE_URL", redis_url)
    with (shop.folder / "features.py").open("a") as file:
        file.write(
            "fresh = pf.FeatureView('fresh', source=sales, entity=pair,\n"
            "    features=[pf.Count(windows=['1d'])])\n"
        )
    with (shop.folder / "paimon-features.toml").open("a") as file:
        file.write('[serve]\nrequest_log = "spool"\n')
    (shop.folder / "spool").mkdir()
    (shop.folder / "spool/1.arrow").write_bytes(b"not ingested yet")
    shop.run("apply")
    lake = shop.project.lake
    lake.create(served_spec("served_shop"))
    lake.create(predictions_spec("predictions_orphan"))
    report = shop.json("forget", "--entity", "customer_id=1", "--yes")
    rows = {table["table"]: table["rows"] for table in report["tables"]}
    assert rows["events_sales"] == 3
    assert rows.get("served_shop", 0) == rows.get("tiles_fresh_g1", 0) == 0
    assert report["online"] == {"spend": 0, "pairs": 0}
    [spool] = [note for note in report["notes"] if "spool" in note]
    assert "were not searched; 'paimon-features request-log' ingests them" in spool


def test_tiles_of_a_job_that_may_run_are_not_changed(shop: Shop) -> None:
    from paimon_features.lake.side_folder import generations

    before = everything(shop)
    lake = shop.project.lake
    job = {**(generations.get(lake, "spend", 1).job or {})}
    gone = f"http://127.0.0.1:{free_ports(1)[0]}"
    job |= {"kind": "stream", "engine": "flink", "local": False, "rest": gone, "process": None}
    job.pop("state")
    generations.update(lake, "spend", 1, job=job)
    with pytest.raises(OwnershipError, match="'paimon-features submit spend --stop' stops it"):
        deletion(shop, online=False).carry_out()
    assert everything(shop) == before


def test_a_row_is_theirs_by_all_keys_of_one_entity() -> None:
    types = {"shop": String, "user": Int64, "member": Bool}
    two = EntitySet.of(["shop=a,user=1", "shop=b,user=2"], types)
    rows = pa.table({"shop": ["a", "a", "b", None], "user": [1, 2, 2, 1]})
    assert two.mask(rows).tolist() == [True, False, True, False]
    named = EntitySet.of(["shop=a"], types)
    assert named.mask(pa.table({"shop": [1, 2]})).tolist() == [False, False]  # of another type
    members = EntitySet.of(["member=TRUE"], types)
    assert members.mask(pa.table({"member": [True, False, None]})).tolist() == [True, False, False]


def test_wrong_entities_are_refused_by_name(tmp_path: Path) -> None:
    types = {"customer_id": Int64, "born": Date, "member": Bool}
    for texts, message in (
        ([], "no entity is given"),
        (["customer_id"], "expected COLUMN=VALUE"),
        (["customer_id=x"], "not a valid"),
        (["customer_id=99999999999999999999"], "not a valid"),
        (["born=2011-13-01"], "not a valid"),
        (["member=yes"], "member=yes: 'yes' is not a valid"),
        (["age=3"], "unknown key of an entity 'age'; available: born, customer_id, member"),
        (["customer_id=1"] * 100_001, "100,001 entities; at most 100,000 at a time"),
        (["customer_id=1", "born=2011-12-01"], "entities of different columns"),
    ):
        with pytest.raises(RequestError, match=message):
            EntitySet.of(texts, types)
    file = tmp_path / "ids.csv"
    for content in (b"customer_id,born\n1\n", b"\xff\xfe", b"customer_id\n"):
        file.write_bytes(content)
        with pytest.raises(RequestError):
            EntitySet.read(file, types)


def test_rejected_lines_without_readable_columns_are_searched_for_the_values(shop: Shop) -> None:
    lake = shop.project.lake
    theirs = ["1,FR,10", '{"customer_id": "1"}', "[1]", '0001;"FR', "FR|1.0|x"]
    others = ['{"customer_id": 11}', '{"country": "FR"}', "11,FR,10", "2,FR,1.5", None]
    raws = [*theirs, *others]
    rows = pa.table({"reason": ["unreadable"] * len(raws), "raw": raws})
    append_arrow(lake, "rejected_sales", rows)
    report = deletion(shop, online=False).carry_out()
    [note] = [note for note in report.notes if note.startswith("rejected_sales: 8 rows")]
    assert note.endswith("; 4 have them")
    left = read_arrow(lake, "rejected_sales", ["raw"]).column("raw").to_pylist()
    assert {raw for raw in raws if raw in left} == {*others}


@given(
    # what begins or ends a field is no part of a value
    name=st.text(min_size=1).filter(
        lambda text: re.sub(r"[\s,;|\"'{}\[\]:=\0\x1c-\x1f]", "", text)
    ),
    number=st.integers(-(2**63), 2**63 - 1),
    delimiter=st.sampled_from(",;|\t"),
    form=st.sampled_from(["csv", "cut", "json", "other name"]),
)
def test_a_row_of_any_dialect_is_found_by_its_values(
    name: str, number: int, delimiter: str, form: str
) -> None:
    types = {"name": String, "number": Int64}
    entity = EntitySet(("name", "number"), types, frozenset({(name, number)}))
    line = io.StringIO()
    csv.writer(line, delimiter=delimiter).writerow(["a", name, number, "b"])
    document = {"name": name, "number" if form == "json" else "Number": number}
    raw = line.getvalue() if form in ("csv", "cut") else json.dumps(document)
    raw = raw.removesuffix("\r\n") + ('"' if form == "cut" else "")
    rows = pa.table({"raw": [raw, "nothing"], "detail": ["", ""]})
    assert RejectedRows(entity).mask(rows).tolist() == [True, False]


def test_feedback_is_found_by_the_samples_of_a_training_set(served: Shop) -> None:
    with (served.folder / "features.py").open("a") as file:
        file.write(
            "loop = pf.FeedbackSource('loop', sample_keys={'sample_id': pf.Int64})\n"
            "hard = pf.FeatureView('hard', source=loop,\n"
            "    entity=pf.Entity('sample', keys={'sample_id': pf.Int64}),\n"
            "    features=[pf.Mean('loss', windows=[None])])\n"
        )
    served.run("apply")
    project = served.project
    feedback = {"sample_id": [10, 11, 12, 10], "loss": [1.0, 2.0, 3.0, 4.0]}
    times = [served.now_ms - 1] * 4
    append_arrow(project.lake, "feedback_loop", pa.table({**feedback, "event_time_ms": times}))
    served.run("backfill", "hard")
    served.run("materialize", "hard")

    before = everything(served)
    unsearched = served.json("forget", "--entity", "customer_id=1", "--dry-run")
    [note] = [each for each in unsearched["notes"] if "feedback_loop" in each]
    assert "no table has these columns with customer_id" in note

    samples = pa.table({"customer_id": [1, 2, 1, 3], "sample_id": [10, 11, 12, None]})
    rows = samples.append_column("event_time_ms", pa.array(times))
    project.build_training_set("churn", "spend", rows)
    report = served.json("forget", "--entity", "customer_id=1", "--yes")
    counts = {table["table"]: table["rows"] for table in report["tables"]}
    assert (counts["feedback_loop"], counts["tiles_hard_g1"]) == (3, 2)
    assert report["online"]["hard"] == 2
    after = everything(served)
    for table in ("feedback_loop", "tiles_hard_g1"):
        assert after[table] == [row for row in before[table] if row["sample_id"] == 11]
    # the table that names the samples is the last: an interrupted deletion finds them again
    assert [table["table"] for table in report["tables"]][-1] == "training_churn"


def test_the_details_of_skipped_events_are_read_by_the_keys_of_the_view() -> None:
    two = EntitySet.of(["shop=a b,user=7"], {"shop": String, "user": Int64})
    details = [
        "amount | shop=a b user=7 at_ms=5",
        "amount | shop=a b user=71 at_ms=5",
        "amount | shop=a user=7 at_ms=null",
        "x | shop=y user=8 at_ms=1 | shop=a b user=7 at_ms=-5",
        "amount",
    ]
    assert two.of_skipped(details, ["shop", "user"]).tolist() == [True, False, False, True, False]
