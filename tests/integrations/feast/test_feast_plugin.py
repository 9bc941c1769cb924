"""The Feast plugin, in an environment of its own: Feast's pins are not those of this project.

``make feast-test`` creates that environment and names its Python in PAIMON_FEATURES_FEAST_PYTHON.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.project import Project
from tests.commands import run
from tests.shop_projects import started_shop

PYTHON = os.environ.get("PAIMON_FEATURES_FEAST_PYTHON")
pytestmark = [
    pytest.mark.redis,
    pytest.mark.skipif(PYTHON is None, reason="PAIMON_FEATURES_FEAST_PYTHON (make feast-test)"),
]

ROOT = Path(__file__).parents[3]
NOW = 1_323_432_000_000


@pytest.fixture
def project(tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Project:
    times = [NOW - 2 * DAY_MS, NOW - 4 * HOUR_MS, NOW - HOUR_MS]
    project = started_shop(tmp_path, redis_url, monkeypatch, {12346: times})
    run("materialize", "customer_spend")
    return project


def checks(project: Project, folder: Path, *more: str) -> dict[str, Any]:
    assert PYTHON is not None
    repository = folder / "feast"
    repository.mkdir()
    script = ROOT / "tests/integrations/feast/feast_checks.py"
    done = subprocess.run(
        [PYTHON, str(script), str(project.root), str(repository), *more],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-8_000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_feast_repository_reads_and_writes_through_both_stores(
    project: Project, tmp_path: Path
) -> None:
    found = checks(project, tmp_path)
    # the clock of an online read is now: the newest values that any client reads
    [expected, *_] = project.get_online_features("churn_v1", {"customer_id": [12346]}).to_pylist()
    for name, value in expected.items():
        assert found["service"][name][0] == value
    assert found["service"]["sum_amount_1h"][2] is None
    assert found["mixed"] == {
        "customer_id": [12346, 12347, 1],
        "count_7d": [expected["count_7d"], None, None],
        "plan": ["gold", "free", None],
        "score": [0.5, 0.75, None],
    }
    assert found["pushed"] == ["gold", "silver", None]
    assert found["rows"] == [5]
    # rows keep their order; an event at the time of a row is not seen, a row of a table is
    assert found["history"] == {
        "customer_id": [12347, 12346, 12346],
        "label": [1, 0, 1],
        "customer_spend__sum_amount_1d": [None, 5.0, 2.5],
        "plans__plan": ["silver", "gold", None],
        "scores__score": [0.75, 0.5, 0.25],
    }
    assert sorted(found["saved"]) == [0.25, 0.5, 0.75]
    assert sorted(found["labels"]) == [0, 1, 1]
    assert found["of_sql"] == [0.5]
    assert "paimon-features materialize customer_spend" in found["refused"]
    written, records = found["after_teardown"]
    assert written == []
    assert records == ["pf:{shop:customer_spend}#state"]
