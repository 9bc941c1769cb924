"""What a Feast user does with the plugin, run by the Python of an environment with Feast.

``python feast_checks.py PROJECT_FOLDER FEAST_REPOSITORY [SERVER_URL]``: prints one JSON document,
which ``test_feast_plugin.py`` compares with what the project itself answers.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
from feast import Entity, FeatureStore, FeatureView, Field, FileSource
from feast.data_source import PushMode, PushSource
from feast.types import Float64, Int64, String

from paimon_features.core.errors import RequestError
from paimon_features.integrations.feast import (
    PaimonSource,
    SavedDatasetPaimonStorage,
    feast_objects,
)
from paimon_features.integrations.feast.plugin.offline_store import write_table
from paimon_features.project import Project

NOW = dt.datetime(2011, 12, 9, 12, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)

YAML = """
project: fraud
provider: local
registry: registry.db
entity_key_serialization_version: 3
online_store:
  type: paimon_features.integrations.feast.PaimonOnlineStore
  project_path: "{project}"{more}
offline_store:
  type: paimon_features.integrations.feast.PaimonOfflineStore
  project_path: "{project}"
"""


def main(project: Path, repository: Path, url: str | None) -> dict[str, object]:
    more = "" if url is None else f'\n  server_url: "{url}"'
    (repository / "feature_store.yaml").write_text(YAML.format(project=project, more=more))
    store = FeatureStore(str(repository))
    ours = feast_objects(project)
    customer = ours["entity_customer"]
    assert isinstance(customer, Entity)

    plans = pd.DataFrame(
        {
            "customer_id": [12346, 12346, 12347],
            "plan": ["free", "gold", "free"],
            "event_timestamp": [NOW - 40 * HOUR, NOW - 2 * HOUR, NOW - HOUR],
        }
    )
    lake = Project.open(project)
    write_table(lake, "plans", pa.Table.from_pandas(plans, preserve_index=False))
    of_table = FeatureView(
        name="plans",
        entities=[customer],
        schema=[Field(name="plan", dtype=String), Field(name="customer_id", dtype=Int64)],
        source=PushSource(
            name="plans_push",
            batch_source=PaimonSource(table="plans", timestamp_field="event_timestamp"),
        ),
        ttl=dt.timedelta(hours=30),
    )
    scores = plans.drop(columns="plan").assign(score=[0.25, 0.5, 0.75])
    scores.to_parquet(repository / "scores.parquet")
    of_file = FeatureView(
        name="scores",
        entities=[customer],
        schema=[Field(name="score", dtype=Float64), Field(name="customer_id", dtype=Int64)],
        source=FileSource(
            path=str(repository / "scores.parquet"), timestamp_field="event_timestamp"
        ),
        ttl=dt.timedelta(0),
    )
    store.apply([*ours.values(), of_table, of_file])
    store.apply([*ours.values(), of_table, of_file])
    store.materialize(NOW - 100 * HOUR, NOW)

    out: dict[str, object] = {}
    entities = [{"customer_id": key} for key in (12346, 12347, 1)]
    service = store.get_feature_service("churn_v1")
    out["service"] = store.get_online_features(service, entities).to_dict()
    mixed = ["customer_spend:count_7d", "plans:plan", "scores:score"]
    out["mixed"] = store.get_online_features(mixed, entities).to_dict()

    # a newer row replaces, an older one does not
    for plan, at in (("silver", NOW), ("old", NOW - 50 * HOUR)):
        row = pd.DataFrame(
            {"customer_id": [12347], "plan": [plan], "event_timestamp": [at]}
        )  # fmt: skip
        store.push("plans_push", row, to=PushMode.ONLINE_AND_OFFLINE)
    out["pushed"] = store.get_online_features(["plans:plan"], entities).to_dict()["plan"]
    out["rows"] = lake.sql("SELECT count(*) AS n FROM plans").read_all()["n"].to_pylist()

    rows = pd.DataFrame(
        {
            "customer_id": [12347, 12346, 12346],
            "event_timestamp": [NOW, NOW, NOW - 3 * HOUR],
            "label": [1, 0, 1],
        }
    )
    job = store.get_historical_features(
        rows, ["customer_spend:sum_amount_1d", "plans:plan", "scores:score"], True
    )
    out["history"] = job.to_arrow().drop_columns(["event_timestamp"]).to_pydict()
    dataset = store.create_saved_dataset(job, "set", SavedDatasetPaimonStorage("saved_set"))
    out["saved"] = dataset.to_df()["scores__score"].tolist()
    saved = lake.sql("SELECT * FROM saved_set").read_all()
    out["labels"] = saved["label"].to_pylist()
    of_sql = store.get_historical_features(
        "SELECT customer_id, event_timestamp FROM plans WHERE plan = 'gold'", ["scores:score"]
    )
    out["of_sql"] = of_sql.to_df()["score"].tolist()

    try:
        names = [field.name for field in ours["view_customer_spend"].features]
        values = {name: ["x"] if name.startswith("last") else [1] for name in names}
        own = {"customer_id": [1], "event_timestamp": [NOW], **values}
        store.write_to_online_store("customer_spend", pd.DataFrame(own))
    except RequestError as error:
        out["refused"] = str(error)
    store.teardown()
    out["after_teardown"] = [
        sorted(key.decode("utf-8", "replace") for page in lake.store.scan(prefix) for key in page)
        for prefix in (b"pf:{shop:@feast", b"pf:{shop:customer_spend}#state")
    ]
    return out


if __name__ == "__main__":
    url = sys.argv[3] if len(sys.argv) > 3 else None
    print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]), url), default=str))
