"""Transformers fitted from tiles are those that were fitted on the events themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.columns.column import Column
from paimon_features.core.errors import RequestError, TransformError
from paimon_features.core.windows import DAY_MS
from paimon_features.models.fitted_table import fitted_versions
from paimon_features.project.monitoring.fitting import fit_columns, fit_rows
from paimon_features.project.monitoring.refits import drift_since, save_fit
from paimon_features.transformers import (
    ColumnStatistics,
    Imputer,
    KBinsDiscretizer,
    MinMaxScaler,
    MomentSums,
    OneHotEncoder,
    Pipeline,
    RobustScaler,
    StandardScaler,
    StoredTransformer,
    new_transformer,
)
from tests.project.monitoring.shop import START, Shop, open_shop, random_rows

UNTIL = START + 2 * DAY_MS + 12_345


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    shop = open_shop(tmp_path_factory.mktemp("shop"))
    shop.commit(random_rows(3, 800))
    shop.tile()
    return shop


def columns_of(rows: list[dict[str, Any]], *names: str) -> list[list[Any]]:
    return [[row[name] for name in names] for row in rows]


@pytest.mark.parametrize("until", [None, UNTIL])
def test_a_standard_scaler_of_exact_sums_is_that_of_the_rows(shop: Shop, until: int | None) -> None:
    """Counts equal, means within two units in the last place, variances within 1e-12."""
    names = ["price", "items", "amount"]
    rows = shop.members(until=until or np.inf)
    expected = StandardScaler().fit(columns_of(rows, *names))
    for origin in ("tiles", "events"):
        fit = fit_columns(shop.reader(), StandardScaler(), names, until_ms=until, origin=origin)  # type: ignore[arg-type]
        found = fit.transformer
        assert isinstance(found, StandardScaler)
        assert found.rows_seen == len(rows)
        assert found.n_samples_seen_.tolist() == expected.n_samples_seen_.tolist()
        assert np.abs(found.mean_ - expected.mean_).max() <= 2 * np.spacing(20.0)
        assert found.var_ == pytest.approx(expected.var_, rel=1e-12)
        assert found.names == tuple(names)
        assert (fit.fitted_on["from"], fit.fitted_on["until_ms"]) == (origin, until)


def test_float_sums_are_within_the_bound_that_their_condition_number_states(shop: Shop) -> None:
    rows = shop.members()
    expected = StandardScaler().fit(columns_of(rows, "noise"))
    fit = fit_columns(shop.reader(), StandardScaler(), ["noise"], origin="tiles")
    (column,) = fit.statistics
    assert column.moments is not None
    assert 1 < column.moments.condition < 2
    bound = len(rows) * 2.0**-52 * column.moments.condition * 2
    assert isinstance(fit.transformer, StandardScaler)
    assert fit.transformer.var_ == pytest.approx(expected.var_, rel=bound)
    assert fit.transformer.mean_ == pytest.approx(expected.mean_, rel=1e-14)


@pytest.mark.parametrize("until", [None, UNTIL])
def test_ranges_and_categories_are_equal_to_the_bit(shop: Shop, until: int | None) -> None:
    rows = shop.members(until=until or np.inf)
    scaler = MinMaxScaler((-1, 1)).fit(columns_of(rows, "price", "items", "noise"))
    encoder = OneHotEncoder("ignore").fit(columns_of(rows, "country", "gift"))
    for expected, names in ((scaler, ["price", "items", "noise"]), (encoder, ["country", "gift"])):
        fresh = new_transformer(
            expected.kind,
            {"feature_range": (-1, 1)} if expected is scaler else {"handle_unknown": "ignore"},
        )
        found = fit_columns(shop.reader(), fresh, names, until_ms=until, origin="tiles").transformer
        expected.names = tuple(names)
        assert found.to_params() == expected.to_params()


def test_what_the_tiles_do_not_hold_is_read_from_events_or_reported(shop: Shop) -> None:
    rows = [row for row in shop.members() if row["customer_id"] is not None]
    fit = fit_columns(shop.reader("spend"), OneHotEncoder(), ["country"])
    assert fit.fitted_on["from"] == "events"
    assert isinstance(fit.transformer, OneHotEncoder)
    assert (
        fit.transformer.categories_ == OneHotEncoder().fit(columns_of(rows, "country")).categories_
    )
    assert fit_columns(shop.reader("spend"), MinMaxScaler(), ["price"]).fitted_on["from"] == "tiles"
    with pytest.raises(
        RequestError, match=r'define pf.statistics_view\(..., shop, \[pf.Numbers\("am'
    ):
        fit_columns(shop.reader("spend"), MinMaxScaler(), ["price", "amount"], origin="tiles")
    with pytest.raises(
        TransformError, match="tiles of view 'kept' have no event in this.*backfill kept"
    ):
        fit_columns(shop.reader(), MinMaxScaler(), ["price"], until_ms=START - 1)


def test_beyond_its_condition_number_a_deviation_is_a_status_and_no_number() -> None:
    far = MomentSums.around(1000, 1e12, 1e21 * (1 + 1e-15), 0.0)
    assert far.condition > 2.0**34
    column = ColumnStatistics("x", 1000, 1000, far)
    with pytest.raises(
        TransformError, match=r"column 'x' is ILL_CONDITIONED.*center= near its mean"
    ):
        StandardScaler().fit_from_statistics([column])
    constant = MomentSums.around(3, 0.0, 0.0, 5.0)
    scaler = StandardScaler().fit_from_statistics([ColumnStatistics("x", 3, 3, constant)])
    assert scaler.transform([[6.0]]) == [[1.0]]


def test_sums_that_may_have_wrapped_are_not_reported(shop: Shop) -> None:
    reader = shop.reader()
    (kept,) = reader.tile_columns(["items"])
    merged = {p.name: Column(np.array([5])) for p in kept.partials}
    fine = kept.statistics(merged)
    assert fine.moments is not None
    assert fine.moments.condition == 1.0
    merged["p_count_items"] = Column(np.array([10**12]))
    merged["p_max_items"] = Column(np.array([2**40]))
    with pytest.raises(TransformError, match="'items' is ILL_CONDITIONED"):
        StandardScaler().fit_from_statistics([kept.statistics(merged)])


def test_tables_without_rows_do_not_matter_wherever_they_are() -> None:
    full, empty = pa.table({"a": [1.0, 3.0]}), pa.table({"a": pa.array([], pa.float64())})
    for scaler in (StandardScaler(), RobustScaler()):
        expected = type(scaler)().fit(full)
        for tables in ([empty, full], [full, empty], [empty, full, empty]):
            fit_rows(scaler, tables)
            assert scaler == expected


def test_undeclared_categories_are_refused_and_missing_statistics_named() -> None:
    other = ColumnStatistics("c", 3, 3, categories={"a": 2}, other=1)
    with pytest.raises(TransformError, match="has 1 values that are none of the declared"):
        OneHotEncoder().fit_from_statistics([other])
    bare = ColumnStatistics("c", 3, 3)
    for transformer in (StandardScaler(), MinMaxScaler(), OneHotEncoder()):
        with pytest.raises(TransformError, match="column 'c': its .* not known"):
            transformer.fit_from_statistics([bare])
    with pytest.raises(TransformError, match="expected statistics of the same rows"):
        StandardScaler().fit_from_statistics([bare, ColumnStatistics("d", 4)])


@pytest.mark.long
def test_a_fit_of_the_same_is_no_new_version_and_drift_is_of_what_came_since(
    tmp_path: Path,
) -> None:
    shop = open_shop(tmp_path)
    shop.commit(random_rows(5, 600))
    shop.tile()
    lake = shop.project.lake

    def fit() -> Any:
        return fit_columns(shop.reader(), StandardScaler(), ["price", "items"])

    first, is_new = save_fit(lake, "scaler", fit(), 1)
    assert (first.version, is_new) == (1, True)
    assert save_fit(lake, "scaler", fit(), 2) == (first, False)
    shop.commit(random_rows(6, 600))
    shop.tile()
    same = drift_since(first, fit().statistics)
    shop.commit(random_rows(7, 900, shift=3.0))
    shop.tile()
    moved = drift_since(first, fit().statistics)
    prices = [r["price"] for r in shop.members() if r["price"] is not None]
    assert moved[0].count + moved[0].reference == len(prices)
    assert same[0].psi is not None
    assert moved[0].psi is not None
    assert same[0].psi < 0.05 < 0.2 < moved[0].psi
    assert moved[1].psi is None  # no bins were declared
    second, is_new = save_fit(lake, "scaler", fit(), 3)
    assert (second.version, is_new, len(fitted_versions(lake, "scaler"))) == (2, True, 2)


def test_what_cannot_learn_in_parts_has_the_events_of_all_files_at_once(tmp_path: Path) -> None:
    shop = open_shop(tmp_path)
    for seed in (8, 9):
        shop.commit(random_rows(seed, 300))
    shop.tile()
    rows = [row for row in shop.members() if row["customer_id"] is not None]
    for transformer in (
        RobustScaler(),
        KBinsDiscretizer(4, strategy="kmeans", encode="ordinal"),
        Imputer("median"),
        Pipeline([("fill", Imputer()), ("scale", StandardScaler())]),
    ):
        fit = fit_columns(shop.reader("spend"), transformer, ["items", "amount"])
        assert fit.fitted_on["from"] == "events"
        expected = type(transformer).from_params(transformer.to_params())
        expected.fit(columns_of(rows, "items", "amount"))
        expected.names = ("items", "amount")
        requested = columns_of(rows, "items", "amount")
        got, wanted = (
            np.array(t.transform(requested), np.float64) for t in (transformer, expected)
        )
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-14)


LEARNERS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("max_abs_scaler", {}, ["price", "items"]),
    ("robust_scaler", {"quantile_range": (10, 90)}, ["price", "amount"]),
    ("quantile_transformer", {"n_quantiles": 20}, ["price", "amount"]),
    ("k_bins_discretizer", {"n_bins": 3}, ["price", "amount"]),
    ("k_bins_discretizer", {"n_bins": 4, "strategy": "uniform"}, ["price", "noise"]),
    ("imputer", {"strategy": "mean"}, ["price", "items"]),
    ("imputer", {"strategy": "median"}, ["price", "amount"]),
    ("imputer", {"strategy": "most_frequent"}, ["country"]),
    ("frequency_encoder", {}, ["country", "gift"]),
    ("one_hot_encoder", {"max_categories": 2}, ["country"]),
]


@pytest.mark.parametrize(("kind", "settings", "names"), LEARNERS, ids=str)
def test_every_other_kind_learns_from_tiles_what_it_learns_from_rows_over_the_same_bins(
    shop: Shop, kind: str, settings: dict[str, Any], names: list[str]
) -> None:
    found = fit_columns(
        shop.reader(), new_transformer(kind, settings), names, until_ms=UNTIL, origin="tiles"
    ).transformer
    grid = found.to_params().get("grid")
    with_grid = settings if grid is None else {**settings, "grid": grid}
    expected = new_transformer(kind, with_grid).fit(columns_of(shop.members(until=UNTIL), *names))
    expected.names = tuple(names)
    mine, its = found.to_params(), expected.to_params()
    if kind == "imputer" and settings["strategy"] == "mean":
        assert mine.pop("mean") == pytest.approx(its.pop("mean"), rel=1e-15)
        mine.pop("mean_rest"), its.pop("mean_rest")
    assert mine == its
    again = StoredTransformer.from_params(mine | found.to_params())
    assert again.to_params() == found.to_params()


def test_what_takes_other_bins_or_a_target_is_refused(shop: Shop) -> None:
    other = new_transformer("robust_scaler", {"grid": [0.0, 1.0]})
    with pytest.raises(TransformError, match="does not equal the bins of column 'price'"):
        fit_columns(shop.reader(), other, ["price"], origin="tiles")
    with pytest.raises(RequestError, match="a TargetEncoder is also fitted on a target"):
        fit_columns(shop.reader(), new_transformer("target_encoder"), ["country"])
    hazen = new_transformer("k_bins_discretizer", {"quantile_method": "hazen"})
    with pytest.raises(TransformError, match="quantile_method='hazen'; expected one of over bins"):
        fit_columns(shop.reader(), hazen, ["price"], origin="tiles")
    with pytest.raises(RequestError, match=r'pf.Numbers\("items", edges=...\)'):
        fit_columns(shop.reader(), new_transformer("robust_scaler"), ["items"], origin="tiles")
    declared = new_transformer("hashing_encoder", {"n_features": 4})
    with pytest.raises(RequestError, match="is fitted on rows, not on tiles"):
        fit_columns(shop.reader(), declared, ["country"], origin="tiles")
