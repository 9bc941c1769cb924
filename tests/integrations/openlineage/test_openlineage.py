"""Events of OpenLineage about commands, against its JSON schemas."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from referencing import Registry, Resource

from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.integrations.openlineage import command_run
from paimon_features.integrations.openlineage.datasets import command_datasets
from paimon_features.lake import EventWriter
from paimon_features.project import Project
from tests.commands import invoke as run
from tests.http_servers import HTTPServer
from tests.waiting import LONG_S

pytest.importorskip("openlineage", reason="pip install 'paimon-features[openlineage]'")

NOW = 1_323_432_000_000
SCHEMAS = [json.loads(f.read_text()) for f in Path(__file__).with_name("schemas").glob("*.json")]
REGISTRY: Any = Registry().with_resources(
    [(schema["$id"], Resource.from_contents(schema)) for schema in SCHEMAS]
)
OF_FACETS = {
    name: {"$ref": f"{schema['$id']}#/$defs/{definition['$ref'].rsplit('/', 1)[1]}"}
    for schema in SCHEMAS
    for name, definition in schema.get("properties", {}).items()
    if "$ref" in definition
}


def check(event: dict[str, Any]) -> None:
    """The event, and each of its facets, is valid by the schema of its name."""
    [envelope] = [s for s in SCHEMAS if s["$id"].endswith("/OpenLineage.json")]
    run = {"$ref": f"{envelope['$id']}#/$defs/RunEvent"}
    found = [(run, event)]
    for owner in (event["run"], event["job"], *event["inputs"], *event["outputs"]):
        for name, facet in owner.get("facets", {}).items():
            found.append((OF_FACETS[name], facet))
    for schema, document in found:
        jsonschema.Draft202012Validator(
            schema, registry=REGISTRY, format_checker=jsonschema.FormatChecker()
        ).validate(document)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG", "OPENLINEAGE_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PAIMON_FEATURES_ONLINE_URL", "memory://")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(command_run, "WAIT_S", LONG_S)
    monkeypatch.setattr(command_run, "_REQUEST_S", LONG_S)
    monkeypatch.chdir(tmp_path)
    assert run("init", "shop").exit_code == 0
    monkeypatch.chdir(tmp_path / "shop")
    with Path("paimon-features.toml").open("a") as file:
        file.write('\n[lineage]\nopenlineage = "events.jsonl"\n')
    return tmp_path / "shop"


def events(folder: Path) -> list[dict[str, Any]]:
    file = folder / "events.jsonl"
    found = [json.loads(line) for line in file.read_text().splitlines() if line]
    file.unlink()
    for event in found:
        check(event)
    return found


def named(datasets: list[dict[str, Any]]) -> dict[str, Any]:
    return {one["name"].rsplit("/", 1)[-1]: one.get("facets", {}) for one in datasets}


def columns(facets: dict[str, Any], column: str) -> set[tuple[str, str]]:
    fields = facets["columnLineage"]["fields"][column]["inputFields"]
    return {(one["name"].rsplit("/", 1)[-1], one["field"]) for one in fields}


def test_events_tell_versions_and_columns_from_events_to_a_training_set(shop: Path) -> None:
    assert run("apply").exit_code == 0
    start, complete = events(shop)
    assert (start["eventType"], complete["eventType"]) == ("START", "COMPLETE")
    assert start["run"]["runId"] == complete["run"]["runId"]
    assert complete["job"]["namespace"] == "shop"
    assert complete["job"]["name"] == "apply"
    assert {*named(complete["outputs"])} == {"events_retail", "tiles_customer_spend_g1"}

    project = Project.open(".")
    import pyarrow as pa

    rows = {
        "invoice": ["1", "1"], "stock_code": ["a", "a"], "description": ["x", "x"],
        "quantity": [1, 2], "invoice_time_ms": [NOW - DAY_MS, NOW - HOUR_MS],
        "unit_price": [1.25, 1.25], "customer_id": [1, 1], "country": ["FR", "FR"],
    }  # fmt: skip
    source = project.definitions.source("retail")
    written = EventWriter.of(project.lake, source, lambda: NOW).write(pa.table(rows))
    assert written.written == 2, written
    assert run("backfill", "customer_spend", "--engine", "local").exit_code == 0
    start, complete = events(shop)
    assert complete["job"]["name"] == "backfill.customer_spend"
    assert complete["job"]["facets"]["jobType"]["processingType"] == "BATCH"
    events_table = named(complete["inputs"])["events_retail"]
    assert events_table["version"]["datasetVersion"].startswith("1@")
    types = {one["name"]: one["type"] for one in events_table["schema"]["fields"]}
    assert types["quantity"] == "int64"
    assert events_table["symlinks"]["identifiers"][0]["name"] == "features.events_retail"
    tiles = named(complete["outputs"])["tiles_customer_spend_g1"]
    assert tiles["version"]["datasetVersion"].startswith("1@")
    assert columns(tiles, "p_sum_amount_s2") == {
        ("events_retail", "quantity"), ("events_retail", "unit_price"),
    }  # fmt: skip
    assert columns(tiles, "customer_id") == {("events_retail", "customer_id")}

    (shop / "rows.csv").write_text(f"customer_id,event_time_ms\n1,{NOW}\n")
    done = run("training-set", "t", "--service", "churn_v1", "--rows", "rows.csv")
    assert (done.exit_code, "lineage" in done.stderr) == (0, False), done.output
    start, complete = events(shop)
    assert {*named(complete["inputs"])} == {"tiles_customer_spend_g1", "rows.csv"}
    training = named(complete["outputs"])["training_t"]
    assert columns(training, "count_7d") == {("tiles_customer_spend_g1", "p_rows")}
    assert training["version"]["datasetVersion"].startswith("1@")

    # the memory store of another process: what is told is the same
    run("materialize", "customer_spend")
    *_, complete = events(shop)
    [online] = complete["outputs"]
    assert (online["namespace"], online["name"]) == ("memory://", "shop.customer_spend")
    assert columns(online["facets"], "count_7d") == {("tiles_customer_spend_g1", "p_rows")}


MORE = """
prices = pf.TableSource("prices", event_time="since_ms",
    schema={"customer_id": pf.Int64, "since_ms": pf.Int64, "plan": pf.String})
profile = pf.TableView("profile", source=prices, entity=customer)
daily = pf.TumblingView("daily", spend, "1d", features=[pf.Count()])
"""


def test_each_command_tells_what_it_reads_and_writes(shop: Path) -> None:
    """Also one that fails: what it was asked for is known before it begins."""
    with Path("features.py").open("a") as file:
        file.write(MORE)
    Path("incomplete.yaml").write_text("name: churn\ndata: {training_set: t, service: s}\n")
    Path("events.csv").write_text(
        "invoice,stock_code,description,quantity,invoice_time_ms,unit_price,customer_id,country\n"
        f"1,a,x,1,{NOW - HOUR_MS},1.25,1,FR\n"
    )
    Path("rows.csv").write_text(f"customer_id,event_time_ms\n1,{NOW}\n")
    assert run("apply").exit_code == 0
    retail = {"events_retail", "rejected_retail"}
    tiles = {"tiles_customer_spend_g1"}
    (shop / "events.jsonl").unlink()
    for command, job, kind, inputs, outputs in (
        ("ingest files retail events.csv --engine local", "ingest.retail", "COMPLETE",
         {"events.csv"}, retail),
        ("ingest topic retail clicks --kafka k1:9092,k2:9092 --start soon", "ingest.retail",
         "FAIL", {"clicks"}, retail),
        ("ingest changes retail orders --column wrong", "ingest.retail", "FAIL",
         {"orders"}, retail),
        ("backfill customer_spend --engine local", "backfill.customer_spend", "COMPLETE",
         {"events_retail"}, tiles),
        ("derive daily", "derive.daily", "COMPLETE", tiles, {"features_daily"}),
        ("training-set --service customer_spend:count_7d,profile:plan --rows rows.csv "
         "--output joined.csv", "training-set", "COMPLETE",
         {*tiles, "events_prices", "rows.csv"}, {"joined.csv"}),
        ("maintain no_such_table", "maintain", "FAIL", {"no_such_table"}, {"no_such_table"}),
        ("train incomplete.yaml", "train.incomplete", "FAIL", set(), set()),
    ):  # fmt: skip
        done = run(*command.split())
        told = events(shop)
        assert len(told) == 2, (command, done.output)
        start, end = told
        assert (start["job"]["name"], end["job"]["name"]) == (job, job), command
        assert end["eventType"] == kind, (command, done.output)
        assert {*named(end["inputs"])} == inputs, command
        assert {*named(end["outputs"])} == outputs, command
        places = {one["namespace"] for one in [*end["inputs"], *end["outputs"]]}
        if "--kafka" in command:
            assert "kafka://k1:9092" in places, command
        if command.startswith("training-set"):
            joined = named(end["outputs"])["joined.csv"]
            assert columns(joined, "plan") == {("events_prices", "plan")}
            assert columns(joined, "count_7d") == {("tiles_customer_spend_g1", "p_rows")}


def test_what_is_at_another_place_is_named_by_that_place(shop: Path) -> None:
    project = Project.open(".")
    project.apply()
    given = {"source": "retail", "paths": ["s3://exports/2011/a.csv"]}
    [file], _ = command_datasets(project, "ingest", given)
    assert (file.namespace, file.name) == ("s3://exports", "2011/a.csv")
    given = {"view": "customer_spend", "topic": "spend", "kafka": "k1:9092, k2:9092"}
    [records], [topic] = command_datasets(project, "publish", given)
    assert (records.namespace, records.name) == ("memory://", "shop.customer_spend")
    assert (topic.namespace, topic.name) == ("kafka://k1:9092", "spend")
    given = {"name": "churn", "training_set": "t"}
    [rows], [model] = command_datasets(project, "train", given)
    assert rows.alias == "features.training_t"
    assert (model.namespace, model.name) == ("paimon-features://shop", "models.churn")


def test_an_interrupted_command_is_told_as_aborted(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Project, "apply", interrupt)
    assert run("apply").exit_code == 130
    assert [event["eventType"] for event in events(shop)] == ["START", "ABORT"]


def test_a_failure_is_told_with_its_message_and_without_secrets(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_PASSWORD", "hunter2-hunter2")
    assert run("backfill", "hunter2-hunter2", "--engine", "local").exit_code == 2
    _, fail = events(shop)
    assert fail["eventType"] == "FAIL"
    message = fail["run"]["facets"]["errorMessage"]["message"]
    assert message.startswith("unknown feature view '***'")
    # a command that only looks is not told of
    assert run("plan").exit_code == 0
    assert not (shop / "events.jsonl").exists()
    monkeypatch.setenv("OPENLINEAGE_DISABLED", "true")
    assert run("apply").exit_code == 0
    assert not (shop / "events.jsonl").exists()


class Collector(BaseHTTPRequestHandler):
    """Keeps events; answers nothing while ``silent``."""

    received: list[dict[str, Any]]
    keys: set[str | None]
    silent: threading.Event | None = None

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.received.append(json.loads(body))
        self.keys.add(self.headers["Authorization"])
        if self.silent is not None:
            self.silent.wait()
        self.send_response(201)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """No line per request."""


@pytest.fixture
def collector() -> Iterator[HTTPServer]:
    Collector.received, Collector.keys, Collector.silent = [], set(), None
    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        if Collector.silent is not None:
            Collector.silent.set()
        server.shutdown()
        thread.join()


def set_target(shop: Path, target: str) -> None:
    file = shop / "paimon-features.toml"
    file.write_text(file.read_text().replace("events.jsonl", target))


def test_events_go_to_a_server(
    shop: Path, collector: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_target(shop, f"http://127.0.0.1:{collector.server_port}")
    monkeypatch.setenv("OPENLINEAGE_API_KEY", "key-of-the-collector")
    done = run("apply")
    assert (done.exit_code, done.stderr) == (0, "")
    assert Collector.keys == {"Bearer key-of-the-collector"}
    assert [event["eventType"] for event in Collector.received] == ["START", "COMPLETE"]
    for event in Collector.received:
        check(event)


def test_the_librarys_own_variables_are_read(
    shop: Path, collector: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = shop / "paimon-features.toml"
    file.write_text(file.read_text().partition("[lineage]")[0])
    assert run("apply").exit_code == 0
    assert Collector.received == []
    monkeypatch.setenv("OPENLINEAGE_URL", f"http://127.0.0.1:{collector.server_port}")
    assert run("apply").exit_code == 0
    assert [event["eventType"] for event in Collector.received] == ["START", "COMPLETE"]


def test_a_file_of_the_current_folder_names_no_class_and_no_address(
    shop: Path, collector: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shop / "evil_transport.py").write_text("import pathlib; pathlib.Path('imported').touch()\n")
    monkeypatch.syspath_prepend(str(shop))
    address = f"http://127.0.0.1:{collector.server_port}"
    text = json.dumps({"transport": {
        "type": "evil_transport.Transport", "url": address, "append": True,
        "auth": {"type": "evil_transport.Auth"}}})  # fmt: skip
    (shop / "openlineage.yml").write_text(text)
    assert run("apply").exit_code == 0  # [lineage] names a file
    for url in (address, None):
        file = shop / "paimon-features.toml"
        file.write_text(file.read_text().partition("[lineage]")[0])
        monkeypatch.delenv("OPENLINEAGE_URL", raising=False)
        if url:
            monkeypatch.setenv("OPENLINEAGE_URL", url)
        assert run("apply").exit_code == 0
    assert [event["eventType"] for event in Collector.received] == ["START", "COMPLETE"]
    assert not (shop / "imported").exists()
    # of the user's own folder, and by name, everything counts
    monkeypatch.setenv("OPENLINEAGE_CONFIG", str(shop / "openlineage.yml"))
    assert "lineage" in run("apply").stderr
    assert (shop / "imported").exists()


def test_a_server_that_is_gone_or_silent_changes_nothing(
    shop: Path, collector: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command_run, "WAIT_S", 0.2)
    monkeypatch.setattr(command_run, "_REQUEST_S", 2.0)
    Collector.silent = threading.Event()
    set_target(shop, f"http://127.0.0.1:{collector.server_port}")
    done = run("apply")
    assert done.exit_code == 0
    assert "+ service churn_v1" in done.stdout
    assert "lineage events were not delivered: no answer" in done.stderr
    file = shop / "paimon-features.toml"
    file.write_text(file.read_text().replace(str(collector.server_port), "1"))
    monkeypatch.setattr(command_run, "WAIT_S", 60.0)
    done = run("apply")
    assert done.exit_code == 0
    assert "lineage events were not delivered: " in done.stderr
    assert "127.0.0.1" in done.stderr


def test_commands_with_datasets_declare_that_they_change_data() -> None:
    import click

    from paimon_features.cli import load_command
    from paimon_features.cli._shared_options import data_changes
    from paimon_features.integrations.openlineage.datasets import COMMANDS

    for name in COMMANDS:
        command = load_command(name)
        group = command.commands.values() if isinstance(command, click.Group) else [command]
        assert all(map(data_changes, group)), name


def test_a_run_that_changes_nothing_sends_no_event(shop: Path) -> None:
    (shop / "events.jsonl").unlink(missing_ok=True)
    for words in (
        ("apply", "--bundle", "shop.bundle"),
        ("backfill", "customer_spend", "--from", "2011-12-01", "--to", "2011-12-01", "--dry-run"),
        ("submit", "customer_spend", "--stop"),
        ("ingest", "topic", "retail", "--status"),
    ):
        run(*words)
        assert not (shop / "events.jsonl").exists(), words


def test_a_target_that_cannot_be_is_reported_and_changes_nothing(shop: Path) -> None:
    set_target(shop, "http://[")
    done = run("apply")
    assert done.exit_code == 0
    [line] = [line for line in done.stderr.splitlines() if "lineage" in line]
    assert line.startswith("warning: lineage events were not delivered: ValueError: ")
