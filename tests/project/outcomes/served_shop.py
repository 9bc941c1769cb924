"""A shop whose models are served and logged, in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paimon_features.core.configuration.project_config import ServeConfig
from paimon_features.online.store import MemoryStore
from paimon_features.online.store.published_models import ServedModel
from paimon_features.serving.http.definitions.definition_set import DefinitionSet
from paimon_features.serving.http.definitions.served_models import ModelSet
from paimon_features.serving.http.server.app import FeatureApp
from paimon_features.serving.http.server.model_reload import ModelReloader
from paimon_features.serving.request_log.commit import (
    CommitStats,
    SpoolCommitter,
    prediction_folders,
    prediction_log_of,
)
from paimon_features.serving.request_log.prediction_log import PredictionLog
from tests.clicks import CLICKS, clicks_view
from tests.project.verification.shop import NAME, Shop, clock_ms
from tests.serving.http.conftest import Answer, send_request
from tests.serving.prediction.networks import linear, number
from tests.waiting import LONG_S

SUM, COUNT = number("clicks:sum_n_1d"), number("clicks:count_12d")
DEFINITIONS = """
from tests.clicks import CLICKS, clicks_view
from paimon_features.core.types.schema import Bool, Int64
import paimon_features as pf
view = clicks_view()
sales = pf.EventSource(
    "sales", schema={"user": Int64, "at": Int64, "paid": Int64}, event_time="at")
"""


class ServedShop(Shop):
    """``clicks`` of some users, and the source ``sales`` of their outcomes."""

    def __init__(self, folder: Path) -> None:
        import paimon_features as pf

        self.view = clicks_view()
        self.sales = pf.EventSource(
            "sales",
            schema={"user": pf.Int64, "at": pf.Int64, "paid": pf.Int64},
            event_time="at",
        )
        super().__init__(folder, [self.view, CLICKS, self.sales], MemoryStore())
        (folder / "features.py").write_text(DEFINITIONS)

    def register(self, weights: Sequence[float], bias: float = 0.0) -> ServedModel:
        """Another version of the model ``churn``."""
        made = linear(weights, [SUM, COUNT], bias=bias)
        files = {"network.onnx": made.network}
        manifest = self.project.models.register(made.manifest, files)
        return ServedModel(manifest, made.network)

    def serve(self, requests: Sequence[dict[str, Any]], **options: Any) -> list[Answer]:
        """Answer requests as a server does, log its predictions, and commit them to the lake."""
        definitions = DefinitionSet(NAME, self.project.definitions, self.store, 1)
        log = PredictionLog(self.spool, NAME, flush_interval_s=0.01, **options)
        app = FeatureApp(definitions, ServeConfig(), prediction_log=log)
        app.replace_models(ModelReloader(self.project.models.place).load(ModelSet()))

        async def run() -> list[Answer]:
            found = []
            for each in requests:
                body = json.dumps(each).encode()
                found.append(await send_request(app, "POST", "/predict/churn", body))
            # lowered in the loop together with the delivery, which logs
            while app.state.batcher._shadow_rows:
                await asyncio.sleep(0.001)
            return found

        found = asyncio.run(run())
        app.close()
        log.close(LONG_S)  # the app waits for less
        self.commit_predictions()
        return found

    def commit_predictions(self) -> CommitStats:
        total = CommitStats()
        for model, folders in prediction_folders([self.spool]).items():
            log = prediction_log_of(NAME, model)
            total.add(SpoolCommitter(self.lake, NAME, folders, log=log).run_once())
        return total

    def sell(self, events: Sequence[tuple[int, int, int]]) -> None:
        """Commit outcomes: (user, time, paid)."""
        import pyarrow as pa

        from paimon_features.core.windows import DAY_MS
        from paimon_features.lake import append_arrow

        users, times, paid = zip(*events, strict=True)
        rows = pa.table(
            {
                "user": pa.array(users, pa.int64()),
                "at": pa.array(times, pa.int64()),
                "paid": pa.array(paid, pa.int64()),
                "event_day": pa.array([at // DAY_MS for at in times], pa.int32()),
            }
        )
        append_arrow(self.lake, self.sales.table, rows)


def filled(folder: Path, users: int = 40) -> ServedShop:
    """A shop with a click of each user, and version 1 of the model in production."""
    shop = ServedShop(folder)
    now_ms = clock_ms()
    shop.commit(
        shop.view,
        [{"user": u, "t": now_ms - 1_000 - u, "n": u % 7, "word": "a"} for u in range(users)],
    )
    shop.materializer(shop.view).run_once()
    shop.register([0.25, -0.5])
    shop.project.models.promote("churn", 1)
    return shop
