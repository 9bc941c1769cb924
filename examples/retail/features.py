"""Features of an online shop's customers, and how hard each training sample is.

Used by ``make demo``. ``paimon-features plan`` and ``apply`` read this file.
"""

import paimon_features as pf
from trainer_bridge.feedback.difficulty import difficulty_view

retail = pf.EventSource(
    "retail",
    schema={
        "invoice_no": pf.String,
        "stock_code": pf.String,
        "quantity": pf.Int64,
        "invoice_time_ms": pf.Int64,
        "unit_price": pf.Float64,
        "customer_id": pf.Int64,
        "country": pf.String,
    },
    event_time="invoice_time_ms",
    description="One event per invoice line; a cancellation has a negative quantity.",
)

customer = pf.Entity("customer", keys={"customer_id": pf.Int64})

spend = pf.FeatureView(
    "customer_spend",
    source=retail,
    entity=customer,
    tile="5min",
    derive={"amount": "quantity * unit_price"},
    features=[
        pf.Count(windows=["1d", "7d", "30d", "90d"]),
        pf.Sum("amount", windows=["1d", "7d", "30d", "90d"], scale=2),
        pf.Mean("unit_price", windows=["30d"], scale=2),
        pf.StdDev("quantity", windows=["90d"]),
        pf.Max("amount", windows=["90d"], scale=2),
        pf.DecayedCount(half_life="14d", windows=["180d"]),
        pf.DecayedSum("amount", half_life="30d", windows=["180d"]),
        pf.Count(windows=["90d"], where="quantity < 0", name="cancellations"),
        pf.Last("country", windows=["180d"]),
    ],
    ttl="180d",
    max_staleness="10s",
    description="What a customer bought and returned lately.",
)

pace = pf.Interaction(
    "spend_pace",
    "ratio(customer_spend:sum_amount_30d, customer_spend:sum_amount_90d, zero=0)",
    description="Which share of the last 90 days' amount fell into the last 30.",
)

service = pf.FeatureService("will_buy_v1", [spend, pace])

loop = pf.FeedbackSource("will_buy", sample_keys={"sample_id": pf.Int64})
difficulty = difficulty_view(loop)
