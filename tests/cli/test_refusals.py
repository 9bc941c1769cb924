"""Options that exclude or require each other, and what commands say of an odd but valid use."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from paimon_features.cli import cli
from tests.commands import run
from tests.shop_projects import SHOP, make_project

pytest.importorskip("duckdb")
FEATURES = """
import paimon_features as pf

sales = pf.EventSource(
    "sales",
    schema={"customer_id": pf.Int64, "time": pf.Int64, "amount": pf.Float64},
    event_time="time",
)
customer = pf.Entity("customer", keys={"customer_id": pf.Int64})
spend = pf.FeatureView(
    "spend", source=sales, entity=customer, features=[pf.Sum("amount", windows=["1d"])]
)
all_sales = pf.FeatureView(
    "all_sales", source=sales, entity=pf.Entity("everything", keys={}), buckets=1,
    features=[pf.Count(windows=["1d"])],
)
rates = pf.TableView(
    "rates",
    source=pf.TableSource(
        "rates",
        schema={"shop_id": pf.Int64, "time": pf.Int64, "rate": pf.Float64},
        event_time="time",
    ),
    entity=pf.Entity("shop", keys={"shop_id": pf.Int64}),
    columns=["rate"],
)
service = pf.FeatureService("spend_v1", [spend])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shop")
    make_project(folder, FEATURES, SHOP + 'engine = "local"\n')
    rows = (f"{n % 5},{1_700_000_000_000 + n * 3_600_000},{n}\n" for n in range(30))
    (folder / "sales.csv").write_text("customer_id,time,amount\n" + "".join(rows))
    return folder


@pytest.fixture(autouse=True)
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PAIMON_FEATURES_ONLINE_URL", "memory://")


FIT = ("fit", "standard_scaler", "--view", "spend")
OUTCOMES = ("models", "record-outcomes", "churn")
REFUSED: list[tuple[tuple[str, ...], str]] = [
    (
        ("ingest", "files", "sales", "sales.csv", "--engine", "flink", "--input", "delimiter=;"),
        "[inputs.sales] delimiter: Flink reads files as they are; add --engine local",
    ),
    (
        ("ingest", "files", "sales", "sales.csv", "--input", "delimiter"),
        "--input delimiter: expected NAME=VALUE, as delimiter=;",
    ),
    (("init", "new", "--entity", "a"), "--entity, --input and --kafka go with --from"),
    (
        ("init", "new", "--from", "sales.csv", "--kafka", "tls=true"),
        "--kafka goes with --from kafka://BROKER/TOPIC",
    ),
    (
        ("init", "new", "--from", "kafka://b:9092/t", "--kafka", "tsl=true"),
        "--kafka tsl: expected NAME=VALUE with one of the names: tls, tls_ca",
    ),
    (
        ("init", "new", "--from", "kafka://b:9092/t", "--kafka", "tls=yes"),
        "--kafka tls=yes: expected tls=true or tls=false",
    ),
    (("init", "new", "--from-feast", ".", "--from", "sales.csv"), "'--from' does not apply to"),
    (("submit", "spend", "--stop", "--bounded"), "'--bounded' does not apply to --stop"),
    (("backfill", "spend", "--from", "2024-01-01"), "pass both --from and --to"),
    (
        ("backfill", "spend", "--from", "2024-01-02", "--to", "2024-01-01"),
        "--from 2024-01-02 is after --to 2024-01-01",
    ),
    (
        ("backfill", "spend", "--from", "2024-01-01", "--to", "2024-01-01", "--rebuild"),
        "'--rebuild' does not apply to --from and --to",
    ),
    (("check", "sizing", "--since", "1d"), "'--since' does not apply to 'check sizing'"),
    (("fitted", "--export"), "--export and --onnx require NAME"),
    (("models", "promote"), "pass the NAME and VERSION to promote"),
    (("models", "promote", "churn", "--publish"), "does not apply to --publish"),
    (("models", "compare", "churn", "--manifests"), "--manifests requires two versions"),
    (("training-set", "--service", "f", "--rows", "r"), "pass either the NAME of a table or"),
    (("training-set", "t", "--service", "f", "--rows", "r", "--statuses"), "requires --output"),
    (("apply", "--bundle", "a.bundle", "--take-over"), "--bundle takes no other option"),
    (("apply", "--bundle"), "nowhere to publish: pass --bundle FILE or --bundle online, or"),
    ((*FIT, "--columns", "amount", "--rows", "sales.csv"), "--rows requires --features"),
    (
        (*FIT, "--features", "a", "--rows", "sales.csv", "--as-of", "2024-01-01"),
        "--rows have their own times; they cannot be combined with --as-of",
    ),
    ((*FIT, "--features", "a", "--follow"), "--follow and --from require --columns"),
    (
        (*FIT, "--columns", "amount", "--follow", "--as-of", "2024-01-01"),
        "--follow reads new data; it cannot be combined with --as-of",
    ),
    (
        (*FIT, "--columns", "amount", "--follow", "--from", "events"),
        "--follow reads tiles; it cannot be combined with --from events",
    ),
    ((*FIT, "--columns", "amount", "--commits", "1"), "--commits requires --follow"),
    ((*FIT, "--columns", "amount,amount"), "'amount,amount': expected distinct names"),
    ((*FIT, "--columns", "amount", "--set", "ddof"), "--set ddof: expected KEY=VALUE"),
    (("forget",), "pass either --entity or --file"),
    (("materialize", "--listen", "9464"), "--listen requires --follow"),
    (("materialize", "--shard", "4/4"), "--shard 4/4: expected i/n with 0 <= i < n"),
    (("monitor", "spend", "--features", "a", "--from", "tiles"), "--from requires --columns"),
    (("monitor", "spend", "--columns", "a", "--features", "b"), "pass --columns or --features"),
    (("monitor", "spend", "--columns", "amount", "--rows", "sales.csv"), "--rows requires"),
    (("monitor", "spend", "--columns", ","), "',': expected names, each once"),
    (
        ("monitor", "spend", "--columns", "amount", "--range", "2024"),
        "--range 2024: expected A..B, or A.. or ..B",
    ),
    (("submit", "spend", "--rebuild", "--resume"), "--rebuild starts over; it cannot be combined"),
    (("submit", "spend", "--checkpoint", "chk-1"), "--checkpoint requires --rollback"),
    (
        ("backfill", "spend", "--engine", "local", "--from-generation", "1"),
        "--from-generation copies in this process; it takes no engine",
    ),
    (
        ("backfill", "spend", "--engine", "flink", "--memory", "1GB"),
        "--memory requires --engine local",
    ),
    (
        ("backfill", "spend", "--engine", "local", "--cluster", "h:1"),
        "--engine local runs in this process; --cluster requires --engine flink",
    ),
    (
        ("training-set", "--service", "f", "--rows", "r", "--output", "o.csv", "--cluster", "h:1"),
        "--cluster goes with --engine flink",
    ),
    (
        ("derive", "t", "--replace", "--output", "a.parquet"),
        "--replace applies to the table; a file is always replaced",
    ),
    (("derive", "t", "--as-of", "2024-01-01"), "--as-of requires --output"),
    *(
        ((*words, "missing/x.html"), "cannot write missing/x.html: no such folder: missing")
        for words in (
            ("plan", "--out"),
            ("describe", "--graph", "--output"),
            ("training-set", "--service", "f", "--rows", "r", "--output"),
            ("derive", "t", "--output"),
            ("monitor", "spend", "--columns", "amount", "--out"),
            ("models", "compare", "churn", "--out"),
            ("fitted", "scaler", "--onnx"),
        )
    ),
    (("sql", "SELECT 1", "--param", "a"), "--param a: expected NAME=VALUE"),
    (("check", "sizing", "all_sales"), "no feature view with windows that can be served online"),
    (
        ("check", "sizing", "--entities", "many"),
        "--entities many: expected numbers such as 1e6,250000000",
    ),
    (("verify",), "pass FEATURES; --since, --until and --service require --from-log"),
    (("verify", "a:b", "--from-log"), "--from-log takes --service, not FEATURES"),
    (("verify", "--model", "churn"), "--model requires --predictions"),
    (("serve", "token"), "pass at least one --service, --view, --model or --role"),
    (("serve", "token", "--view", "spent"), "did you mean 'spend'"),
    (("models", "quantise", "churn"), "Missing argument '{int8-static|int8-dynamic|fp16}'"),
    (("models", "quantise", "a b", "fp16"), "'a b': expected NAME@VERSION, such as churn@3"),
    (("retrain", "churn", "--rounds", "1"), "--rounds requires --follow"),
    (("retrain", "churn", "min_rows"), "'min_rows': expected SETTING=VALUE: retrain.min_rows=100"),
    (("drop", "feature-view", "spend", "--yes"), "still defined, and 'apply' would make it again"),
    (("cluster", "run", "taskmanager"), "--address"),
    (("jobs", "iterate", "a.py", "--detach"), "--detach requires --cluster and excludes --watch"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "message"), REFUSED, ids=[" ".join(w) for w, _ in REFUSED])
def test_a_combination_that_cannot_be_is_refused(words: tuple[str, ...], message: str) -> None:
    before = sorted(Path().rglob("*"))
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == 2, (done.output, done.exception)
    assert message in done.stderr
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "module", "message"),
    [
        (("retrain", "churn", "retrain.x=[1"), "yaml", "'retrain.x=[1': the value cannot be read"),
        (("train", "c.yaml", "--show", "-m"), "hydra", "--show is for a single run, not for -m"),
        (("train", "c.yaml", "--jobs", "2"), "hydra", "--jobs is for -m and --trials"),
    ],
)
def test_a_training_that_cannot_be_is_refused(
    words: tuple[str, ...], module: str, message: str
) -> None:
    pytest.importorskip(module)
    Path("c.yaml").write_text(
        "defaults: [base, _self_]\nname: a\ndata: {training_set: t, service: spend_v1}\n"
    )
    assert message in run(*words, code=2).stderr


def test_the_shell_that_runs_must_be_known_to_complete_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    stderr = run("--show-completion", code=2).stderr
    assert "unknown shell 'tcsh'; available: bash, fish, zsh" in stderr


def test_an_error_of_ours_shows_where_it_arose_if_that_is_wanted() -> None:
    assert "Traceback" not in run("ingest", "files", "sale", "sales.csv", code=2).stderr
    stderr = run("--verbose", "ingest", "files", "sale", "sales.csv", code=2).stderr
    assert "Traceback" in stderr
    assert "error: " in stderr.splitlines()[-1]


def test_an_error_of_the_operating_system_is_one_line() -> None:
    """``/dev/full`` behaves as a full disk."""
    stderr = run("describe", "--graph", "--output", "/dev/full", code=1).stderr
    assert stderr == "error: [Errno 28] No space left on device\n"
    assert "Traceback" in run("-v", "describe", "--graph", "--output", "/dev/full", code=1).stderr


def test_a_bundle_is_a_file(folder: Path) -> None:
    output = run("apply", "--bundle", "a.bundle").stdout
    size = (folder / "a.bundle").stat().st_size
    assert output == f"shop: published {size:,} bytes to {folder / 'a.bundle'}\n"
    published = json.loads(run("apply", "--bundle", "a.bundle", "--json").stdout)
    assert published == {"bundle": str(folder / "a.bundle"), "bytes": size}
    (folder / "a.bundle").unlink()


def test_values_of_every_kind_are_json() -> None:
    statement = (
        "SELECT DATE '2024-01-02' d, TIME '01:02:03' t, 'ab'::BLOB b, [1, 2] l, {'a': 1} s, "
        "'nan'::DOUBLE n, 1.50::DECIMAL(4, 2) p, 3::HUGEINT h, NULL z"
    )
    (row,) = json.loads(run("sql", statement, "--json").stdout)
    assert row == {
        "d": "2024-01-02", "t": "01:02:03", "b": "YWI=", "l": [1, 2], "s": {"a": 1}, "n": None,
        "p": "1.50", "h": 3, "z": None,
    }  # fmt: skip


def test_nothing_is_deleted_of_an_entity_until_the_word_is_typed() -> None:
    words = ["forget", "--entity", "shop_id=1", "--no-online"]
    done = CliRunner().invoke(cli, words, input="yes\n")
    assert done.exit_code == 1
    assert "0 rows would be deleted" in done.stdout
    assert "nothing was deleted: 'forget' was not typed" in done.stderr


def test_sizes_are_estimated_for_any_number_and_name_what_is_left_out() -> None:
    output = run("check", "sizing", "--entities", "1,1e13").stdout
    assert "all_sales: not served online" in output
    assert " PiB " in output
    assert " B " in output


def test_what_has_no_record_online_is_named(folder: Path) -> None:
    done = run("materialize", "--json")
    assert "skipped, exact windows are read from the lake: all_sales" in done.stderr


@pytest.mark.long
def test_the_loader_of_a_table_of_the_project_is_inspected() -> None:
    run("ingest", "files", "sales", "sales.csv")
    output = run("inspect-loader", "events_sales").stdout
    assert output.startswith("table events_sales, snapshot 1: 30 rows\n")
    assert "KiB" in output


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """Output goes to a terminal of 40 columns; a function that returns what it shows."""
    pty = pytest.importorskip("pty")
    main, child = pty.openpty()

    def shown() -> str:
        file.write("\0")  # one read may return the first part alone
        file.flush()
        text = b""
        while not text.endswith(b"\0"):
            text += os.read(main, 10_000)
        return text[:-1].decode()

    with monkeypatch.context() as patched, open(child, "w", encoding="utf-8") as file:
        patched.setenv("COLUMNS", "40")
        patched.setenv("TERM", "xterm")
        patched.delenv("NO_COLOR", raising=False)
        patched.setattr(sys, "stdout", file)
        patched.setattr(sys, "stderr", file)
        yield shown
    os.close(main)


def test_tables_on_a_terminal_have_colours_and_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    from paimon_features.cli._tables import table_lines

    rows = [("VIEW", "", "LAG", "STATE"), ("spend", "", "2", "behind"), ("a" * 60, "", "10", "ok")]
    with terminal(monkeypatch):
        lines = table_lines(rows)
        plain = table_lines(rows[1:2], "  ", heading=False)
        nothing = table_lines([])
    assert lines[0].startswith("\x1b[1mVIEW")
    assert any("\x1b[33mbehind" in line for line in lines)
    assert len(lines) > len(rows)  # the long name is on several lines
    assert plain[0].startswith("  spend  2  \x1b[33mbehind")
    assert nothing == []


def test_progress_on_a_terminal_is_one_line_that_is_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from paimon_features.cli._progress import Progress

    with terminal(monkeypatch) as shown:
        with Progress("reading", unit="rows", ticks=False) as progress:
            progress.began -= 10  # as if it took that long
            progress.update(50, 200)
            progress.message("half of it")
            progress.start("sorting")
        text = shown()
    assert "\rreading:  25.0 %, 50 of 200 rows" in text
    first, _, rest = text.partition("half of it")
    assert first.endswith(" \r")
    assert "25.0 %" not in rest
