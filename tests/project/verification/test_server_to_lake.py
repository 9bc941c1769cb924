"""From a real server to the lake and back: workers that are killed, commits that continue."""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from paimon_features.cli import cli
from paimon_features.serving.request_log.log_rows import log_schema
from paimon_features.serving.request_log.spool import COMPLETE, OPEN, read_spool
from tests.clicks import clicks_view, random_clicks
from tests.patient_stores import patient_store
from tests.project.verification.shop import Shop, clock_ms
from tests.serving.live import serving
from tests.waiting import await_true

pytestmark = pytest.mark.redis

SALT = "the salt of all servers"
FEATURES = """
import paimon_features as pf
from tests.clicks import clicks_view

view = clicks_view()
payment = pf.RequestSource("payment", schema={"amount": pf.Float64})
share = pf.Interaction("share", "ratio(amount, clicks:sum_n_1d, zero=0)", request=payment)
service = pf.FeatureService("buying_v1", [view, share])
"""


def spooled_rows(folder: Path) -> int:
    """The rows in the request log's files, also of those that are still written."""
    files = [path for path in folder.rglob("*") if path.suffix in (OPEN, COMPLETE)]
    return sum(read_spool(path, log_schema()).rows.num_rows for path in files)


@pytest.mark.long
def test_what_two_workers_served_is_what_the_lake_says(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAIMON_FEATURES_REQUEST_LOG_SALT", SALT)
    monkeypatch.setenv("PAIMON_FEATURES_ONLINE_URL", redis_url)
    view, rng = clicks_view(), random.Random(7)
    with closing(patient_store(redis_url)) as store:
        shop = Shop(tmp_path, [view], store)
        config = tmp_path / "paimon-features.toml"
        config.write_text(config.read_text() + "request_log_rate = 1.0\n")
        (tmp_path / "features.py").write_text(FEATURES)
        worker = shop.materializer(view)
        answered = 0
        with serving(tmp_path) as (connection, workers):
            for number in range(6):
                shop.commit(view, random_clicks(rng, clock_ms(), 40))
                if number != 3:
                    worker.run_once()
                for _ in range(10):
                    document = {
                        "feature_service": "buying_v1",
                        "entities": {"user": [rng.randrange(45) for _ in range(3)]},
                        "request": {"amount": rng.random()},
                    }
                    try:
                        connection.request("POST", "/get-online-features", json.dumps(document))
                        answered += connection.getresponse().read().startswith(b'{"metadata"')
                    except (http.client.HTTPException, OSError):
                        connection.close()  # its worker was killed; another one is on its way
                if number == 4:
                    # 3 entities of a view each, and the interactions of each
                    rows = 6 * answered
                    await_true(lambda: spooled_rows(tmp_path / "spool") == rows)  # noqa: B023
                    for pid in workers:
                        os.kill(pid, signal.SIGKILL)
        assert answered > 40
    done = CliRunner().invoke(cli, ["request-log", "--json", "--project", str(tmp_path)])
    assert done.exit_code == 0, done.output
    committed = json.loads(done.stdout)
    # nothing was lost with the workers
    assert committed["rows"] == 6 * answered
    assert committed["files"] > 1
    done = CliRunner().invoke(
        cli, ["verify", "--from-log", "--sample", "25", "--json", "--project", str(tmp_path)]
    )
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["requests"] == 25
    assert report["rows"] == 150
    assert report["unchecked"] == {}
