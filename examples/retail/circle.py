"""The model of the demo: trained, served, scored by what happened, and trained on.

::

    training set ──train──► version 1 ──serve──► predictions ──request-log──► lake
         ▲                                                                     │
         └──training-set --append── labelled rows ◄──models outcomes───────────┘
         └──retrain──► version 2, behind a gate ──promoted──► the same server answers with it
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from processes import Processes  # next to this file, which may be anywhere

from paimon_features.core.errors import JobError
from paimon_features.core.times.clock import now_ms
from paimon_features.core.windows import DAY_MS
from paimon_features.lake import read_arrow
from paimon_features.models import ModelManifest
from paimon_features.project import Project

MODEL = "will_buy"
SERVICE = "will_buy_v1"
LABEL_DAYS = 7
REQUEST_ENTITIES = 100
"""So many entities of a request are logged at most."""


@dataclass
class CircleFacts:
    """What was seen of the model, for the report."""

    metrics: dict[str, float] = field(default_factory=dict)
    """Of version 1 on the newest rows of its training set."""
    rows: int = 0
    predictions: int = 0
    requests_ms: list[float] = field(default_factory=list)
    outcomes: int = 0
    bought: float = 0.0
    """The share of the outcomes that are a purchase."""
    gate: dict[str, Any] = field(default_factory=dict)
    """The difference of version 2 from version 1 on the rows that neither had seen."""
    customers: list[int] = field(default_factory=list)
    """Of the last request."""
    answers: list[dict[str, Any]] = field(default_factory=list)
    """Of both versions to that request."""
    compared: int = 0
    largest: float = 0.0


def order_rows(events: pa.Table, known_until_ms: int) -> pa.Table:
    """Each order of a customer, as of a millisecond later: is there another one within a week?

    Only those whose week had ended at ``known_until_ms``; ``events`` have customer_id, quantity and
    invoice_time_ms.
    """
    import duckdb

    return duckdb.sql(
        f"""
        WITH orders AS (
            SELECT DISTINCT customer_id, invoice_time_ms + 1 AS q FROM events
            WHERE quantity > 0 AND customer_id IS NOT NULL
        ),
        labelled AS (
            SELECT *, lead(q) OVER (PARTITION BY customer_id ORDER BY q) - 1 AS next FROM orders
        )
        SELECT row_number() OVER (ORDER BY q, customer_id) - 1 AS sample_id, customer_id,
               q AS event_time_ms, coalesce(next < q + {LABEL_DAYS * DAY_MS}, false) AS will_buy
        FROM labelled WHERE q + {LABEL_DAYS * DAY_MS} <= {known_until_ms}
        ORDER BY sample_id
        """
    ).to_arrow_table()


class ModelCircle:
    """Two versions of the model ``will_buy``, and what the feature server answers with them."""

    def __init__(self, processes: Processes, project: Project, url: str) -> None:
        self.processes, self.project = processes, project
        self.base, self.url = url, f"{url}/predict/{MODEL}"
        self.facts = CircleFacts()
        self.last_request_at_ms = 0
        self.client = processes.resources.enter_context(httpx.Client(timeout=30.0))

    def training_set(self, known_until_ms: int) -> None:
        """Rows of every order so far, with the features of their time."""
        events = read_arrow(
            self.project.lake, "events_retail", ["customer_id", "quantity", "invoice_time_ms"]
        )
        rows = order_rows(events, known_until_ms)
        pq.write_table(rows, self.processes.into / "data" / "rows.parquet")
        self.processes.command(
            "training-set", MODEL, "--service", SERVICE,
            "--rows", "data/rows.parquet", "--label", "will_buy",
        )  # fmt: skip
        self.facts.rows = len(rows)
        share = pc.mean(rows["will_buy"].cast(pa.int64())).as_py()
        self.processes.say(
            f"  {len(rows):,} orders, each with the features of its own time; after {share:.0%} "
            "there is another one within a week"
        )

    def train_and_serve(self) -> None:
        """Version 1: trained on the earlier rows, tested on the later ones, promoted, served."""
        self.processes.command("train", f"{MODEL}.yaml")
        manifest = self.project.models.manifest(MODEL, 1)
        self.facts.metrics = {name: each.value for name, each in manifest.metrics.items()}
        self.processes.say(
            f"  {manifest}: AUC {_metric(manifest, 'auc')} on the newest orders; registered with "
            f"{len(manifest.files)} files, its network as ONNX"
        )
        self.processes.command("models", "promote", MODEL, "1")
        self.processes.background("serve")

    def predict(self, customers: Sequence[int], as_of_ms: int) -> dict[str, Any]:
        """Request predictions; an answer of one version."""
        body = {"entities": {"customer_id": list(customers)}, "as_of": as_of_ms}
        started = time.perf_counter()
        response = self.client.post(self.url, json=body)
        self.facts.requests_ms.append(1000 * (time.perf_counter() - started))
        if response.status_code != httpx.codes.OK:
            raise JobError(f"{self.url} answered {response.status_code}: {response.text[:500]}")
        self.facts.predictions += len(customers)
        answer: dict[str, Any] = response.json()
        return answer

    def predict_buyers(self, batch: pa.Table, as_of_ms: int) -> None:
        """Request predictions for the customers who have ordered in a batch of events."""
        bought = batch.filter(pc.greater(batch["quantity"], 0))
        customers = pc.unique(bought["customer_id"]).drop_null().to_pylist()
        for start in range(0, len(customers), REQUEST_ENTITIES):
            chosen = customers[start : start + REQUEST_ENTITIES]
            self.last_request_at_ms = now_ms()
            self.facts.customers, self.facts.answers = chosen, [self.predict(chosen, as_of_ms)]

    def is_serving(self) -> bool:
        """Whether the server answers."""
        try:
            health = self.client.get(self.base + "/health")
        except httpx.TransportError:
            return False
        return bool(health.status_code == httpx.codes.OK)

    def join_outcomes(self) -> None:
        """Logged predictions get the label that the events since have given them."""
        processes, facts = self.processes, self.facts
        self.wait_for_log()
        processes.command("request-log")
        processes.command("models", "outcomes", MODEL)
        outcomes = self.project.sql(
            f"SELECT customer_id, event_time_ms, label = 1 AS will_buy FROM outcomes_{MODEL} "
            "ORDER BY event_time_ms, customer_id"
        ).read_all()
        facts.outcomes = len(outcomes)
        facts.bought = pc.mean(outcomes["will_buy"].cast(pa.int64())).as_py()
        processes.say(
            f"  {facts.predictions:,} predictions, {facts.outcomes:,} of them a week old: "
            f"{facts.bought:.0%} have ordered again"
        )
        pq.write_table(outcomes, processes.into / "data" / "outcomes.parquet")

    def retrain(self) -> None:
        """Version 2, from the new rows; it replaces version 1 if it is better.

        The last request is then sent again, until version 2 answers it.
        """
        processes, facts = self.processes, self.facts
        processes.command(
            "training-set", MODEL, "--service", SERVICE,
            "--rows", "data/outcomes.parquet", "--append",
        )  # fmt: skip
        decision = json.loads(processes.command("retrain", MODEL, "--json"))
        facts.gate = decision.get("figures", {}).get("overall", {})
        if decision["action"] != "promoted":
            raise JobError(f"version 2 is not promoted: {decision}")
        gate = facts.gate
        processes.say(
            f"  gate: log loss {gate['mean']:+.4f} (at most {gate['high']:+.4f} with 95 %) from "
            f"{gate['loss']:.4f}, on {gate['rows']:,} newest rows that neither has seen: promoted"
        )
        (before,) = facts.answers

        def is_answered_by_2() -> bool:
            answer = self.predict(facts.customers, before["as_of_ms"])
            facts.answers = [before, answer]
            if answer["version"] == 2:
                return True
            time.sleep(0.3)  # servers look every second
            return False

        processes.wait_for("version 2", is_answered_by_2, timeout_s=60)
        after = facts.answers[1]
        for customer, was, now in list(
            zip(facts.customers, before["predictions"], after["predictions"], strict=True)
        )[:2]:
            processes.say(
                f"  customer {customer}: version {before['version']} said {was:.3f}, "
                f"version {after['version']} says {now:.3f}, from the same server"
            )

    def verify(self) -> None:
        """The last request's predictions of both versions, computed again from the lake."""
        self.wait_for_log()
        self.processes.command("request-log")
        since = str(self.last_request_at_ms)
        report = json.loads(
            self.processes.command(
                "verify", "--predictions", "--model", MODEL, "--since", since, "--json"
            )
        )
        self.facts.compared = report["compared"]
        self.facts.largest = report["largest_difference"]
        self.processes.say(
            f"  {report['compared']:,} predictions of both versions computed again, from tiles and "
            f"from raw events: the largest difference is {report['largest_difference']:.0e}"
        )

    def wait_for_log(self) -> None:
        """Wait until all predictions are in complete spool files."""
        spool = self.processes.into / "spool"

        def is_complete() -> bool:
            metrics = self.client.get(self.base + "/metrics").text
            found = re.findall(
                r'(?m)^\S*prediction_log_rows_total\{.*"written".*\} (\S+)$', metrics
            )
            written = sum(map(float, found))
            return written >= self.facts.predictions and not list(spool.rglob("*.open"))

        self.processes.wait_for("the prediction log", is_complete, timeout_s=30)


def _metric(manifest: ModelManifest, name: str) -> str:
    metric = manifest.metrics[name]
    return f"{metric.value:.3f} ({metric.low:.3f} to {metric.high:.3f})"
