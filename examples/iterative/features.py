"""Features read by the iterations: purchases per customer and product, customers' habits."""

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
)

bought = pf.FeatureView(
    "bought",
    source=retail,
    entity=pf.Entity("customer_product", keys={"customer_id": pf.Int64, "stock_code": pf.String}),
    tile="1d",
    where="quantity > 0",
    features=[pf.Count(windows=["365d"], name="purchases")],
    description="How often a customer bought a product.",
)

habits = pf.FeatureView(
    "habits",
    source=retail,
    entity=pf.Entity("customer", keys={"customer_id": pf.Int64}),
    tile="1d",
    derive={"amount": "quantity * unit_price"},
    features=[
        pf.Count(windows=["30d", "90d", "365d"]),
        pf.Sum("amount", windows=["30d", "90d", "365d"], scale=2),
        pf.Mean("unit_price", windows=["365d"], scale=2),
        pf.Count(windows=["365d"], where="quantity < 0", name="returns"),
        pf.Max("invoice_time_ms", windows=["365d"], name="last_bought_ms"),
    ],
    description="How much, how often and how lately a customer bought.",
)

service = pf.FeatureService("habits_v1", [habits])

loop = pf.FeedbackSource("will_buy", sample_keys={"customer_id": pf.Int64})
difficulty = difficulty_view(loop)

product = pf.Entity("product", keys={"stock_code": pf.String})

scores = pf.TableSource(
    "product_scores",
    schema={"stock_code": pf.String, "at_ms": pf.Int64, "score": pf.Float64},
    event_time="at_ms",
    description="PageRank of products; each run is a version, valid from the log's end on.",
)
product_score = pf.FeatureView(
    "product_score", source=scores, entity=product, features=[pf.Last("score", name="score")]
)

product_vectors = pf.TableSource(
    "product_vectors",
    schema={"stock_code": pf.String, "at_ms": pf.Int64, "vector": pf.List(pf.Float64, 16)},
    event_time="at_ms",
    description="Embeddings of products; each run is a version, valid from the log's end on.",
)
product_vector = pf.FeatureView(
    "product_vector",
    source=product_vectors,
    entity=product,
    features=[pf.Last("vector", name="vector")],
)

customer_vectors = pf.TableSource(
    "customer_vectors",
    schema={"customer_id": pf.Int64, "at_ms": pf.Int64, "vector": pf.List(pf.Float64, 16)},
    event_time="at_ms",
    description="Embeddings of customers, of the same runs.",
)
customer_vector = pf.FeatureView(
    "customer_vector",
    source=customer_vectors,
    entity=pf.Entity("customer", keys={"customer_id": pf.Int64}),
    features=[pf.Last("vector", name="vector")],
)

recommend = pf.FeatureService(
    "recommend_v1", [habits, customer_vector, product_vector, product_score]
)
