"""Backups of a project at work: what is restored continues exactly, and takes nothing twice."""

from __future__ import annotations

import os
import shutil
import stat
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from paimon_features.core.errors import ConfigurationError, SnapshotExpiredError, TableError
from paimon_features.core.times.clock import now_ms
from paimon_features.core.types.schema import Int64
from paimon_features.ingest.input_files import InputFile
from paimon_features.ingest.ledger import IngestLedger
from paimon_features.lake import append_arrow, latest_snapshot, read_arrow
from paimon_features.lake.marked_records import lost_records
from paimon_features.lake.metadata.consumers import consumers, register_consumer
from paimon_features.lake.metadata.tags import create_tag, delete_tag, tagged
from paimon_features.lake.ownership.lease import acquire, holder_of
from paimon_features.lake.specs import feedback_spec
from paimon_features.lake.storage.json_files import read_json, write_json
from paimon_features.lake.writing.table_writer import EventWriter
from paimon_features.project.backup import back_up, copying, cut, past
from paimon_features.project.backup.cut import HOLD, take_cut
from paimon_features.project.verification.parity import verify
from paimon_features.tiles.jobs import backfill as job_control
from paimon_features.tiles.local import submission as backfill_job
from tests.long_cases import quick_cases
from tests.project.operations.conftest import Shop

pytestmark = pytest.mark.redis


def restored(shop: Shop, source: Path, name: str = "restored") -> Shop:
    """The project of a backup in another place."""
    target = source.parent / name
    shop.run_plain("restore", str(source), str(target))
    copy = Shop(target)
    copy.now_ms = shop.now_ms
    assert lost_records(copy.project.lake) == []
    return copy


def customers(shop: Shop) -> list[int | None]:
    found = read_arrow(shop.project.lake, "events_sales", ["customer_id"]).column(0)
    return [value for value in found.to_pylist() if value is not None]


def assert_exact(shop: Shop) -> None:
    """Tiles, online store and events agree."""
    shop.run("materialize", "spend")
    report = verify(shop.project, "spend", settle_s=0.0)
    assert report.ok, report.differences
    assert report.compared


@pytest.mark.long
def test_a_project_whose_writer_does_not_stop_is_restored_without_loss_or_duplicate(
    shop: Shop, tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAIMON_FEATURES_ONLINE_URL", redis_url)
    project = shop.project
    writer = EventWriter.of(project.lake, project.definitions.sources["sales"], now_ms)
    stop, done, running = threading.Event(), [0], threading.Event()

    def sale(number: int, into: EventWriter) -> None:
        rows = {"customer_id": [1_000 + number], "country": ["DE"], "amount": [number]}
        at = pa.array([shop.now_ms - 5_000], pa.int64())
        table = pa.table({**rows, "at_ms": at})
        into.write(table, commit_user="till", commit_identifier=number)

    def write() -> None:
        while not stop.wait(0.02):
            sale(done[0] + 1, writer)
            done[0] += 1
            running.set()

    thread = threading.Thread(target=write)
    with acquire(project.lake, "events_sales"):
        thread.start()
        try:
            assert running.wait(60)
            before = done[0]
            made = back_up(shop.project, tmp_path / "backup")
            after = done[0] + 1
        finally:
            stop.set()
            thread.join()
        assert consumers(project.lake, "events_sales").get(HOLD) is None
        copy = restored(shop, tmp_path / "backup")

    sales = sorted(c for c in customers(copy) if c and c > 1_000)
    assert sales == list(range(1_001, 1_001 + len(sales)))
    assert before <= len(sales) <= after
    newest = latest_snapshot(copy.project.lake, "events_sales")
    assert newest is not None
    assert made.tables["events_sales"] == newest.id
    # the writer repeats what it is not sure of, and goes on
    again = EventWriter.of(copy.project.lake, copy.project.definitions.sources["sales"], now_ms)
    with acquire(copy.project.lake, "events_sales"):
        for number in range(max(1, len(sales) - 3), len(sales) + 4):
            sale(number, again)
    assert sorted(c for c in customers(copy) if c and c > 1_000) == list(
        range(1_001, 1_004 + len(sales))
    )
    copy.run("backfill", "spend", "--rebuild")
    assert_exact(copy)


@pytest.mark.parametrize("moment", quick_cases(["computing", "committed"], "committed"))
def test_a_backup_during_a_backfill_continues_with_it(
    moment: str,
    shop: Shop,
    tmp_path: Path,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PAIMON_FEATURES_ONLINE_URL", redis_url)
    folder = tmp_path / "backup"

    def copy_first(*arguments: Any) -> Any:
        back_up(shop.project, folder)
        return job_control.end_backfill(*arguments)

    def copy_once(_: object) -> None:
        if not folder.exists():
            back_up(shop.project, folder)

    if moment == "committed":
        monkeypatch.setattr(backfill_job, "end_backfill", copy_first)
        shop.project.jobs.backfill("spend", rebuild=True)
    else:
        shop.project.jobs.backfill("spend", rebuild=True, progress=copy_once)
    copy = restored(shop, folder)
    assert holder_of(copy.project.lake, "tiles_spend_g1") is None
    jobs = {job["view"]: job["state"] for job in copy.json("jobs")}
    assert jobs == {"spend": "LOST", "lands": "STOPPED", "pairs": "STOPPED"}
    copy.run("backfill", "spend")
    assert_exact(copy)


@pytest.mark.parametrize("moment", ["begun", "committed", "finished"])
def test_files_enter_once_wherever_an_ingest_was(moment: str, shop: Shop, tmp_path: Path) -> None:
    project = shop.project
    ledger = IngestLedger(project.lake, project.definitions.sources["sales"])
    file = InputFile(tmp_path / "a.csv", 12, "f00d", "csv")
    folder = tmp_path / "backup"
    events = read_arrow(project.lake, "events_sales").slice(0, 1)

    with acquire(project.lake, "events_sales"):
        run = ledger.begin([file], {}, now_ms())
        if moment == "begun":
            back_up(project, folder)
        time_ms = pa.array([run.time_ms], pa.int64())
        place = events.schema.get_field_index("ingest_time_ms")
        rows = events.set_column(place, "ingest_time_ms", time_ms)
        user = f"ingest-{run.id}_{'0' * 8}-0000-0000-0000-{'0' * 12}"
        snapshot = append_arrow(
            project.lake, "events_sales", rows, commit_user=user, commit_identifier=1
        )
        if moment == "committed":
            back_up(project, folder)
        ledger.finish(run, snapshot, None)
        if moment == "finished":
            back_up(project, folder)

    copy = restored(shop, folder).project
    there = IngestLedger(copy.lake, copy.definitions.sources["sales"])
    there.check()
    assert (there.open_run() is not None) == (moment != "finished")
    assert there.committed(run)[0] == (moment != "begun")
    assert bool(there.choose([file]).new) == (moment != "finished")


def test_a_cut_is_one_moment_although_commits_go_on(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, reads = cut._contents, [0]
    project = shop.project

    def committing(*arguments: Any) -> Any:
        reads[0] += 1
        if reads[0] in (2, 5, 9):  # in the middle of the first attempts
            shop.sell([(7, "DE", 1, -100)])
        return real(*arguments)

    monkeypatch.setattr(cut, "_contents", committing)
    found = take_cut(project.lake, project.config.state_dir)
    monkeypatch.setattr(cut, "_contents", real)
    assert found == take_cut(project.lake, project.config.state_dir)
    assert found.snapshots["events_sales"][-1] == 4

    reads[0] = 0
    monkeypatch.setattr(cut, "_contents", lambda *a: (shop.sell([(7, "DE", 1, -100)]), real(*a))[1])
    with pytest.raises(TableError, match="committed all the time"):
        take_cut(project.lake, project.config.state_dir, timeout_s=0.0)


def test_the_newest_complete_checkpoint_of_each_job_is_copied(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = shop.project
    jobs = project.config.state_dir / "checkpoints/spend/g1"
    for age, name in enumerate(
        ("a/chk-8/_metadata", "a/savepoint-7/_metadata", "a/savepoint-7/state", "b/chk-1/_metadata")
    ):
        file = jobs / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(name)
        os.utime(file, (1_000 - age, 1_000 - age))
    for name in ("a/shared/state", "a/chk-9/part"):  # chk-9 was never finished
        (jobs / name).parent.mkdir()
        (jobs / name).write_text(name)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/features.py").write_text((shop.folder / "features.py").read_text())
    (tmp_path / "other/paimon-features.toml").write_text(
        f'[project]\nname = "other"\n[lake]\nwarehouse = "{project.lake.warehouse}"\n'
        'database = "other"\n'
    )
    Shop(tmp_path / "other").run("apply")
    back_up(project, tmp_path / "backup")
    state = restored(shop, tmp_path / "backup").project.config.state_dir
    copied = {str(file.relative_to(state)) for file in state.rglob("*") if file.is_file()}
    kept = ("a/chk-8/_metadata", "a/shared/state", "b/chk-1/_metadata")
    assert copied == {f"checkpoints/spend/g1/{name}" for name in kept}
    copies = (tmp_path / "backup/warehouse").rglob("*")
    assert [file for file in copies if file.name.startswith("other.")] == []

    real = cut._time

    def replaced(folder: Path) -> int:
        if (jobs / "b").exists():  # by the next checkpoint of the job, after it was listed
            shutil.rmtree(jobs / "b")
            raise FileNotFoundError(jobs / "b")
        return real(folder)

    monkeypatch.setattr(cut, "_time", replaced)
    found = take_cut(project.lake, project.config.state_dir)
    assert {*found.checkpoints} == {f"checkpoints/spend/g1/{name}" for name in kept[:2]}
    monkeypatch.setattr(cut, "MAX_CHECKPOINT_BYTES", 20)
    with pytest.raises(TableError, match="too much to be read in one moment; stop the job"):
        take_cut(project.lake, project.config.state_dir)


def test_tags_and_consumers_are_restored_and_a_deleted_tag_fails_the_backup(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = shop.project.lake
    create_tag(lake, "events_sales", "kept", 1)
    shop.run("backup", str(tmp_path / "backup"))
    assert stat.S_IMODE((tmp_path / "backup").stat().st_mode) == 0o700
    copy = restored(shop, tmp_path / "backup").project.lake
    assert consumers(copy, "events_sales") == consumers(lake, "events_sales") != {}
    assert HOLD not in consumers(lake, "events_sales")
    assert (Path(copy.path("events_sales")) / "tag" / "tag-kept").is_file()

    real = copying._copy_table

    def deleting(*arguments: Any) -> None:
        real(*arguments)
        delete_tag(lake, "events_sales", "kept")

    monkeypatch.setattr(copying, "_copy_table", deleting)
    with pytest.raises(TableError, match="tag was deleted|tag .* was deleted"):
        back_up(shop.project, tmp_path / "second")
    with pytest.raises(ConfigurationError, match="did not end"):
        copying.restore(tmp_path / "second", tmp_path / "nowhere")


def test_relative_paths_are_those_of_the_working_folder(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shop.json("backup", "backup")
    shop.run_plain("restore", "backup", "restored")
    assert customers(Shop(tmp_path / "restored")) == customers(shop)
    assert not (tmp_path / "backup" / "project" / "lake").exists()


def test_what_cannot_be_restored_is_refused(shop: Shop, tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    found = shop.json("backup", str(folder))
    assert found["tables"]["events_sales"] == 1
    assert "is not an empty folder" in shop.run("backup", str(folder), code=2).output
    shop.run_plain("restore", str(folder), str(shop.folder), code=2)
    document = read_json(folder / "backup.json")
    assert document is not None
    write_json(folder / "backup.json", {**document, "format": 2})
    refused = shop.run_plain("restore", str(folder), str(tmp_path / "x"), code=2)
    assert "a later version wrote it" in refused.output
    assert not (tmp_path / "x").exists()
    write_json(folder / "backup.json", document)
    [newest] = (folder / "warehouse").rglob("events_sales/snapshot/snapshot-1")
    newest.unlink()
    damaged = shop.run_plain("restore", str(folder), str(tmp_path / "y"), code=1)
    assert "snapshot 1 of table 'events_sales' is missing" in damaged.output


def test_a_backup_of_somebody_else_leads_nowhere_else(shop: Shop, tmp_path: Path) -> None:
    folder, secret = tmp_path / "backup", tmp_path / "secret"
    shop.json("backup", str(folder))
    secret.mkdir()
    (secret / "key").write_text("hunter2")

    def refused(text: str, code: int = 2, name: str = "x") -> None:
        output = shop.run_plain("restore", str(folder), str(tmp_path / name), code=code).output
        assert text in output
        assert "Traceback" not in output
        assert not (tmp_path / "x").exists()

    for place, target in (
        ("project/fitted", secret), ("project/notes.py", secret / "key"), ("state/link", "/"),
        ("warehouse/features.db/events_sales/link", secret), ("warehouse/dangling", "nowhere"),
    ):  # fmt: skip
        link = folder / place
        link.parent.mkdir(parents=True, exist_ok=True)
        os.symlink(target, link)
        refused("a backup has no symbolic links")
        link.unlink()
    os.mkfifo(folder / "project" / "pipe")
    refused("is neither a file nor a folder")
    (folder / "project" / "pipe").unlink()
    config = folder / "project" / "paimon-features.toml"
    honest = config.read_text()
    document = read_json(folder / "backup.json")
    assert document is not None
    for key, path in (
        ("warehouse", str(tmp_path / "outside")), ("warehouse", "../outside"),
        ("state", "../../outside"), ("state", str(tmp_path / "outside")),
    ):  # fmt: skip
        lines = [line for line in honest.splitlines() if not line.startswith(f"{key} =")]
        section = {"warehouse": "[lake]", "state": "[project]"}[key]
        if section not in lines:
            lines.append(section)
        lines.insert(lines.index(section) + 1, f'{key} = "{path}"')
        config.write_text("\n".join(lines) + "\n")
        size = len(config.read_bytes()) - len(honest.encode())
        write_json(folder / "backup.json", {**document, "bytes": document["bytes"] + size})
        refused("pass --outside")
        assert not (tmp_path / "outside").exists()
    config.write_text(honest)
    for change in (
        {"tables": {"../../x": None}}, {"tables": ["x"]}, {"cut_ms": "now"}, {"database": "a/b"},
        {"files": document["files"] + 1}, {"bytes": document["bytes"] - 1}, {"more": 1},
    ):  # fmt: skip
        write_json(folder / "backup.json", {**document, **change})
        refused("backup", code=1)
    write_json(folder / "backup.json", document)
    shop.run_plain("restore", str(folder), str(tmp_path / "good"))


def test_what_cannot_be_backed_up_is_refused(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = shop.folder / "paimon-features.toml"
    plain = config.read_text()
    config.write_text(plain + '[flink]\ncheckpoints = "s3://bucket/checkpoints"\n')
    refused = shop.run("backup", str(tmp_path / "a"), code=2).output
    assert "[flink] checkpoints is 's3://bucket/checkpoints'" in refused
    config.write_text(plain)
    project, real = shop.project, copying._copy_table

    def dropping(*arguments: Any) -> None:
        if project.lake.exists("tiles_spend_g1"):
            project.lake.drop("tiles_spend_g1")
        real(*arguments)

    monkeypatch.setattr(copying, "_copy_table", dropping)
    with pytest.raises(TableError, match="'tiles_spend_g1' was dropped or rolled back during"):
        back_up(project, tmp_path / "b")


def test_definitions_outside_the_project_stay_where_they_are(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (shop.folder / "features.py").rename(tmp_path / "shared/features.py")
    config = shop.folder / "paimon-features.toml"
    config.write_text(config.read_text() + 'definitions = "../shared/features.py"\n')
    back_up(shop.project, tmp_path / "backup")
    assert [file.name for file in (tmp_path / "backup/project").iterdir()] == [config.name]
    (tmp_path / "shared/features.py").rename(shop.folder / "features.py")
    config.write_text(config.read_text().replace("../shared/", ""))
    (shop.folder / "fitted").mkdir()
    (shop.folder / "fitted/scaler.json").write_text("{}")
    back_up(shop.project, tmp_path / "second")
    assert (tmp_path / "second/project/fitted/scaler.json").read_text() == "{}"


def test_a_lost_online_store_and_a_lost_side_folder_are_made_again(
    served: Shop, tmp_path: Path
) -> None:
    served.run("backup", str(tmp_path / "backup"))
    side = served.project.lake.side_folder
    shutil.rmtree(side)
    assert served.run("check", "records", code=1)
    # the runbook: the folder of the newest backup, then nobody owns a table
    copied = tmp_path / "backup" / "warehouse" / side.name
    shutil.copytree(copied, side)
    assert served.run("check", "records").exit_code == 0
    served.sell([(3, "FR", 5, -10)])
    served.run("backfill", "spend", "--rebuild")
    served.project.store.delete([key for page in served.project.store.scan(b"") for key in page])
    assert_exact(served)


def test_a_copy_is_set_back_to_a_point_in_time(
    shop: Shop, tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAIMON_FEATURES_ONLINE_URL", redis_url)
    project = shop.project
    ledger = IngestLedger(project.lake, project.definitions.sources["sales"])
    first = latest_snapshot(project.lake, "events_sales")
    assert first is not None
    before = sorted(map(str, read_arrow(project.lake, "events_sales").to_pylist()))

    late = InputFile(tmp_path / "late.csv", 12, "f00d", "csv")
    with acquire(project.lake, "events_sales"):
        run = ledger.begin([late], {}, now_ms())
    shop.sell([(9, "DE", 1, -10)])
    with acquire(project.lake, "events_sales"):
        ledger.finish(run, 2, None)
    create_tag(project.lake, "events_sales", "later", 2)
    create_tag(project.lake, "events_sales", "now", 1)
    register_consumer(project.lake, "events_sales", "follower", 3)
    feedback = feedback_spec("feedback_loop", {"customer_id": Int64})
    project.lake.create(feedback)
    append_arrow(project.lake, feedback.name, pa.table({"customer_id": [1], "loss": [0.5]}))
    shop.run("backup", str(tmp_path / "backup"))

    target = tmp_path / "past"
    shop.run_plain("restore", str(tmp_path / "backup"), str(target), "--as-of", str(first.time_ms))
    copy = Shop(target)
    copy.now_ms = shop.now_ms
    lake = copy.project.lake
    assert sorted(map(str, read_arrow(lake, "events_sales").to_pylist())) == before
    assert read_arrow(lake, "feedback_loop").num_rows == 0
    assert {"follower", "now", "later"} & {
        *consumers(lake, "events_sales"),
        *tagged(lake, "events_sales"),
    } == {"now"}
    there = IngestLedger(lake, copy.project.definitions.sources["sales"])
    assert there.choose([late]).new == (late,)
    assert latest_snapshot(lake, "tiles_spend_g1") is not None
    copy.sell([(9, "FR", 2, -10)])
    copy.run("backfill", "spend", "--rebuild")
    assert_exact(copy)

    refused = tmp_path / "refused"
    monkeypatch.setattr(past, "snapshot_as_of", gone)
    error = shop.run_plain(
        "restore", str(tmp_path / "backup"), str(refused), "--as-of", str(first.time_ms), code=1
    )
    assert "cannot be set back" in error.output
    assert len(customers(Shop(refused))) == len(customers(shop))


def gone(*_: object) -> None:
    raise SnapshotExpiredError("the snapshot has expired")
