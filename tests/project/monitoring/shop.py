"""A shop with statistics of its events, in a real lake, and those events as rows."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from paimon_features.core.windows import DAY_MS, HOUR_MS
from paimon_features.lake import append_arrow
from paimon_features.project import Project
from paimon_features.project.monitoring.view_reader import ViewReader
from tests.shop_projects import make_project

START = 15_000 * DAY_MS
COUNTRIES = ("FR", "DE", "UK")
EDGES = (0.0, 1.0, 2.0, 5.0, 10.0, 50.0)
DEFINITIONS = f"""
import paimon_features as pf

shop = pf.EventSource("shop", event_time="t", schema={{
    "customer_id": pf.Int64, "t": pf.Int64, "price": pf.Float64, "items": pf.Int64,
    "noise": pf.Float64, "country": pf.String, "gift": pf.Bool}})
spend = pf.FeatureView("spend", source=shop,
    entity=pf.Entity("customer", keys={{"customer_id": pf.Int64}}),
    derive={{"amount": "items * price"}}, where="items <> 3",
    features=[pf.StdDev("price", windows=["1d"], scale=2), pf.Min("price"), pf.Max("price"),
        pf.Sum("amount", windows=["30d"], scale=2), pf.Count(windows=["7d"]),
        pf.Last("country", windows=["30d"])])
kept = pf.statistics_view("kept", shop, [
    pf.Numbers("price", scale=2, edges={EDGES}), pf.Numbers("items"),
    pf.Numbers("amount", scale=4, edges=pf.linear_edges(0, 100, 20)),
    pf.Numbers("noise", center=100.0), pf.Categories("country", {list(COUNTRIES)}),
    pf.Categories("gift", [True, False])],
    tile="1h", derive={{"amount": "items * price"}}, where="items <> 3")
"""


@dataclass
class Shop:
    """The project, and all events that were committed, as rows."""

    project: Project
    rows: list[dict[str, Any]]

    def commit(self, rows: list[dict[str, Any]]) -> None:
        """One commit of events."""
        schema = self.project.definitions.source("shop").schema
        table = pa.table({n: pa.array([r[n] for r in rows], k.arrow) for n, k in schema.items()})
        days = pa.array((np.array([r["t"] for r in rows]) // DAY_MS).astype(np.int32))
        append_arrow(self.project.lake, "events_shop", table.append_column("event_day", days))
        self.rows += rows

    def tile(self) -> None:
        """Compute the tiles of all events."""
        for view in ("kept", "spend"):
            self.project.jobs.backfill(view, rebuild=True)

    def reader(self, view: str = "kept") -> ViewReader:
        """The view at its newest snapshots."""
        definition = self.project.definitions.view(view)
        record = self.project.generation(definition.compiled)
        return ViewReader(self.project.lake, definition, record)

    def members(self, since: float = -np.inf, until: float = np.inf) -> list[dict[str, Any]]:
        """The events of a range that the statistics are of, with their derived column."""
        found = [r for r in self.rows if since <= r["t"] < until]
        out = []
        for row in found:
            if row["items"] is None or row["items"] == 3:
                continue
            price = row["price"]
            out.append({**row, "amount": None if price is None else row["items"] * price})
        return out


def open_shop(folder: Path) -> Shop:
    """A shop without events."""
    project = make_project(folder, DEFINITIONS)
    return Shop(project, [])


def random_rows(
    seed: int, count: int, *, days: float = 3, shift: float = 0.0
) -> list[dict[str, Any]]:
    """Events with nulls, prices in cents, all times within the days from ``START``."""
    rng = random.Random(seed)
    return [
        {
            "customer_id": rng.choice([1, 2, 3, 4, 5, None]),
            "t": START + rng.randrange(int(days * DAY_MS) // HOUR_MS * 4) * (HOUR_MS // 4),
            "price": rng.choice([None, round(rng.lognormvariate(1 + shift, 1), 2), 1.0]),
            "items": rng.choice([None, 1, 2, 3, 7, -4]),
            "noise": rng.choice([None, rng.gauss(100.0, 0.5)]),
            "country": rng.choice([None, *COUNTRIES]),
            "gift": rng.choice([None, True, False]),
        }
        for _ in range(count)
    ]
