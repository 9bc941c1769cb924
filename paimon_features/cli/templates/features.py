"""What customers of a shop spend: a worked example. Change it, then run `paimon-features plan`."""

import paimon_features as pf

# An event source is a typed log that only grows; it is kept in the table events_retail.
# Event times are UTC milliseconds since 1970, and events may come late by any time.
retail = pf.EventSource(
    "retail",
    schema={
        "invoice": pf.String,
        "stock_code": pf.String,
        "description": pf.String,
        "quantity": pf.Int64,
        "invoice_time_ms": pf.Int64,
        "unit_price": pf.Float64,
        "customer_id": pf.Int64,
        "country": pf.String,
    },
    event_time="invoice_time_ms",
)

# An entity is what features are about. Events without a customer are skipped, and counted.
customer = pf.Entity("customer", keys={"customer_id": pf.Int64})

# A view turns events into features of an entity. The lake keeps sums per 5-minute tile; a window
# is the merge of its tiles, so more windows over the same sums cost nothing more to compute.
spend = pf.FeatureView(
    "customer_spend",
    source=retail,
    entity=customer,
    tile="5min",
    derive={"amount": "quantity * unit_price"},
    where="quantity > 0",  # cancellations have a negative quantity
    features=[
        # scale=2: added as whole cents, so exact; the features are sum_amount_1h, ..., in units
        pf.Sum("amount", windows=["1h", "1d", "30d"], scale=2),
        pf.Count(windows=["7d"]),
        # an amount counts half after a day, a quarter after two; exact at the moment of reading
        pf.DecayedSum("amount", half_life="1d", windows=["30d"]),
        pf.Last("country", windows=["30d"]),
    ],
    ttl="60d",  # values of a customer without an event for so long are EXPIRED
)

# A service is what one model reads, in the order of its inputs.
churn = pf.FeatureService("churn_v1", [spend])
