"""What each kind of transformer is in operators of ONNX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paimon_features.core.errors import TransformError
from paimon_features.transformers.base import StoredTransformer
from paimon_features.transformers.category_index import CategoryIndex
from paimon_features.transformers.column_transformer import ColumnTransformer
from paimon_features.transformers.frequency_encoder import FrequencyEncoder
from paimon_features.transformers.hashing_encoder import HashingEncoder
from paimon_features.transformers.imputer import Imputer
from paimon_features.transformers.k_bins import KBinsDiscretizer
from paimon_features.transformers.normal_distribution import CENTRE, MIDDLE, TAIL
from paimon_features.transformers.one_hot import OneHotEncoder
from paimon_features.transformers.onnx_graph import OnnxGraph, OnnxTensor
from paimon_features.transformers.pipeline import Pipeline
from paimon_features.transformers.pipeline_steps import Frozen, Passthrough, in_step
from paimon_features.transformers.quantile_transformer import EDGE, QuantileTransformer
from paimon_features.transformers.robust_scaler import RobustScaler
from paimon_features.transformers.scalers import MaxAbsScaler, MinMaxScaler, StandardScaler
from paimon_features.transformers.stateless import Clip, InteractionFeatures, LogTransform
from paimon_features.transformers.target_encoder import TargetEncoder

Parts = Sequence[OnnxTensor]
_NAN = np.array(np.nan)


def convert(graph: OnnxGraph, transformer: StoredTransformer, parts: Parts) -> list[OnnxTensor]:
    """Return what a transformer makes of columns.

    Raises
    ------
    TransformError
        For a kind, or a setting of it, that cannot be expressed.
    """
    converter = _KINDS.get(type(transformer))
    if converter is None:
        available = ", ".join(kind.__name__ for kind in _KINDS)
        raise TransformError(
            f"a {type(transformer).__name__} cannot be expressed in ONNX; supported: {available}"
        )
    return converter(graph, transformer, parts)


# -- parts of others ----------------------------------------------------------------------------


def _pipeline(graph: OnnxGraph, of: Pipeline, parts: Parts) -> list[OnnxTensor]:
    for name, step in of.steps_:
        parts = _step(graph, name, step, parts)
    return list(parts)


def _branches(graph: OnnxGraph, of: ColumnTransformer, parts: Parts) -> list[OnnxTensor]:
    out: list[OnnxTensor] = []
    for name, step, columns in of.branches_:
        out += _step(graph, name, step, [graph.column(parts, index) for index in columns])
    return out


def _step(graph: OnnxGraph, name: str, step: StoredTransformer, parts: Parts) -> list[OnnxTensor]:
    with in_step(name):
        return convert(graph, step, parts)


# -- numbers ------------------------------------------------------------------------------------


def _standard(graph: OnnxGraph, of: StandardScaler, parts: Parts) -> list[OnnxTensor]:
    x = graph.joined(parts)
    name = x.name
    if of.settings_.with_mean:
        name = graph.node("Sub", name, graph.constant(of.mean_))
    if of.scale_ is not None:
        name = graph.node("Div", name, graph.constant(of.scale_))
    return [OnnxTensor(name, x.width, is_raw=name == x.name and x.is_raw)]


def _min_max(graph: OnnxGraph, of: MinMaxScaler, parts: Parts) -> list[OnnxTensor]:
    x = graph.joined(parts)
    scaled = graph.node("Mul", x.name, graph.constant(of.scale_))
    name = graph.node("Add", scaled, graph.constant(of.min_))
    if of.settings_.clip:
        name = _between(graph, name, *of.settings_.feature_range)
    return [OnnxTensor(name, x.width)]


def _max_abs(graph: OnnxGraph, of: MaxAbsScaler, parts: Parts) -> list[OnnxTensor]:
    x = graph.joined(parts)
    name = graph.node("Div", x.name, graph.constant(of.scale_))
    return [OnnxTensor(_between(graph, name, -1.0, 1.0) if of.settings_.clip else name, x.width)]


def _between(graph: OnnxGraph, name: str, low: float, high: float) -> str:
    """Return numbers moved onto bounds; NaN stays."""
    ends = (graph.constant(np.array(float(end))) for end in (low, high))
    return _keep_nan(graph, name, graph.node("Clip", name, *ends))


def _robust(graph: OnnxGraph, of: RobustScaler, parts: Parts) -> list[OnnxTensor]:
    x = graph.joined(parts)
    name = x.name
    if of.center_ is not None:
        name = graph.node("Sub", name, graph.constant(of.center_))
    if of.scale_ is not None:
        name = graph.node("Div", name, graph.constant(of.scale_))
    return [OnnxTensor(name, x.width)]


def _clip(graph: OnnxGraph, of: Clip, parts: Parts) -> list[OnnxTensor]:
    x = graph.joined(parts)
    name = x.name
    if of.settings_.low is not None:
        name = graph.node("Max", name, graph.constant(np.array(of.settings_.low)))
    if of.settings_.high is not None:
        name = graph.node("Min", name, graph.constant(np.array(of.settings_.high)))
    # comparisons of onnxruntime may lose what is not there
    return [OnnxTensor(_keep_nan(graph, x.name, name), x.width)]


def _log(graph: OnnxGraph, of: LogTransform, parts: Parts) -> list[OnnxTensor]:
    x = graph.joined(parts)
    offset = graph.constant(np.array(of.settings_.offset))
    if of.settings_.signed:
        size = _log1p(graph, graph.node("Div", graph.node("Abs", x.name), offset))
        return [OnnxTensor(graph.node("Mul", size, graph.node("Sign", x.name)), x.width)]
    if of.settings_.offset == 1.0:
        logarithm = _log1p(graph, x.name)
    else:
        logarithm = graph.node("Log", graph.node("Add", x.name, offset))
    refused = graph.node("LessOrEqual", x.name, graph.constant(np.array(-of.settings_.offset)))
    return [OnnxTensor(graph.node("Where", refused, graph.constant(_NAN), logarithm), x.width)]


def _log1p(graph: OnnxGraph, name: str) -> str:
    """Return log(1 + x) without loss of digits near 0 (Kahan's; ONNX has no such operator)."""
    one = graph.constant(np.array(1.0))
    above = graph.node("Add", name, one)
    rounding = graph.node("Sub", above, one)
    is_one = graph.node("Equal", above, one)
    quotient = graph.node("Div", name, graph.node("Where", is_one, one, rounding))
    return graph.node("Where", is_one, name, graph.node("Mul", graph.node("Log", above), quotient))


def _interaction(graph: OnnxGraph, of: InteractionFeatures, parts: Parts) -> list[OnnxTensor]:
    graph.joined(parts)  # raises for strings
    out = list(parts) if of.settings_.keep else []
    for left, right, operation in of.pairs_:
        a, b = graph.column(parts, left).name, graph.column(parts, right).name
        if operation in ("difference", "abs_difference"):
            name = graph.node("Sub", a, b)
            name = graph.node("Abs", name) if operation == "abs_difference" else name
        elif operation == "ratio":
            name = graph.node("Div", a, b)
            by_zero = graph.node("Equal", b, graph.constant(np.array(0.0)))
            zero = graph.constant(
                _NAN if of.settings_.zero is None else np.array(of.settings_.zero)
            )
            name = _keep_nan(graph, a, graph.node("Where", by_zero, zero, name))
        else:
            name = graph.node(
                {"product": "Mul", "sum": "Add", "min": "Min", "max": "Max"}[operation], a, b
            )
            if operation in ("min", "max"):
                name = _keep_nan(graph, b, _keep_nan(graph, a, name))
        out.append(OnnxTensor(name, 1))
    return out


def _imputer(graph: OnnxGraph, of: Imputer, parts: Parts) -> list[OnnxTensor]:
    width = len(of.statistics_)
    columns = [graph.column(parts, index) for index in range(width)]
    gaps = [_is_missing(graph, column) for column in columns]
    marker = of.settings_.missing_values
    for index, column in enumerate(columns):
        if marker is not None and isinstance(marker, str) == column.is_text:
            value = np.array([marker], object) if column.is_text else graph.like(column, [marker])
            equal = graph.node("Equal", column.name, graph.constant(value))
            gaps[index] = graph.node("Or", gaps[index], equal)
    out = []
    for column, gap, fill in zip(columns, gaps, of.statistics_, strict=True):
        if fill is None:
            continue
        if isinstance(fill, str) != column.is_text:
            raise TransformError("a column of strings is filled with a number, or the reverse")
        value = np.array([fill], object) if column.is_text else graph.like(column, [fill])
        name = graph.node("Where", gap, graph.constant(value), column.name)
        out.append(OnnxTensor(name, 1, column.is_text, column.is_raw))
    return out + [OnnxTensor(graph.float64(gaps[index]), 1) for index in of.indicated_]


def _bins(graph: OnnxGraph, of: KBinsDiscretizer, parts: Parts) -> list[OnnxTensor]:
    out = []
    for index, edges in enumerate(of.bin_edges_):
        x = graph.column(parts, index)
        if x.is_text:
            raise TransformError("it takes numbers, and one of its columns is strings")
        width = 1 if of.settings_.encode == "ordinal" else int(of.n_bins_[index])
        nothing = graph.constant(np.full((1, width), np.nan))
        if not len(edges):
            zeros = graph.node("Mul", x.name, graph.constant(np.zeros((1, width))))
            out.append(OnnxTensor(graph.node("Add", zeros, nothing), width))
            continue
        bins = _count_from(graph, x, edges[1:-1])
        if of.settings_.encode == "ordinal":
            encoded = graph.float64(bins)
        else:
            encoded = graph.float64(
                graph.node("Equal", bins, graph.constant(np.arange(width)[None]))
            )
        gap = graph.node("IsNaN", x.name)
        out.append(OnnxTensor(graph.node("Where", gap, nothing, encoded), width))
    return out


def _count_from(graph: OnnxGraph, x: OnnxTensor, edges: Any) -> str:
    """Return how many of ascending edges each value reaches, shape (rows, 1), int64."""
    if not len(edges):
        return graph.node("Sub", *[graph.int64(graph.node("IsNaN", x.name))] * 2)
    reached = graph.node("GreaterOrEqual", x.name, graph.constant(graph.like(x, edges)[None]))
    axis = graph.constant(np.array([1], np.int64))
    return graph.node("ReduceSum", graph.int64(reached), axis, keepdims=1)


def _quantile(graph: OnnxGraph, of: QuantileTransformer, parts: Parts) -> list[OnnxTensor]:
    is_normal = of.settings_.output_distribution == "normal"
    out = []
    for index in range(of.width):
        x = graph.column(parts, index)
        quantiles = graph.like(x, of.quantiles_[:, index])
        nothing = graph.constant(_NAN)
        if np.isnan(quantiles[0]):
            out.append(OnnxTensor(graph.node("Add", x.name, nothing), 1))
            continue
        minus = OnnxTensor(graph.node("Neg", x.name), 1)
        up = _interpolated(graph, x, quantiles, of.references_)
        down = _interpolated(graph, minus, -quantiles[::-1], -of.references_[::-1])
        both = graph.node("Mul", graph.node("Sub", up, down), graph.constant(np.array(0.5)))
        for end, value, beyond, step in (
            (quantiles[-1], 1.0, "Greater", EDGE),
            (quantiles[0], 0.0, "Less", -EDGE),
        ):
            if is_normal:
                moved = graph.node("Add", x.name, graph.constant(np.array(step)))
                at_end = graph.node(beyond, moved, graph.constant(np.array(end)))
            else:
                at_end = graph.node("Equal", x.name, graph.constant(np.array(end)))
            both = graph.node("Where", at_end, graph.constant(np.array(value)), both)
        if is_normal:
            both = _normal(graph, both)
        out.append(OnnxTensor(_keep_nan(graph, x.name, both), 1))
    return out


def _normal(graph: OnnxGraph, share: str) -> str:
    """Return ``normal_quantile`` within the bounds of a QuantileTransformer, branch by branch."""

    def constant(value: float) -> str:
        return graph.constant(np.array(value))

    def ratio(of: tuple[tuple[float, ...], tuple[float, ...]], at: str) -> str:
        sides = []
        for powers in of:
            side = constant(powers[0])
            for coefficient in powers[1:]:
                side = graph.node("Add", graph.node("Mul", side, at), constant(coefficient))
            sides.append(side)
        return graph.node("Div", *sides)

    least = EDGE - np.spacing(1)
    # both ends become finite, so that the other branches, which compute from them, are finite, too
    share = graph.node("Max", graph.node("Min", share, constant(1 - least)), constant(least))
    apart = graph.node("Sub", share, constant(0.5))
    square = graph.node("Sub", constant(0.180625), graph.node("Mul", apart, apart))
    centre = graph.node("Mul", apart, ratio(CENTRE, square))
    nearer = graph.node("Min", share, graph.node("Sub", constant(1.0), share))
    root = graph.node("Sqrt", graph.node("Neg", graph.node("Log", nearer)))
    outer = graph.node(
        "Where",
        graph.node("LessOrEqual", root, constant(5.0)),
        ratio(MIDDLE, graph.node("Sub", root, constant(1.6))),
        ratio(TAIL, graph.node("Sub", root, constant(5.0))),
    )
    outer = graph.node("Mul", outer, graph.node("Sign", apart))
    is_outer = graph.node("Greater", graph.node("Abs", apart), constant(0.425))
    return graph.node("Where", is_outer, outer, centre)


def _interpolated(graph: OnnxGraph, x: OnnxTensor, at: Any, values: Any) -> str:
    """Return ``np.interp(x, at, values)``, shape (rows, 1)."""
    steps = np.diff(at)
    slopes = np.divide(np.diff(values), steps, out=np.zeros(len(steps)), where=steps > 0)
    # before the first value and from the last one on it is level
    starts = np.concatenate([at[:1], at])
    levels = np.concatenate([values[:1], values])
    slopes = np.concatenate([[0.0], slopes, [0.0]])
    place = _count_from(graph, OnnxTensor(x.name, 1), at)
    start, level, slope = (
        graph.node("Gather", graph.constant(table), place) for table in (starts, levels, slopes)
    )
    moved = graph.node("Mul", graph.node("Sub", x.name, start), slope)
    return graph.node("Add", moved, level)


# -- categories ---------------------------------------------------------------------------------


def _codes(graph: OnnxGraph, vocabulary: CategoryIndex, x: OnnxTensor) -> str:
    """Return the place of each value among the categories, their number for unknown ones; int64."""
    size = len(vocabulary)
    categories = vocabulary.categories
    none = categories.index(None) if None in categories else size
    if x.is_text:
        texts = [v for v in categories if isinstance(v, str)]
        if graph.null_text in texts and None in categories:
            raise TransformError(
                f"the category {graph.null_text!r} is what stands for null among strings; give "
                "another null_text="
            )
        # without that category it is null, and with it the text itself
        literal = graph.null_text in texts
        (graph.as_text if literal else graph.as_null).add(x.name)
        keys = texts if literal else [*texts, graph.null_text]
        places = [*range(len(texts)), none][: len(keys)]
        return graph.node(
            "LabelEncoder", x.name, domain="ai.onnx.ml", keys_strings=keys, values_int64s=places,
            default_int64=size,
        )  # fmt: skip
    numbers = [v for v in categories if v is not None]
    if any(isinstance(v, str) for v in numbers):
        raise TransformError("its categories are strings, and the column is numbers")
    values = graph.like(x, numbers)
    if len(set(values.tolist())) < len(numbers):
        raise TransformError(f"two categories are one number in {graph.dtype}; use dtype='float64'")
    code = graph.constant(np.array([[size]], np.int64))
    if len(numbers):
        same = graph.int64(graph.node("Equal", x.name, graph.constant(values[None])))
        # of a row at most one is 1, at the place of the category; all zeros: it is unknown
        weights = graph.constant((np.arange(len(numbers)) - size)[None])
        axis = graph.constant(np.array([1], np.int64))
        shift = graph.node("ReduceSum", graph.node("Mul", same, weights), axis, keepdims=1)
        code = graph.node("Add", shift, code)
    gap = graph.node("IsNaN", x.name)
    return graph.node("Where", gap, graph.constant(np.array([[none]], np.int64)), code)


def _looked_up(graph: OnnxGraph, table: Any, codes: str) -> str:
    """Return rows of a table, shape (rows, width); ``codes`` have the shape (rows, 1)."""
    flat = graph.node("Reshape", codes, graph.constant(np.array([-1], np.int64)))
    return graph.node("Gather", graph.constant(np.asarray(table, np.float64)), flat, axis=0)


def _one_hot(graph: OnnxGraph, of: OneHotEncoder, parts: Parts) -> list[OnnxTensor]:
    out = []
    for index, (vocabulary, (slots, width)) in enumerate(
        zip(of.vocabularies_, of.slots_, strict=True)
    ):
        codes = _codes(graph, vocabulary, graph.column(parts, index))
        if not width:
            continue
        place = graph.node("Gather", graph.constant(slots), codes)
        hot = graph.float64(graph.node("Equal", place, graph.constant(np.arange(width)[None])))
        if of.settings_.handle_unknown == "error":
            unknown = graph.node("Equal", codes, graph.constant(np.array([[len(vocabulary)]])))
            hot = graph.node("Where", unknown, graph.constant(_NAN), hot)
        out.append(OnnxTensor(hot, width))
    return out


def _frequency(graph: OnnxGraph, of: FrequencyEncoder, parts: Parts) -> list[OnnxTensor]:
    out = []
    for index, vocabulary in enumerate(of.vocabularies_):
        last = 0.0 if of.settings_.handle_unknown == "zero" else np.nan
        table = np.append(of.frequencies_[index], last)[:, None]
        codes = _codes(graph, vocabulary, graph.column(parts, index))
        out.append(OnnxTensor(_looked_up(graph, table, codes), 1))
    return out


def _target(graph: OnnxGraph, of: TargetEncoder, parts: Parts) -> list[OnnxTensor]:
    means = np.atleast_1d(of.target_mean_)
    out = []
    for index, vocabulary in enumerate(of.vocabularies_):
        encodings = of.encodings_[index * len(means) : (index + 1) * len(means)]
        table = np.column_stack([np.append(e, m) for e, m in zip(encodings, means, strict=True)])
        codes = _codes(graph, vocabulary, graph.column(parts, index))
        out.append(OnnxTensor(_looked_up(graph, table, codes), len(means)))
    return out


def _hashing(graph: OnnxGraph, of: HashingEncoder, parts: Parts) -> list[OnnxTensor]:
    places_out = of.settings_.n_features
    if of.settings_.output == "index" and graph.dtype == "float32" and places_out > 2**24:
        raise TransformError(
            f"float32 does not distinguish n_features={places_out:,} places; use dtype='float64'"
        )
    out = []
    for index in range(of.width):
        x = graph.column(parts, index)
        gap = _is_missing(graph, x)
        text = x.name
        if not x.is_text:
            filled = graph.node("Where", gap, graph.constant(np.array(0.0)), x.name)
            text = graph.text(graph.int64(filled))
        # axes: (rows, 1), of lists (rows, items)
        hashes = graph.int64(graph.microsoft("MurmurHash3", text, seed=0, positive=0))
        size = graph.constant(np.array(places_out, np.int64))
        place = graph.node("Mod", graph.node("Abs", hashes), size)
        if of.settings_.output == "index":
            encoded = graph.node("Where", gap, graph.constant(_NAN), graph.float64(place))
            out.append(OnnxTensor(encoded, 1))
            continue
        weight = graph.node("Where", gap, *map(graph.constant, (np.array(0.0), np.array(1.0))))
        if of.settings_.alternate_sign:
            below = graph.node("Less", hashes, graph.constant(np.array(0, np.int64)))
            sign = (graph.constant(np.array(sign)) for sign in (-1.0, 1.0))
            weight = graph.node("Mul", weight, graph.node("Where", below, *sign))
        # axes: (rows, items, places), added up over the items
        last, items = (graph.constant(np.array([axis], np.int64)) for axis in (2, 1))
        places = graph.constant(np.arange(of.settings_.n_features)[None, None])
        hot = graph.float64(graph.node("Equal", graph.node("Unsqueeze", place, last), places))
        encoded = graph.node("Mul", hot, graph.node("Unsqueeze", weight, last))
        out.append(
            OnnxTensor(graph.node("ReduceSum", encoded, items, keepdims=0), of.settings_.n_features)
        )
    return out


def _is_missing(graph: OnnxGraph, x: OnnxTensor) -> str:
    if x.is_text:  # equal strings are an operator of later versions of ONNX only
        graph.as_null.add(x.name)
        is_null_text = graph.node(
            "LabelEncoder", x.name, domain="ai.onnx.ml", keys_strings=[graph.null_text],
            values_int64s=[1], default_int64=0,
        )  # fmt: skip
        return graph.node("Equal", is_null_text, graph.constant(np.array(1, np.int64)))
    return graph.node("IsNaN", x.name)


def _keep_nan(graph: OnnxGraph, given: str, result: str) -> str:
    return graph.node("Where", graph.node("IsNaN", given), graph.constant(_NAN), result)


_KINDS: dict[type[StoredTransformer], Callable[[OnnxGraph, Any, Parts], list[OnnxTensor]]] = {
    Clip: _clip,
    ColumnTransformer: _branches,
    FrequencyEncoder: _frequency,
    Frozen: lambda graph, of, parts: convert(graph, of.transformer, parts),
    HashingEncoder: _hashing,
    Imputer: _imputer,
    InteractionFeatures: _interaction,
    KBinsDiscretizer: _bins,
    LogTransform: _log,
    MaxAbsScaler: _max_abs,
    MinMaxScaler: _min_max,
    OneHotEncoder: _one_hot,
    Passthrough: lambda graph, of, parts: list(parts),
    Pipeline: _pipeline,
    QuantileTransformer: _quantile,
    RobustScaler: _robust,
    StandardScaler: _standard,
    TargetEncoder: _target,
}
