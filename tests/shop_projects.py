"""Projects of tests, and their commands as a user types them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from paimon_features.lake import append_arrow
from paimon_features.lake.side_folder import generations
from paimon_features.project import Project
from paimon_features.testing.reference.tiler import tile_table
from tests.commands import run
from tests.patient_stores import PATIENT_TOML, make_patient

SHOP = f'[online]\n{PATIENT_TOML}[project]\nname = "shop"\n'


def write_project(folder: Path, features: str, config: str = SHOP) -> Project:
    """A project with these definitions, not applied."""
    (folder / "features.py").write_text(features)
    (folder / "paimon-features.toml").write_text(config)
    return Project.open(folder)


def make_project(folder: Path, features: str, config: str = SHOP) -> Project:
    """A project with these definitions, applied."""
    project = write_project(folder, features, config)
    project.apply()
    return project


def started_shop(
    folder: Path,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    events: Mapping[int, Sequence[int]],
    more: str = "",
) -> Project:
    """The project that ``init`` writes, applied: for each customer purchases of 2.5 at times.

    ``more`` is appended to its definitions. Commands run in its folder, and write wide tables.
    """
    monkeypatch.setenv("PAIMON_FEATURES_ONLINE_URL", redis_url)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(folder)
    run("init", "shop")
    monkeypatch.chdir(folder / "shop")
    make_patient(Path("paimon-features.toml"))
    with Path("features.py").open("a") as file:
        file.write(more)
    project = Project.open(".")
    project.apply()
    commit_purchases(project, [purchase(c, t) for c, times in events.items() for t in times])
    return project


def purchase(customer: int, t: int, quantity: int = 2, price: float = 1.25) -> dict[str, Any]:
    """An event of that project."""
    return {
        "invoice": "1", "stock_code": "a", "description": None, "quantity": quantity,
        "invoice_time_ms": t, "unit_price": price, "customer_id": customer, "country": "France",
    }  # fmt: skip


def commit_purchases(project: Project, events: Sequence[Mapping[str, Any]]) -> None:
    """Commit the tiles of these purchases."""
    view = project.definitions.view("customer_spend")
    record = generations.load(project.lake, view.name)[0]
    append_arrow(project.lake, record.table, tile_table(view, events))
