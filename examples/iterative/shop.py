"""A project with the retail log, and the data that the iterations need."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from paimon_features.core.errors import ConfigurationError
from paimon_features.core.types.array_types import Floats, Ints
from paimon_features.core.windows import DAY_MS, floor_ms
from paimon_features.lake import EventWriter, read_arrow
from paimon_features.project import Project

HERE = Path(__file__).parent
LOG = HERE.parent / "retail" / "data" / "online_retail.parquet"
KEYS = ("customer_id", "stock_code")


@dataclass(frozen=True)
class Purchases:
    """Numbers of purchases by customer and product: a sparse matrix in coordinate format.

    ``customer`` and ``product`` are positions in ``customers`` and ``products``, which ascend;
    each pair occurs once.
    """

    customers: Ints
    products: tuple[str, ...]
    customer: Ints
    product: Ints
    times: Floats


def make_project(into: Path, rows: int | None = None) -> Project:
    """Create a project in ``into`` with the log (or its first rows) and the tiles of both views.

    An existing project is opened.
    """
    if (into / "paimon-features.toml").exists():
        return Project.open(into)
    into.mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "features.py", into)
    (into / "paimon-features.toml").write_text('[project]\nname = "iterative"\n', "utf-8")
    project = Project.open(into)
    project.apply()
    log = pq.read_table(LOG)[:rows]
    retail = project.definitions.source("retail")
    EventWriter.of(project.lake, retail, log_end).write(log)
    for view in ("bought", "habits"):
        project.jobs.backfill(view)
    return project


def log_end() -> int:
    """Return the time of the log's last event."""
    end: int = pc.max(pq.read_table(LOG, columns=["invoice_time_ms"])["invoice_time_ms"]).as_py()
    return end


def read_purchases(project: Project, least_buyers: int = 5) -> Purchases:
    """Read the tiles of ``bought``, without products that fewer customers bought.

    Postage and similar items, whose codes start with a letter, are excluded.
    """
    view = project.view("bought")
    (purchases,) = view.features[0].partials
    tiles = read_arrow(project.lake, project.generation(view).table, [*KEYS, purchases])
    # one tile per day: sum over all days
    pairs = tiles.group_by([*KEYS]).aggregate([(purchases, "sum")])
    buyers = pairs.group_by("stock_code").aggregate([("customer_id", "count")])
    enough = buyers.filter(pc.greater_equal(buyers["customer_id_count"], least_buyers))
    pairs = pairs.filter(pc.is_in(pairs["stock_code"], enough["stock_code"]))
    pairs = pairs.filter(pc.match_substring_regex(pairs["stock_code"], "^[0-9]"))
    pairs = pairs.sort_by([(key, "ascending") for key in KEYS])
    customers, customer = np.unique(pairs["customer_id"].to_numpy(), return_inverse=True)
    codes = pairs["stock_code"].to_numpy(zero_copy_only=False)
    products, product = np.unique(codes, return_inverse=True)
    times = pairs[f"{purchases}_sum"].to_numpy().astype(np.float64)
    return Purchases(customers, tuple(products), customer, product, times)


def will_buy(project: Project, days: int) -> tuple[pa.Table, Floats, Floats]:
    """Return one sample per customer at ``days`` before the end of the log.

    The result is the customers' features at that time, the same as a matrix (heavy tails in
    logarithms, each column with mean 0 and deviation 1, then a column of ones), and whether they
    bought afterwards.
    """
    log = read_arrow(project.lake, "events_retail", ["customer_id", "invoice_time_ms", "quantity"])
    log = log.filter(log["customer_id"].is_valid())
    end = pc.max(log["invoice_time_ms"]).as_py()
    at = floor_ms(end - days * DAY_MS, DAY_MS)
    bought = log.filter(pc.greater(log["quantity"], 0))
    before = pc.unique(log.filter(pc.less(log["invoice_time_ms"], at))["customer_id"])
    if not len(before):
        raise ConfigurationError(
            f"the log has no events {days} days before its end, and therefore no customers to "
            "predict; use fewer days (--days) or more of the log (--rows)"
        )
    since = bought.filter(pc.greater_equal(bought["invoice_time_ms"], at))["customer_id"]
    rows = pa.table({"customer_id": before.cast(pa.int64()).sort()})
    rows = rows.append_column("event_time_ms", pa.repeat(pa.scalar(at, pa.int64()), len(rows)))
    features = project.get_historical_features("habits_v1", rows)
    names = [name for name in features.column_names if name not in rows.column_names]
    columns = {name: features[name].fill_null(0).to_numpy().astype(np.float64) for name in names}
    columns["last_bought_ms_365d"] = (at - columns["last_bought_ms_365d"]) / DAY_MS
    x = np.stack(
        [np.sign(column) * np.log1p(np.abs(column)) for column in columns.values()], axis=1
    )
    x = (x - x.mean(axis=0)) / np.maximum(x.std(axis=0), 1e-12)
    y = pc.is_in(features["customer_id"], pc.unique(since)).to_numpy().astype(np.float64)
    return features, np.hstack([x, np.ones((len(x), 1))]), y
