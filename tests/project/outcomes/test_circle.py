"""From served predictions to outcomes, and to the comparison of versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("onnx", reason="networks for tests")
pytest.importorskip("onnxruntime", reason="the runtime of models")


from paimon_features.lake import append_arrow, read_arrow
from paimon_features.models import ModelInput
from paimon_features.project.outcomes.record import OutcomeRecorder
from paimon_features.project.outcomes.rule import OutcomeRule
from tests.commands import invoke as run
from tests.long_cases import quick_cases
from tests.project.outcomes.served_shop import COUNT, ServedShop, filled
from tests.reference.outcomes import outcome_of
from tests.serving.prediction.networks import linear, number

USERS = 40
SALT = "a secret of some length"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServedShop:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PAIMON_FEATURES_REQUEST_LOG_SALT", raising=False)
    return filled(tmp_path, USERS)


def everyone() -> list[dict[str, Any]]:
    return [{"entities": {"user": [user, (user + 1) % USERS]}} for user in range(0, USERS, 2)]


def rows_of(shop: ServedShop, table: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = read_arrow(shop.lake, table).to_pylist()
    return rows


def test_a_logged_score_is_the_score_from_the_lake_in_each_version(shop: ServedShop) -> None:
    shop.register([0.1, 0.1], bias=-1.0)
    shop.register([0.5, 0.0])
    shop.project.models.promote("churn", 2, "shadow")
    shop.project.models.promote("churn", 3, "challenger", traffic=5_000)
    answers = shop.serve([*everyone(), {"entities": {"user": [777]}}])
    # what changes later changes nothing: the score is that of the time of the request
    shop.commit(shop.view, [{"user": u, "t": 1, "n": 5, "word": "b"} for u in range(3)])
    done = run("verify", "--predictions", "--since", "1h", "--json")
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert {answer.json["version"] for answer in answers} == {1, 3}
    # each entity by the version that answered, and by the shadow
    assert report["compared"] == report["from_lake"] == 2 * (USERS + 1)
    assert report["requests"] == len(answers)
    assert report["features"]["by_events"] == USERS + 1
    assert report["largest_difference"] < 1e-6
    assert "all agree" in run("verify", "--predictions", "--model", "churn").output


def test_a_prediction_or_a_feature_that_is_another_one_is_found(shop: ServedShop) -> None:
    shop.serve(everyone())
    table = "predictions_churn"
    rows = read_arrow(shop.lake, table).slice(3, 2).to_pylist()
    for row in rows:
        row["request_id"] += "-tampered"
    rows[0]["prediction"] = 0.123
    reads = json.loads(rows[1]["reads"])
    values = json.loads(reads[0]["feature_values"])
    reads[0]["feature_values"] = json.dumps({**values, "sum_n_1d": 77})
    rows[1]["reads"] = json.dumps(reads)
    append_arrow(shop.lake, table, pa.Table.from_pylist(rows, shop.lake.schema(table)))
    done = run("verify", "--predictions")
    assert done.exit_code == 1
    assert f"entity {rows[0]['entity']}, churn@1 probability: served 0.123, from the lake" in (
        done.output
    )
    # the score is right for the events, and what was logged as read is not
    assert f"entity {rows[1]['entity']}, clicks:sum_n_1d: served 77, by tiles" in done.output
    assert "1 differ" in done.output


def test_what_cannot_be_computed_again_is_said(shop: ServedShop) -> None:
    assert "no model has logged predictions" in run("verify", "--predictions").output
    shop.serve(everyone(), reads=0.0)
    done = run("verify", "--predictions")
    assert done.exit_code == 1
    assert "prediction_log_reads above 0" in done.output
    assert run("verify", "--predictions", "--from-log").exit_code == 2
    assert run("verify", "clicks", "--model", "churn").exit_code == 2


def test_each_prediction_that_is_not_compared_has_its_reason(shop: ServedShop) -> None:
    """A log that another program changed, a row at a time; what is left is compared."""
    shop.serve(everyone()[:7])
    table = "predictions_churn"
    logged = rows_of(shop, table)
    [read] = json.loads(logged[0]["reads"])
    values = json.loads(read["feature_values"])
    first = {"sum_n_1d": values["sum_n_1d"]}

    def changed(**changes: Any) -> dict[str, str]:
        return {"reads": json.dumps([{**read, **changes}])}

    cases: dict[str, dict[str, Any]] = {
        "not readable: Expecting property name": {"reads": "{"},
        "not readable: values, statuses and inputs have to be": changed(feature_values="[]"),
        "not readable: there is not one status for each value": changed(
            feature_values=json.dumps(first)
        ),
        "not readable: generation is null": changed(generation=None),
        "the log lacks the input 'clicks:sum_n_1d'": {"reads": "[]"},
        "version 1 of 'churn' is another one than was served": {"manifest": "0" * 64},
        "version 9 of 'churn' cannot be loaded": {"version": 9},
        "outputs are not readable": {"outputs": "[0.5"},
    }
    rows = [
        {**logged[0], "request_id": f"changed {number}", **changes}
        for number, changes in enumerate(cases.values())
    ]
    # of two rows of a request, one without what was read
    rows += [
        {**logged[0], "request_id": "half", "row": 0},
        {**logged[0], "request_id": "half", "row": 1, "reads": None},
    ]
    # a feature that no definition has: it cannot be read again, and the logged value counts
    unknown = changed(
        feature_values=json.dumps({**values, "sum_n_9d": 1}),
        feature_statuses=json.dumps(
            {**json.loads(read["feature_statuses"]), "sum_n_9d": "PRESENT"}
        ),
    )
    rows += [{**logged[0], "request_id": "unknown", **unknown}]
    rows += [{**logged[0], "request_id": "null", "prediction": None}]
    append_arrow(shop.lake, table, pa.Table.from_pylist(rows, shop.lake.schema(table)))
    done = run("verify", "--predictions", "--json")
    assert done.exit_code == 1, done.output
    report = json.loads(done.stdout)
    reasons = {**cases, "what was read is not logged": {}}
    found = report["unchecked"]
    for reason in reasons:
        assert [count for text, count in found.items() if text.startswith(reason)], (reason, found)
    assert report["compared"] == len(logged) + 3
    assert report["from_lake"] == report["compared"] - 1
    assert report["features"]["unchecked"] == {"the definition of 'clicks' has changed since": 1}
    [null] = report["differences"]
    assert null["request_id"] == "null"
    refused = run("verify", "--predictions", "--model", "nope")
    assert "table 'predictions_nope' does not exist: set [serve] prediction_log" in refused.output


def test_keys_as_inputs_are_read_from_the_log_unless_they_are_hashed(
    shop: ServedShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [
        number("user", source="entity"),
        ModelInput("name", "entity", "user", "int64", "string"),
    ]
    made = linear([0.01, 0.1], [keys[0], COUNT, keys[1]])
    shop.project.models.register(made.manifest, {"network.onnx": made.network})
    shop.project.models.promote("churn", 2)
    shop.serve(everyone()[:3])
    report = json.loads(run("verify", "--predictions", "--json").stdout)
    assert (report["compared"], report["differences"]) == (6, [])
    monkeypatch.setenv("PAIMON_FEATURES_REQUEST_LOG_SALT", SALT)
    shop.serve(everyone()[:2], salt=SALT.encode())
    report = json.loads(run("verify", "--predictions", "--json").stdout)
    assert report["compared"] == 6
    assert report["unchecked"] == {"the log lacks the input 'user (a key, and keys are hashed)'": 4}


@pytest.mark.parametrize("salt", quick_cases([None, SALT], SALT))
def test_each_mature_prediction_has_the_outcome_of_the_reference_once(
    shop: ServedShop, salt: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if salt:
        monkeypatch.setenv("PAIMON_FEATURES_REQUEST_LOG_SALT", salt)
    options = {"salt": salt.encode()} if salt else {}
    shop.serve(everyone(), **options)
    shop.serve(everyone()[:5], **options)
    logged = rows_of(shop, "predictions_churn")
    # requests are served one after the other, so the order of the times is that of the users
    times = sorted(row["as_of_ms"] for row in logged)
    served = [*range(USERS), *range(10)]
    assert len(times) == len(served)
    first_ms = times[0]
    dice = np.random.default_rng(0)
    events = []
    for paid in dice.integers(-2, 3, 120):
        # around a prediction, however long the requests took: mostly of its user
        number = int(dice.integers(len(times)))
        user = served[number] if dice.random() < 0.8 else int(dice.integers(0, USERS + 5))
        events.append((user, times[number] + int(dice.integers(-50, 3_000)), int(paid)))
    # an outcome at the time of a prediction, which no feature has
    own = next(row for row in logged if row["as_of_ms"] == first_ms)
    user = 0 if salt else json.loads(own["entity"])[0]
    events += [(user, first_ms, 2), (user, first_ms + 2_000, 2)]
    shop.sell(events)
    args = ("models", "outcomes", "churn", "--source", "sales", "--within", "2s", "--label", "paid",
            "--where", "paid > 0", "--otherwise", "0", "--take", "last")  # fmt: skip
    waiting = json.loads(run(*args, "--json").stdout)
    # the newest event is less than five minutes past the predictions
    assert (waiting["written"], waiting["immature"]) == (0, len(logged))
    shop.sell([(999, first_ms + 3_600_000, 1)])
    done = json.loads(run(*args, "--json").stdout)
    assert done["written"] == len(logged)
    again = json.loads(run(*args, "--json").stdout)
    assert (again["predictions"], again["written"]) == (0, 0)
    found = rows_of(shop, "outcomes_churn")
    assert len(found) == len(logged)
    listed = [(str(user), at, float(paid)) for user, at, paid in events if paid > 0]
    unknown = 0
    for row in found:
        if row["user"] is None:
            unknown += 1
            assert (row["label"], row["outcome_time_ms"]) == (0.0, None)
            continue
        expected = outcome_of(str(row["user"]), row["event_time_ms"], listed, 2_000, "last", 0.0)
        assert (row["label"], row["outcome_time_ms"]) == expected
        assert row["matured_at_ms"] == row["event_time_ms"] + 2_000
    assert unknown == done["without_keys"]
    assert (unknown > 0) == (salt is not None)
    assert sum(row["label"] > 0 for row in found) == done["with_outcome"] > 10


def test_late_predictions_and_a_killed_pass_leave_each_prediction_once(shop: ServedShop) -> None:
    shop.serve(everyone()[:3])
    now_ms = max(row["as_of_ms"] for row in rows_of(shop, "predictions_churn"))
    shop.sell([(1, now_ms + 10, 1), (1, now_ms + 10**7, 1)])
    rule = OutcomeRule(1_000, source="sales")
    recorder = OutcomeRecorder(shop.project, "churn", rule)
    assert recorder.run_once(0).written == 6
    # a server that was cut off delivers its predictions now
    shop.serve(everyone()[3:5])
    assert recorder.run_once(0, now_ms + 10**7).written == 4
    rows = rows_of(shop, "outcomes_churn")
    keys = {(row["request_id"], row["row"]) for row in rows}
    assert len(keys) == len(rows) == 10


def test_outcomes_may_be_rows_of_a_file_with_other_names(shop: ServedShop, tmp_path: Path) -> None:
    # as of a time long before it was served, as a replay of an old log has it
    at, table = 1_300_000_000_000, "predictions_churn"
    shop.serve([{"entities": {"user": [1, 2, 3]}}])
    rows = [{**row, "as_of_ms": at, "request_id": "replay"} for row in rows_of(shop, table)]
    append_arrow(shop.lake, table, pa.Table.from_pylist(rows, shop.lake.schema(table)))
    (tmp_path / "labels.csv").write_text(
        f"customer,when,churned\n1,{at},true\n2,{at + 500},false\n9,{at + 10_000_000},true\n"
    )
    config = tmp_path / "paimon-features.toml"
    config.write_text(
        config.read_text()
        + '[outcomes.churn]\nrows = "labels.csv"\nlabel = "churned"\ntime = "when"\n'
        'within = "1s"\nkeys = { user = "customer" }\n'
    )
    done = run("models", "outcomes", "churn")
    assert done.exit_code == 0, done.output
    assert "2 predictions with labels written to outcomes_churn" in done.output
    assert "1 have no outcome" in done.output
    labels = {row["user"]: row["label"] for row in rows_of(shop, "outcomes_churn")}
    assert labels == {1: 1.0, 2: 0.0}
    # a label for those, too
    run("models", "outcomes", "churn", "--otherwise", "0.5")
    labels = {row["user"]: row["label"] for row in rows_of(shop, "outcomes_churn")}
    assert labels == {1: 1.0, 2: 0.0, 3: 0.5}


WRONG = {
    "nothing says what outcomes": (),
    "within is missing": ("--source", "sales"),
    "unknown source 'sale'": ("--source", "sale", "--within", "1d"),
    "within: ": ("--source", "sales", "--within", "1 day"),
    "exactly one of": ("--source", "sales", "--rows", "x", "--within", "1d"),
    "price": ("--source", "sales", "--within", "1d", "--label", "price"),
    "expected a condition": ("--source", "sales", "--within", "1d", "--where", "paid"),
    "NAME=COLUMN": ("--source", "sales", "--within", "1d", "--column", "user"),
    "expected a number or a truth value": (
        "--source",
        "sales",
        "--within",
        "1d",
        "--label",
        "CAST(paid AS string)",
    ),
    "column 'moment' of rows 'labels.csv'": (
        "--rows",
        "labels.csv",
        "--within",
        "1d",
        "--column",
        "event_time_ms=moment",
    ),
    "its events can be retracted; write those that hold to a table": (
        "--source",
        "orders",
        "--within",
        "1d",
    ),
    "sent twice, which a sum would count twice": (
        "--source",
        "payments",
        "--within",
        "1d",
        "--take",
        "sum",
        "--label",
        "paid",
    ),
    "nothing.csv": ("--rows", "nothing.csv", "--within", "1d"),
}


def test_a_wrong_rule_is_refused(shop: ServedShop, tmp_path: Path) -> None:
    with (tmp_path / "features.py").open("a") as file:
        file.write(
            "columns = {'user': Int64, 'at': Int64, 'paid': Int64, 'gone': Bool, 'id': Int64}\n"
            "more = {'schema': columns, 'event_time': 'at'}\n"
            "orders = pf.EventSource('orders', **more, retraction='gone')\n"
            "payments = pf.EventSource('payments', **more, event_id='id', dedup_horizon='1d')\n"
        )
    (tmp_path / "labels.csv").write_text("user,when,label\n1,5,1\n")
    assert (
        "no prediction of model"
        in run("models", "outcomes", "churn", "--source", "sales", "--within", "1d").output
    )
    shop.serve([{"entities": {"user": [1]}}])
    for message, options in WRONG.items():
        done = run("models", "outcomes", "churn", *options)
        assert (done.exit_code, message in done.output) == (2, True), done.output
