"""A service that is read with an event: from a file to the online read and the training set."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from paimon_features.core.errors import RequestError
from paimon_features.lake import table_options
from paimon_features.project import Project
from tests.commands import invoke, run

DEFINITIONS = """
import paimon_features as pf

payments = pf.EventSource(
    "payments",
    schema={"card": pf.Int64, "merchant": pf.String, "amount": pf.Float64, "at": pf.Timestamp},
    event_time="at",
)
card = pf.Entity("card", keys={"card": pf.Int64})
merchant = pf.Entity("merchant", keys={"merchant": pf.String})
by_card = pf.FeatureView(
    "by_card",
    source=payments,
    entity=card,
    tile="1ms",
    where="amount > 0",
    features=[
        pf.Count(windows=["1h", "7d"]),
        pf.Mean("amount", windows=["7d"], scale=2),
        pf.Mean("amount", windows=["7d"], scale=2, own_event=False, name="usual"),
        pf.Last("merchant", windows=["7d"], own_event=False),
        pf.TimeSinceLast(windows=["7d"], own_event=False),
    ],
)
by_merchant = pf.FeatureView(
    "by_merchant", source=payments, entity=merchant, kind="hop", features=[pf.Count(windows=["1d"])]
)
ratio = pf.Interaction("ratio", "amount / by_card:usual_7d", request=payments.as_request())
fraud = pf.FeatureService("fraud_v1", [by_card, by_merchant, ratio], request=payments)
"""
START_MS = 1_300_000_000_000
NEWEST_MS = START_MS + 9 * 86_400_000
EVENTS = 400


@pytest.fixture
def filled(project: Project, online_url: str) -> Project:
    rng = random.Random(1)
    times = [rng.randrange(START_MS, NEWEST_MS - 200_000) for _ in range(EVENTS - 50)]
    times += [NEWEST_MS - rng.randrange(200_000) for _ in range(49)] + [NEWEST_MS]
    lines = [
        f"{rng.randrange(5)},m{rng.randrange(3)},{rng.choice((-1, 1, 2.5, 10, 99.99))},{time}"
        for time in times
    ]
    Path("payments.csv").write_text("\n".join(["card,merchant,amount,at", *lines]) + "\n")
    run("ingest", "files", "payments", "payments.csv", "--engine", "local")
    for view in ("by_card", "by_merchant"):
        run("backfill", view, "--engine", "local")
    run("materialize")
    return Project.open(".")


@pytest.mark.redis
def test_training_rows_equal_what_was_served(filled: Project) -> None:
    rows = filled.get_historical_features("fraud_v1", statuses=True).to_pylist()
    assert len(rows) == EVENTS
    served = 0
    for row in rows:
        event = {name: row[name] for name in ("card", "merchant", "amount", "at")}
        # single events are kept online for as long as reads may lie behind
        if event["at"] < NEWEST_MS - 310_000:
            continue
        response = filled.get_online_features("fraud_v1", event=event)
        [values], [statuses] = response.to_pylist(), response.status_rows()
        assert values == {name: row[name] for name in values}, event
        assert statuses == {name: row[f"{name}__status"] for name in statuses}, event
        assert response.own_event is not None
        assert response.own_event["by_card"] == (
            "counted" if event["amount"] > 0 else "not a member"
        )
        served += 1
    assert served == 50


@pytest.mark.redis
def test_commands_read_events_and_build_training_sets(filled: Project) -> None:
    event = {"card": 1, "merchant": "m1", "amount": 5.0, "at": "2011-03-22T07:06:40"}
    Path("event.json").write_text(json.dumps(event))
    [found] = json.loads(run("lookup", "fraud_v1", "--event", "event.json", "--json").stdout)[
        "rows"
    ]
    assert found["count_1h"] >= 1
    shown = run("lookup", "fraud_v1", "--event", json.dumps(event)).output
    assert "the event is counted" in shown
    explain = ["--event", json.dumps(event), "--explain"]
    text = run("lookup", "fraud_v1", "by_card:count_1h", *explain).output
    assert "the event of the request is counted" in text
    assert "and from the event of the request" in " ".join(text.split())
    assert "the event " in text
    document = json.loads(run("lookup", "fraud_v1", "by_card", *explain, "--json").stdout)
    assert {f["name"]: f["value"] for f in document["features"]}.items() <= found.items()
    assert "takes one feature view" in invoke("lookup", "fraud_v1", *explain).output
    run("training-set", "fraud", "--service", "fraud_v1")
    built = table_options.properties(filled.lake, "training_fraud")
    assert "training-set.definitions" in built
    labelled = "card,merchant,amount,at,fraud\n1,m1,5.0,1300000000000,1\n1,m1,5.0,1300500000000,0\n"
    Path("labelled.csv").write_text(labelled)
    run("training-set", "labelled", "--service", "fraud_v1", "--rows", "labelled.csv",
        "--label", "fraud")  # fmt: skip
    run("training-set", "labelled", "--service", "fraud_v1", "--rows", "labelled.csv",
        "--append")  # fmt: skip
    small = filled.get_historical_features("fraud_v1", memory_mb=0.001)
    assert small.equals(filled.get_historical_features("fraud_v1"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fraud_v1", "--entity", "card=1"], "is read with --event"),
        (["by_card", "--event", "{}"], "event= is for a service with request="),
        (["fraud_v1", "--event", "[1]"], "--event"),
        (["fraud_v1", "--event", '{"card": 1, "card": 2}'], "twice"),
        (["fraud_v1", "--event", "no_file.json"], "no_file.json"),
        (["fraud_v1", "--event", "{}", "--as-of", "now"], "--event has the keys"),
        (["by_card"], "--entity"),
    ],
)
def test_mistakes_are_explained(project: Project, arguments: list[str], message: str) -> None:
    result = invoke("lookup", *arguments)
    assert result.exit_code in (1, 2)
    assert message in result.output


def test_rows_without_the_columns_of_an_event_are_refused(project: Project) -> None:
    with pytest.raises(RequestError, match="no column 'amount' of source 'payments'"):
        project.get_historical_features("fraud_v1", {"card": [1], "merchant": ["m"], "at": [0]})
    with pytest.raises(RequestError, match="entity rows are missing"):
        project.get_historical_features("by_card")


@pytest.mark.flink
@pytest.mark.redis
def test_flink_joins_the_same_values(filled: Project) -> None:
    local = filled.get_historical_features("fraud_v1")
    assert filled.get_historical_features("fraud_v1", engine="flink").equals(local)
