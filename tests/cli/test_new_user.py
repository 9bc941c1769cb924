"""A new user with a CSV file of their own: from nothing to a served, explained, monitored feature.

Commands only, on the local engine, without Java.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from paimon_features.core.process.ports import free_ports
from tests.commands import run

pytest.importorskip("duckdb")


def write_sales(path: Path, count: int = 400) -> None:
    """A German export: semicolons, decimal commas, local times, an umlaut that is not UTF-8."""
    lines = ["Kunde-ID;Zeitpunkt;Betrag;Filiale"]
    for n in range(count):
        day, hour = divmod(n, 24)
        amount = f"{1000 + n % 50:,}".replace(",", ".") + f",{n % 100:02d}"
        shop = ("Köln", "Bonn", "Ulm")[n % 3]
        lines.append(f"{n % 9 + 100};{day + 1:02d}.03.2024 {hour:02d}:30;{amount};{shop}")
    path.write_bytes("\r\n".join(lines).encode("cp1252"))


def run_process(*words: str) -> str:
    """A command in a process of its own, with whose end its connections end."""
    done = subprocess.run(
        [sys.executable, "-m", "paimon_features", *words], capture_output=True, text=True
    )
    assert done.returncode == 0, (words, done.stderr)
    return done.stdout


@contextmanager
def server(folder: Path) -> Iterator[str]:
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "paimon_features", "serve", "--port", str(port)]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        while True:
            assert process.poll() is None, "the server ended by itself"
            try:
                urllib.request.urlopen(f"{url}/health/live").close()
                break
            except OSError:
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(120)


@pytest.mark.redis
def test_from_a_csv_file_to_a_served_explained_monitored_feature(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redis_url: str
) -> None:
    monkeypatch.setenv("PAIMON_FEATURES_ONLINE_URL", redis_url)
    monkeypatch.chdir(tmp_path)
    write_sales(tmp_path / "sales.csv")

    # what it saw, and what could be otherwise
    output = run("init", "shop", "--from", "sales.csv").stdout
    assert "Kunde-ID" in output
    assert "decimal comma" in output
    assert "cp1252" in output
    assert "next: cd shop && paimon-features try features.py" in output

    tried = json.loads(run("try", "shop/features.py", "sales.csv", "--json").stdout)
    assert tried[0]["events"] == 400
    assert tried[0]["rejected"] == {}
    key = tried[0]["rows"][0]["kunde_id"]
    assert not (tmp_path / "shop" / "lake").exists()

    monkeypatch.chdir(tmp_path / "shop")
    planned = run("plan").stdout
    assert "p_" not in planned
    run("apply")
    assert "400 events" in run("ingest", "files", "sales", "../sales.csv").stdout
    view = tried[0]["view"]
    run("backfill", view)
    run_process("materialize")

    at = str(tried[0]["as_of_ms"])
    found = json.loads(
        run_process("lookup", "sales_v1", "--entity", f"kunde_id={key}", "--as-of", at, "--json")
    )
    # the same values as those that were tried, now from tiles by way of Redis
    for name, value in tried[0]["rows"][0].items():
        assert found["rows"][0][name] == pytest.approx(value), name

    feature = next(n for n in tried[0]["features"] if n.startswith("sum_betrag"))
    assert "2024" in run_process(
        "lookup", view, "--explain", "--entity", f"kunde_id={key}", "--as-of", at
    )
    with server(tmp_path / "shop") as url:
        request = {"features": [f"{view}:{feature}"], "entities": {"kunde_id": [key]},
                   "as_of": int(at)}  # fmt: skip
        with urllib.request.urlopen(
            urllib.request.Request(
                f"{url}/get-online-features",
                json.dumps(request).encode(),
                {"Content-Type": "application/json"},
            )
        ) as reply:
            served = json.load(reply)
    assert str(tried[0]["rows"][0][feature]).rstrip("0") in json.dumps(served)
    monitored = run("monitor", view, "--columns", "betrag", "--range", "2024-03-01..2024-04-01",
                    "--against", "nothing").stdout  # fmt: skip
    assert "betrag" in monitored


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="a pseudo-terminal")
def test_on_a_terminal_tables_have_colours_unless_they_are_not_wanted(tmp_path: Path) -> None:
    import pty

    write_sales(tmp_path / "sales.csv", 60)
    shown = {}
    for no_colour in ("", "1"):
        main, child = pty.openpty()
        environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TERM")}
        environment |= {"TERM": "xterm-256color"} | ({"NO_COLOR": "1"} if no_colour else {})
        folder = f"shop{no_colour}"
        process = subprocess.Popen(
            [sys.executable, "-m", "paimon_features", "init", folder, "--from", "sales.csv"],
            cwd=tmp_path, env=environment, stdout=child, stderr=child, stdin=child,
        )  # fmt: skip
        os.close(child)
        read = b""
        try:
            while piece := os.read(main, 65_536):
                read += piece
        except OSError:  # the other end is closed
            pass
        os.close(main)
        assert process.wait(60) == 0, read.decode()
        shown[no_colour] = read.decode()
    assert re.search("\x1b\\[[0-9;]*[34][0-9]m|\x1b\\[1m", shown[""])
    assert not re.search("\x1b\\[(?:[0-9;]*;)?[34][0-9]m", shown["1"])
