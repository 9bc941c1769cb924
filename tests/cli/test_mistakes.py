"""Typical mistakes: each is an error that names the thing, what was expected, and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from paimon_features.cli import cli

pytest.importorskip("duckdb")
CSV = "customer_id,time,amount,shop\n" + "".join(
    f"{n % 5},{1_700_000_000_000 + n * 3_600_000},{n}.50,s{n % 2}\n" for n in range(60)
)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The files of a project that ``init --from`` proposes."""
    folder = tmp_path_factory.mktemp("template")
    (folder / "sales.csv").write_text(CSV)
    done = CliRunner().invoke(
        cli, ["init", str(folder / "shop"), "--from", str(folder / "sales.csv")]
    )
    assert done.exit_code == 0, done.output
    return {p.name: p.read_text() for p in (folder / "shop").iterdir()}


@pytest.fixture
def shop(template: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in template.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "sales.csv").write_text(CSV)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PAIMON_FEATURES_ONLINE_URL", "redis://127.0.0.1:1/0")
    return tmp_path


def edit(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new))

    return change


def write(name: str, text: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_text(text)

    return change


def no_text(folder: Path) -> None:
    (folder / "x.csv").write_bytes(bytes(range(128, 256)) * 9)


def applied(folder: Path) -> None:
    assert CliRunner().invoke(cli, ["apply"]).exit_code == 0


def nothing(folder: Path) -> None:
    pass


FEATURES, TOML = "features.py", "paimon-features.toml"
VIEW = "customer_sales"
# name: (what is wrong, the command, exit code, what the error says)
MISTAKES: dict[str, tuple[Callable[[Path], None], list[str], int, list[str]]] = {
    "a misspelt command": (nothing, ["ingets"], 2, ["'ingets'", "did you mean 'ingest'"]),
    "a command of another tool": (nothing, ["query"], 2, ["did you mean 'lookup'"]),
    "a misspelt subcommand": (nothing, ["models", "promot"], 2, ["did you mean 'promote'"]),
    "a file that is no text": (
        no_text, ["init", "other", "--from", "x.csv"], 2, ["x.csv", "0x81", "--input encoding"],
    ),
    "a misspelt option": (nothing, ["try", "--enity", "a"], 2, ["--enity", "--entity"]),
    "a misspelt column": (
        edit(FEATURES, 'pf.Max("amount"', 'pf.Max("amuont"'), ["plan"], 2,
        ["features.py, line", "amuont", "did you mean 'amount'"],
    ),
    "a misspelt type": (
        edit(FEATURES, "pf.Float64", "pf.Flaot64"), ["plan"], 2, ["line", "Flaot64", "Float64"],
    ),
    "a misspelt argument": (
        edit(FEATURES, 'tile="5min"', 'tyle="5min"'), ["plan"], 2,
        ["line", "tyle", "did you mean 'tile'"],
    ),
    "a misspelt aggregate": (
        edit(FEATURES, "pf.Mean(", "pf.Average("), ["plan"], 2, ["line", "Average", "Mean"],
    ),
    "a window without a unit": (
        edit(FEATURES, "pf.Count(windows=[", 'pf.Count(windows=["7", '), ["plan"], 2,
        ["line", "'7'", "30d"],
    ),
    "a syntax error": (
        edit(FEATURES, "import paimon_features as pf", "import paimon_features as"), ["plan"], 2,
        ["features.py, line", "SyntaxError"],
    ),
    "a key that the source does not have": (
        edit(FEATURES, 'keys={"customer_id"', 'keys={"custmer_id"'), ["plan"], 2,
        ["custmer_id", "did you mean 'customer_id'"],
    ),
    "a key of another type": (
        edit(FEATURES, '{"customer_id": pf.Int64}', '{"customer_id": pf.String}'), ["plan"], 2,
        ["customer_id", "Int64", "String"],
    ),
    "an unknown setting": (
        edit(TOML, "[online]", "[onlin]"), ["plan"], 2, ["paimon-features.toml", "onlin"],
    ),
    "a setting of the wrong type": (
        edit(TOML, "parallelism = 2", 'parallelism = "two"'), ["plan"], 2,
        ["paimon-features.toml", "parallelism", "expected int"],
    ),
    "an unknown entry of an input": (
        edit(TOML, "[online]", '[inputs.sales]\ndelimeter = ";"\n[online]'),
        ["ingest", "files", "sales", "sales.csv"], 2, ["delimeter", "did you mean 'delimiter'"],
    ),
    "an unknown engine": (
        edit(TOML, 'engine = "local"', 'engine = "duckdb"'), ["plan"], 2,
        ["engine = 'duckdb'", "'flink' or 'local'"],
    ),
    "the wrong folder": (
        nothing, ["plan", "--project", "/"], 2,
        ["no paimon-features.toml", "paimon-features init"],
    ),
    "no definitions": (
        lambda f: (f / FEATURES).unlink(), ["plan"], 2, ["features.py", "init"],
    ),
    "a project that exists": (
        nothing, ["init", ".", "--from", "sales.csv"], 2, ["already contains", "another folder"],
    ),
    "a file that does not exist": (
        nothing, ["try", FEATURES, "sale.csv"], 2, ["sale.csv", "did you mean 'sales.csv'"],
    ),
    "a spreadsheet": (
        write("sales.xlsx", "x"), ["init", "new", "--from", "sales.xlsx"], 2,
        ["unknown form", ".csv", ".parquet"],
    ),
    "an empty file": (
        write("empty.csv", ""), ["init", "new", "--from", "empty.csv"], 2,
        ["it is empty", "header"],
    ),
    "a header only": (
        write("head.csv", "a,time\n"), ["init", "new", "--from", "head.csv"], 2, ["no rows"],
    ),
    "no time": (
        write("flat.csv", "user_id,amount\n1,2.5\n2,3.5\n"), ["init", "new", "--from", "flat.csv"],
        2, ["no column has times", "--event-time"],
    ),
    "a misspelt time column": (
        nothing, ["init", "new", "--from", "sales.csv", "--event-time", "tiem"], 2,
        ["tiem", "did you mean 'time'"],
    ),
    "a misspelt entity column": (
        nothing, ["init", "new", "--from", "sales.csv", "--entity", "custmer_id"], 2,
        ["custmer_id", "did you mean 'customer_id'"],
    ),
    "a broken Parquet file": (
        write("bad.parquet", "not parquet"), ["try", FEATURES, "bad.parquet"], 2,
        ["bad.parquet", "Parquet"],
    ),
    "a file without a column": (
        write("other.csv", "time,amount\n1700000000000,2\n"), ["try", FEATURES, "other.csv"], 2,
        ["other.csv", "unknown column 'customer_id'", "--column"],
    ),
    "seconds for milliseconds": (
        nothing, ["try", FEATURES, "sales.csv", "--now", "1700000000"], 2,
        ["1700000000", "in seconds", "1700000000000"],
    ),
    "a time that is none": (
        nothing, ["try", FEATURES, "sales.csv", "--now", "last tuesday"], 2,
        ["last tuesday", "2 days ago"],
    ),
    "an unknown view": (
        nothing, ["try", FEATURES, "sales.csv", "--view", "custmer_sales"], 2,
        ["custmer_sales", VIEW],
    ),
    "an unknown entity key": (
        nothing, ["try", FEATURES, "sales.csv", "--entity", "user=7"], 2,
        ["--entity user=7", "customer_id"],
    ),
    "an entity of the wrong type": (
        nothing, ["try", FEATURES, "sales.csv", "--entity", "customer_id=anna"], 2,
        ["customer_id=anna", "Int64"],
    ),
    "an unknown source": (
        applied, ["ingest", "files", "sale", "sales.csv"], 2, ["'sale'", "sales"],
    ),
    "ingest before apply": (
        nothing, ["ingest", "files", "sales", "sales.csv"], 2, ["paimon-features apply"],
    ),
    "backfill before apply": (
        nothing, ["backfill", VIEW], 1, ["paimon-features apply"],
    ),
    "Redis is not there": (
        nothing, ["lookup", "sales_v1", "--entity", "customer_id=1"], 1,
        ["127.0.0.1:1", "PAIMON_FEATURES_ONLINE_URL"],
    ),
    "an unknown feature": (
        nothing, ["lookup", f"{VIEW}:sum_amount_3d", "--entity", "customer_id=1"], 2,
        ["sum_amount_3d", "sum_amount_"],
    ),
    "an unknown name": (nothing, ["describe", "custmer"], 2, ["custmer", "customer"]),
    "Kafka without a topic": (
        nothing, ["init", "new", "--from", "kafka://broker:9092"], 2, ["kafka://HOST:PORT/TOPIC"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.usefixtures("read_here")
def test_a_mistake_is_an_error_that_says_what_to_do(mistake: str, shop: Path) -> None:
    change, words, code, messages = MISTAKES[mistake]
    change(shop)
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == code, (done.output, done.exception)
    assert isinstance(done.exception, SystemExit)
    for message in messages:
        assert message in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_old_data_gives_a_time_that_can_be_used(shop: Path) -> None:
    done = CliRunner().invoke(cli, ["try", FEATURES, "sales.csv", "--now", "now"])
    assert done.exit_code == 0, done.output
    assert "the newest event is of 2023-11-17" in done.stdout
    assert "leave out --now" in done.stdout


def test_times_in_another_unit_are_counted_and_shown(shop: Path) -> None:
    text = CSV.replace(",17", ",x17")
    (shop / "sales.csv").write_text(text)
    done = CliRunner().invoke(cli, ["try", FEATURES, "sales.csv"])
    assert done.exit_code == 2
    assert "wrong_type" in done.stderr
    assert "no row of the file is an event" in done.stderr
