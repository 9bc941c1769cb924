"""From raw features to the arrays that a network reads: fitted on the training rows, and as ONNX.

::

    feature         array               shape           how
    number, bool    numbers (float32)   (rows, 1 or 2)  scaled, null 0, and a column for null
    text            numbers             (rows, n)       a column for each frequent category
    vector          numbers             (rows, n)       as it is, null 0
    list of texts   codes (int64)       (rows, 1, n)    0 null or padding, 1 unknown, 2, 3, ...
    list of floats  values (float32)    (rows, 1, n)    scaled, NaN null or padding

All columns of ``numbers`` are side by side, all lists one behind the other. Scalars go through
``paimon_features.transformers``, whose ONNX form computes the same numbers.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.core.columns.column import Column
from paimon_features.core.documents.typed_json import mapping, typed
from paimon_features.core.documents.unambiguous_json import parse_unambiguous_json
from paimon_features.core.errors import ConfigurationError, RequestError
from paimon_features.models import ModelInput
from paimon_features.transformers import (
    ColumnTransformer,
    Imputer,
    OneHotEncoder,
    Pipeline,
    QuantileTransformer,
    StandardScaler,
    StoredTransformer,
)
from paimon_features.transformers.onnx_export import to_onnx

NULL_TEXT = "<null>"
"""What stands for null in a tensor of strings: training rows must not contain it."""
Arrays = dict[str, npt.NDArray[Any]]
FeatureKind = Literal["number", "text", "vector", "text_list", "number_list"]


@dataclass(frozen=True, slots=True)
class InputFeature:
    """A feature that a model reads: an output of the service, and its column in the training set.

    ``width`` is the number of items of a vector or list.
    """

    output: str
    column: str
    type: str
    kind: FeatureKind
    width: int = 1
    definition: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """The columns of ``numbers`` that one feature has."""

    output: str
    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ListScale:
    """Mean and deviation of the items of a list of numbers."""

    mean: float
    scale: float


class FeatureEncoder:
    """Fitted features: ``apply`` encodes Arrow rows, ``front`` is the same as an ONNX graph."""

    def __init__(
        self,
        features: Sequence[InputFeature],
        scalars: StoredTransformer | None,
        words: Mapping[str, Sequence[str]],
        scales: Mapping[str, ListScale],
    ) -> None:
        self.features = tuple(features)
        self.scalars = scalars
        self.words = {name: tuple(texts) for name, texts in words.items()}
        self.scales = dict(scales)

    @classmethod
    def fit(
        cls,
        table: pa.Table,
        features: Sequence[InputFeature],
        *,
        numbers: Literal["standard", "quantile"] = "standard",
        max_categories: int = 64,
        max_items: int = 1_000,
        seed: int = 0,
    ) -> FeatureEncoder:
        """Fit on rows, which have the columns of the features.

        Raises
        ------
        ConfigurationError
            If the features contain neither numbers, texts nor vectors, or a text that stands for
            null.
        TransformError
            For values that no transformer can be fitted to.
        """
        by_kind = {kind: [f for f in features if f.kind == kind] for kind in _KINDS}
        if not (by_kind["number"] or by_kind["text"] or by_kind["vector"]):
            raise ConfigurationError(
                "the model reads no number, text or vector: add one to the service, such as Count()"
            )
        for feature in by_kind["text"]:
            if table[feature.column].null_count == table.num_rows:
                raise ConfigurationError(
                    f"feature {feature.output} is null in all {table.num_rows:,} training rows, so "
                    "that its categories are not known; leave it out: data.exclude"
                )
        branches: list[Any] = []
        if by_kind["number"]:
            scale: StoredTransformer = StandardScaler()
            if numbers == "quantile":
                scale = QuantileTransformer(
                    n_quantiles=min(1_000, table.num_rows),
                    output_distribution="normal",
                    random_state=seed,
                )
            fill = Imputer("constant", fill_value=0.0, add_indicator=True, keep_empty_features=True)
            steps = Pipeline([("scale", scale), ("fill", fill)])
            branches.append(("numbers", steps, [f.column for f in by_kind["number"]]))
        for number, feature in enumerate(by_kind["text"]):
            encoder = OneHotEncoder("infrequent_if_exist", max_categories=max_categories)
            branches.append((f"text{number}", encoder, [feature.column]))
        scalars = None
        if branches:
            columns = [f.column for f in features if f.kind in ("number", "text")]
            scalars = ColumnTransformer(branches).fit(_plain(table.select(columns)))
        for feature in [*by_kind["text"], *by_kind["text_list"]]:
            if NULL_TEXT in _items(table[feature.column]).to_pylist():
                raise ConfigurationError(
                    f"feature {feature.output}: the text {NULL_TEXT!r} stands for null in a "
                    "network's input; replace it in the source"
                )
        words = {f.column: _most_frequent(table[f.column], max_items) for f in by_kind["text_list"]}
        scales = {f.column: _scale_of(table[f.column]) for f in by_kind["number_list"]}
        return cls(features, scalars, words, scales)

    # -- what networks are made for ------------------------------------------------------------

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The columns of ``numbers``, by feature, in the order of the features."""
        names = [] if self.scalars is None else self.scalars.names_out(list(self._scalar_columns))
        at = {name: index for index, name in enumerate(names)}
        branches = iter(self._text_branches)
        by_feature, vectors = [], len(names)
        for feature in self.features:
            if feature.kind == "number":
                pair = [f"numbers__{feature.column}", f"numbers__missingindicator_{feature.column}"]
                indices = tuple(at[name] for name in pair if name in at)
            elif feature.kind == "text":
                branch = f"{next(branches)}__"
                indices = tuple(i for name, i in at.items() if name.startswith(branch))
            elif feature.kind == "vector":
                indices = tuple(range(vectors, vectors + feature.width))
                vectors += feature.width
            else:
                continue
            by_feature.append(Group(feature.output, indices))
        return tuple(by_feature)

    @cached_property
    def width(self) -> int:
        """The columns of ``numbers``."""
        return sum(len(group.indices) for group in self.groups)

    @property
    def vocabulary_sizes(self) -> tuple[int, ...]:
        """The number of codes of each list of texts."""
        return tuple(len(self.words[f.column]) + 2 for f in self._of("text_list"))

    @property
    def value_lists(self) -> int:
        """The number of lists of numbers."""
        return len(self._of("number_list"))

    @property
    def length(self) -> int:
        """Items of the longest list; 0 without lists."""
        lists = [*self._of("text_list"), *self._of("number_list")]
        return max((f.width for f in lists), default=0)

    @property
    def array_names(self) -> tuple[str, ...]:
        """The arrays that ``apply`` returns, in the order in which networks take them."""
        candidates = [("numbers", True), ("codes", self._of("text_list")),
                 ("values", self._of("number_list"))]  # fmt: skip
        return tuple(name for name, any_of_them in candidates if any_of_them)

    # -- encoding ------------------------------------------------------------------------------

    def apply(self, rows: pa.Table | pa.RecordBatch) -> Arrays:
        """Encode rows that have the columns of the features."""
        parts = []
        if self.scalars is not None:
            columns = [Column.from_arrow(_plain_array(rows[name])) for name in self._scalar_columns]
            applied = self.scalars.apply(columns)
            parts.append(np.column_stack([column.values for column in applied.columns]))
        for feature in self._of("vector"):
            padded = _padded(rows[feature.column], feature.width)
            parts.append(np.nan_to_num(padded, nan=0.0))
        numbers = np.concatenate(parts, axis=1, dtype=np.float32, casting="same_kind")
        arrays: Arrays = {"numbers": np.ascontiguousarray(numbers)}
        lists = self._of("text_list")
        if lists:
            codes = np.zeros((len(numbers), len(lists), self.length), np.int64)
            for index, feature in enumerate(lists):
                codes[:, index, : feature.width] = self._codes(rows[feature.column], feature)
            arrays["codes"] = codes
        lists = self._of("number_list")
        if lists:
            values = np.full((len(numbers), len(lists), self.length), np.nan, np.float32)
            for index, feature in enumerate(lists):
                scale = self.scales[feature.column]
                padded = _padded(rows[feature.column], feature.width)
                values[:, index, : feature.width] = (padded - scale.mean) / scale.scale
            arrays["values"] = values
        return arrays

    def _codes(self, column: Any, feature: InputFeature) -> npt.NDArray[np.int64]:
        column = _whole(column)
        texts = _items(column)
        indices = pc.index_in(texts, value_set=pa.array(self.words[feature.column], pa.string()))
        codes = np.where(
            np.asarray(texts.is_null()), 0, indices.fill_null(-1).to_numpy(zero_copy_only=False) + 2
        )
        return _spread(column, codes, feature.width, 0, np.int64)

    # -- ONNX ----------------------------------------------------------------------------------

    def inputs(self) -> tuple[ModelInput, ...]:
        """Return the inputs of a network from raw features, in the order of the features."""
        return tuple(
            ModelInput(
                name=feature.column,
                source="feature",
                of=feature.output,
                type=feature.type,
                dtype="string" if feature.kind in ("text", "text_list") else "float64",
                width=feature.width,
                null_text=NULL_TEXT if feature.kind in ("text", "text_list") else "",
                definition=feature.definition,
            )
            for feature in self.features
        )

    def front(self) -> Any:
        """Return the ONNX graph from raw features to the arrays of ``apply``."""
        return _Front(self).model()

    # -- storage -------------------------------------------------------------------------------

    def to_document(self) -> dict[str, Any]:
        """Return the encoder in JSON values."""
        return {
            "features": [asdict(feature) for feature in self.features],
            "scalars": None if self.scalars is None else self.scalars.to_params(),
            "words": {name: list(words) for name, words in self.words.items()},
            "scales": {name: asdict(scale) for name, scale in self.scales.items()},
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> FeatureEncoder:
        """Return the encoder of a document; RequestError for one that is none."""
        try:
            parts = mapping(document, "features", "scalars", "words", "scales")
            params, scalars = parts["scalars"], None
            if params is not None:
                scalars = cast(ColumnTransformer, ColumnTransformer.from_params(params))
            return cls(
                [typed(InputFeature, feature) for feature in parts["features"]],
                scalars,
                parts["words"],
                {name: typed(ListScale, scale) for name, scale in parts["scales"].items()},
            )
        except (ValueError, TypeError, AttributeError) as error:
            raise RequestError(f"this is not an encoder of features: {error}") from error

    def to_text(self) -> str:
        """Return the document as canonical JSON."""
        return json.dumps(self.to_document(), sort_keys=True, allow_nan=False) + "\n"

    @classmethod
    def from_text(cls, text: str) -> FeatureEncoder:
        """Return the encoder of ``to_text``; RequestError for a text that is none."""
        try:
            document = parse_unambiguous_json(text)
        except ValueError as error:
            raise RequestError(f"this is not an encoder of features: {error}") from error
        return cls.from_document(document)

    def _of(self, kind: FeatureKind) -> list[InputFeature]:
        return [feature for feature in self.features if feature.kind == kind]

    @property
    def _scalar_columns(self) -> tuple[str, ...]:
        return tuple(f.column for f in self.features if f.kind in ("number", "text"))

    @property
    def _text_branches(self) -> list[str]:
        return [f"text{number}" for number, _ in enumerate(self._of("text"))]


_KINDS: tuple[FeatureKind, ...] = ("number", "text", "vector", "text_list", "number_list")


class _Front:
    """Writes the ONNX graph of an encoder."""

    def __init__(self, encoder: FeatureEncoder) -> None:
        import onnx

        self.onnx = onnx
        self.encoder = encoder
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def model(self) -> Any:
        helper, encoder = self.onnx.helper, self.encoder
        types = self.onnx.TensorProto
        parts, inputs = [], []
        if encoder.scalars is not None:
            scalars = to_onnx(encoder.scalars, dtype="float64", null_text=NULL_TEXT)
            self.nodes += scalars.graph.node
            self.constants += scalars.graph.initializer
            parts.append("transformed")
        for entry in encoder.inputs():
            kind = types.STRING if entry.dtype == "string" else types.DOUBLE
            inputs.append(helper.make_tensor_value_info(entry.name, kind, ["rows", entry.width]))
        for feature in encoder._of("vector"):
            is_present = self.node("Not", self.node("IsNaN", feature.column))
            parts.append(self.node("Where", is_present, feature.column, self.constant([[0.0]])))
        joined = self.node("Concat", *parts, axis=1)
        self.node("Cast", joined, to=types.FLOAT, out="numbers")
        lists = encoder._of("text_list")
        if lists:
            rows = [self._codes(feature) for feature in lists]
            self.node("Concat", *rows, axis=1, out="codes")
        lists = encoder._of("number_list")
        if lists:
            rows = [self._values(feature) for feature in lists]
            self.node("Concat", *rows, axis=1, out="values")
        shapes = {
            "numbers": (types.FLOAT, ["rows", encoder.width]),
            "codes": (types.INT64, ["rows", len(encoder.vocabulary_sizes), encoder.length]),
            "values": (types.FLOAT, ["rows", encoder.value_lists, encoder.length]),
        }
        outputs = [
            helper.make_tensor_value_info(name, *shapes[name]) for name in encoder.array_names
        ]
        graph = helper.make_graph(self.nodes, "features", inputs, outputs, self.constants)
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)

    def _codes(self, feature: InputFeature) -> str:
        """Codes of a list of texts, shape (rows, 1, length)."""
        words = self.encoder.words[feature.column]
        codes = self.node(
            "LabelEncoder",
            feature.column,
            domain="ai.onnx.ml",
            keys_strings=[NULL_TEXT, *words],
            values_int64s=[0, *range(2, len(words) + 2)],
            default_int64=1,
        )
        return self._placed(codes, feature, np.int64(0))

    def _values(self, feature: InputFeature) -> str:
        """Scaled items of a list of numbers, shape (rows, 1, length)."""
        scale = self.encoder.scales[feature.column]
        shifted = self.node("Sub", feature.column, self.constant([[scale.mean]]))
        scaled = self.node("Div", shifted, self.constant([[scale.scale]]))
        rounded = self.node("Cast", scaled, to=self.onnx.TensorProto.FLOAT)
        return self._placed(rounded, feature, np.float32(np.nan))

    def _placed(self, name: str, feature: InputFeature, fill: Any) -> str:
        missing = self.encoder.length - feature.width
        if missing:
            pads = self.constant(np.array([0, 0, 0, missing], np.int64))
            name = self.node("Pad", name, pads, self.constant(fill))
        return self.node("Unsqueeze", name, self.constant(np.array([1], np.int64)))

    def node(
        self,
        op: str,
        *inputs: str,
        out: str | None = None,
        domain: str | None = None,
        **attributes: int | Sequence[int] | Sequence[str],
    ) -> str:
        out = out or f"feature_{op.lower()}_{len(self.nodes)}"
        make_node: Callable[..., Any] = self.onnx.helper.make_node
        self.nodes.append(make_node(op, list(inputs), [out], domain=domain, **attributes))
        return out

    def constant(self, values: Any) -> str:
        array = np.asarray(values)
        name = f"feature_constant_{len(self.constants)}"
        self.constants.append(self.onnx.numpy_helper.from_array(array, name))
        return name


def feeds_of(inputs: Sequence[ModelInput], columns: Mapping[str, Any]) -> Arrays:
    """Raw features as the tensors of a network's inputs; ``columns`` are Arrow, by input name."""
    feeds: Arrays = {}
    for model_input in inputs:
        column = _whole(columns[model_input.name])
        is_list = pa.types.is_list(column.type)
        if model_input.dtype == "string":
            texts = _items(column).fill_null(model_input.null_text)
            items = np.array(texts.to_pylist(), np.object_)
            if is_list:
                items = _spread(column, items, model_input.width, model_input.null_text, np.object_)
            feeds[model_input.name] = items.reshape(len(column), model_input.width)
        elif is_list:
            feeds[model_input.name] = _padded(column, model_input.width)
        else:
            numbers = column.cast(pa.float64(), safe=False)
            feeds[model_input.name] = numbers.to_numpy(zero_copy_only=False)[:, None]
    return feeds


def _whole(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _plain_array(column: Any) -> pa.Array:
    """Numbers as float64, and texts."""
    column = _whole(column)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return column
    return column.cast(pa.float64(), safe=False)


def _plain(table: pa.Table) -> pa.Table:
    return pa.table({name: _plain_array(table[name]) for name in table.column_names})


def _items(column: Any) -> pa.Array:
    """Return the texts of a column: its items, if it is one of lists; integers as their digits."""
    column = _whole(column)
    if pa.types.is_list(column.type):
        column = column.flatten()
    return column if pa.types.is_string(column.type) else column.cast(pa.string())


def _lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    return np.asarray(pc.list_value_length(column).fill_null(0), np.int64)


def _spread(
    column: pa.Array, items: npt.NDArray[Any], width: int, fill: Any, dtype: Any
) -> npt.NDArray[Any]:
    """Return the first ``width`` items of each list, shape (rows, width).

    Shorter ones are filled up.
    """
    lengths = _lengths(column)
    starts = np.cumsum(lengths) - lengths
    place = np.arange(len(items)) - np.repeat(starts, lengths)
    row = np.repeat(np.arange(len(lengths)), lengths)
    kept = place < width
    out = np.full((len(lengths), width), fill, dtype)
    out[row[kept], place[kept]] = items[kept]
    return out


def _padded(column: Any, width: int) -> npt.NDArray[np.float64]:
    """Return the numbers of lists, shape (rows, width); null and what is not there is NaN."""
    column = _whole(column)
    items = column.flatten().cast(pa.float64(), safe=False)
    return _spread(column, items.to_numpy(zero_copy_only=False), width, np.nan, np.float64)


def _most_frequent(column: Any, most: int) -> list[str]:
    counts = Counter(text for text in _items(column).to_pylist() if text is not None)
    ranked = sorted(counts, key=lambda text: (-counts[text], text))
    return ranked[:most]


def _scale_of(column: Any) -> ListScale:
    items = _whole(column).flatten().cast(pa.float64(), safe=False)
    numbers = items.drop_null().to_numpy(zero_copy_only=False)
    numbers = numbers[np.isfinite(numbers)]
    deviation = float(numbers.std()) if len(numbers) else 0.0
    return ListScale(float(numbers.mean()) if len(numbers) else 0.0, deviation or 1.0)
