"""Times of versions on Flink: rounded up as by the local engine, in every format."""

from __future__ import annotations

from pathlib import Path

import pytest

from paimon_features.ingest.flink.files import ingest_files
from paimon_features.lake import read_arrow
from tests.ingest.local.test_version_times import CONFIG, DEFINITIONS, UP, write
from tests.long_cases import quick_cases
from tests.shop_projects import make_project

pytestmark = pytest.mark.flink


@pytest.mark.parametrize("form", quick_cases(["csv", "jsonl", "parquet"], "csv"))
def test_flink_rounds_the_times_of_versions_up_as_well(tmp_path: Path, form: str) -> None:
    project = make_project(tmp_path, DEFINITIONS, CONFIG)
    source, state_dir = project.definitions.source("prices"), project.config.state_dir
    done = ingest_files(project.lake, source, [write(project, form)], state_dir=state_dir)
    assert done.accepted == 3
    assert read_arrow(project.lake, "events_prices").sort_by("item")["since"].to_pylist() == UP
