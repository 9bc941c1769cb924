"""What a graph of ``torch.export`` may say, as JSON: every name, operator and expression of it."""

from __future__ import annotations

import ast
import json
import keyword
import re
from collections.abc import Callable
from typing import Any

from paimon_features.core.documents.unambiguous_json import parse_unambiguous_json
from paimon_features.core.errors import ModelError

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,400}")
_DOTTED = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,400}(\.[A-Za-z0-9_]{1,400}){0,20}")
_NUMBER_WORD = re.compile(r"-?Infinity|NaN")
_VERSION = re.compile(r"[A-Za-z0-9_.+-]{1,60}")
_EQUATION = re.compile(r"[A-Za-z0-9_.,> -]{0,200}")
_SYMBOL = re.compile(r"[a-z]{1,4}[0-9]{1,9}")
_ASSUMPTIONS = ("integer", "nonnegative", "positive", "real")
_FUNCTIONS = ("Add", "CeilDiv", "CleanDiv", "FloorDiv", "Integer", "Max", "Min", "Mod", "Mul",
              "PythonMod", "Symbol")  # fmt: skip
_NESTED = (("builtins.tuple", "null"), ("builtins.list", "null"))
_LONGEST_EXPRESSION = 1_000
_KINDS = """
    bool bools device expr float floats int ints layout memory_format name nested_tensors none
    optional_tensor optional_tensors scalar_type string strings sym_bool sym_bools sym_float
    sym_floats sym_int sym_ints tensor tensors
"""
_ARGUMENTS = frozenset(f"as_{kind}" for kind in _KINDS.split())
"""The kinds of arguments of an operator; others are objects, operators and graphs."""
_EMPTIED: dict[str, Any] = {"metadata": {}, "guards_code": [], "treespec_namedtuple_fields": {},
            "custom_obj_values": {}}  # fmt: skip
"""Entries that are not needed to run a graph: they name classes, files or Python code."""
_CALLS = """
    _operator.add _operator.and_ _operator.eq _operator.floordiv _operator.ge _operator.getitem
    _operator.gt _operator.le _operator.lt _operator.mod _operator.mul _operator.ne _operator.neg
    _operator.sub _operator.truediv torch.sym_max torch.sym_min torch.sym_not
"""
_ATEN = """
    _assert_scalar _assert_tensor_metadata _log_softmax _scaled_dot_product_attention_math
    _scaled_dot_product_flash_attention_for_cpu _softmax _to_copy _unsafe_view __and__ __or__
    abs add addmm alias all amax amin any arange argmax argmin baddbmm batch_norm bitwise_and
    bitwise_not bitwise_or bitwise_xor bmm bucketize cat ceil celu chunk clamp clamp_max clamp_min
    clone concat constant_pad_nd contiguous conv1d cos cumsum detach diagonal div dot dropout
    einsum elu embedding embedding_bag eq erf exp expand expand_as expm1 eye
    feature_dropout fill flatten flip floor floor_divide fmod full full_like gather ge gelu glu
    group_norm gru gt hardsigmoid hardswish hardtanh index index_select isfinite isinf isnan
    layer_norm le leaky_relu lift_fresh_copy linear log log1p log2 log_softmax logical_and
    logical_not logical_or logical_xor logsumexp lstm lt masked_fill matmul max maximum mean min
    minimum mish mm movedim mul multiply mv nan_to_num narrow native_layer_norm ne neg
    new_full new_ones new_zeros norm numel one_hot ones ones_like outer pad permute pow prelu prod
    reciprocal relu relu6 remainder repeat repeat_interleave reshape rms_norm roll round rsqrt rsub
    scalar_tensor scaled_dot_product_attention scatter scatter_add searchsorted select selu sigmoid
    sign silu sin slice slice_scatter softmax softplus sort split split_with_sizes sqrt square
    squeeze stack std sub sum swapaxes sym_numel sym_size sym_storage_offset sym_stride t take
    take_along_dim tan tanh tensor_split threshold tile to topk transpose tril triu true_divide
    type_as unbind unflatten unfold unsafe_split unsqueeze var view view_as where zeros zeros_like
"""
"""Operators that compute tensors from tensors: none reads files, or memory that was not written."""
_NAMED = frozenset(_CALLS.split())
_OPERATORS = frozenset(_ATEN.split())
_OPERATOR = re.compile(r"torch\.ops\.aten\.([a-z0-9_]+)\.(?!\w*out\b)[A-Za-z0-9_]+")


def checked_graph(document: Any) -> Any:
    """Return the document of a program without what only debuggers read.

    Raises
    ------
    ModelError
        For an operator, an expression or a structure that could do more than compute.
    ValueError
        For a document that no export writes.
    """
    if not isinstance(document, dict) or "graph_module" not in document:
        raise ValueError("expected a document with graph_module")
    return _checked("", document)


def checked_name(name: Any) -> str:
    """Return the name of a weight, with dots."""
    return _matching("the name of a weight", _DOTTED, name)


def checked_tensor(meta: Any) -> dict[str, Any]:
    """Return the description of a tensor: its type, sizes and strides."""
    checked = _checked("tensor_meta", meta)
    if not isinstance(checked, dict) or not isinstance(checked.get("sizes"), list):
        raise ValueError("expected the description of a tensor")
    return checked


def _checked(key: str, value: Any) -> Any:
    """Return the value of an entry; lists have the rule of their entry."""
    if key in _EMPTIED:
        return _EMPTIED[key]
    if isinstance(value, dict):
        return {_entry(name): _checked(name, item) for name, item in value.items()}
    if isinstance(value, list):
        return [_checked(key, item) for item in value]
    if isinstance(value, str):
        return _TEXTS.get(key, _dotted)(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    raise ValueError(f"{key} = {value!r:.100}")


def _entry(name: str) -> str:
    if name.startswith("as_") and name not in _ARGUMENTS:
        raise ModelError(f"the program has an argument of the kind {name[:80]!r}")
    return _matching("a name", _DOTTED, name)


def _matching(what: str, pattern: re.Pattern[str], text: Any) -> str:
    if not isinstance(text, str) or not pattern.fullmatch(text):
        raise ModelError(f"the program has {text!r:.200} as {what}; expected {pattern.pattern}")
    return text


def _dotted(text: str) -> str:
    return text if not text else _matching("a text", _DOTTED, text)


def _identifier(text: str) -> str:
    """Return the name of a value or an argument, which torch writes into Python source."""
    if keyword.iskeyword(text) or text.startswith("__"):
        raise ModelError(f"the program has a value with the name {text[:80]!r}")
    return text if not text else _matching("the name of a value", _IDENTIFIER, text)


def _target(text: str) -> str:
    match = _OPERATOR.fullmatch(text)
    if text not in _NAMED and not (match and match[1] in _OPERATORS):
        raise ModelError(
            f"the program has the operator {text[:200]!r}, which is not one of those that only "
            "compute tensors"
        )
    return text


def _expression(text: str) -> str:
    """Return a size, such as ``Symbol('s0', positive=True, integer=True)``: torch evaluates it."""
    try:
        if len(text) <= _LONGEST_EXPRESSION and _is_size(ast.parse(text, mode="eval").body):
            return text
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    raise ModelError(f"the program has the size {text[:200]!r}, which is not a sum of products")


def _is_size(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=int(number)):
            return type(number) is int and abs(number) < 2**63
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            return _is_size(inner)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult(), right=right):
            return _is_size(left) and _is_size(right)
        case ast.Name(id=name):
            return _SYMBOL.fullmatch(name) is not None
        case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str(name))]):
            return _SYMBOL.fullmatch(name) is not None and all(
                given.arg in _ASSUMPTIONS
                and isinstance(given.value, ast.Constant)
                and given.value.value is True
                for given in node.keywords
            )
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return name != "Symbol" and 0 < len(args) <= 50 and all(map(_is_size, args))
    return False


def _structure(text: str) -> str:
    """Return how arguments are nested: tuples, lists, and dictionaries with names as keys."""
    version, node = parse_unambiguous_json(text)
    if version != 1:
        raise ValueError(f"structure of version {version!r:.40}, expected 1")
    return json.dumps([1, _node(node)])


def _node(node: Any) -> dict[str, Any]:
    if not isinstance(node, dict) or node.keys() != {"type", "context", "children_spec"}:
        raise ValueError("expected type, context and children_spec")
    kind, context, children = node["type"], node["context"], list(node["children_spec"])
    if kind == "builtins.dict":
        names = parse_unambiguous_json(context)
        if not isinstance(names, list) or len(names) != len(children):
            raise ValueError("expected a name for each argument")
        context = json.dumps([_identifier(name) for name in names])
    elif (kind, context) not in _NESTED and (kind, context, children) != (None, None, []):
        raise ModelError(f"the program has the structure {kind!r:.100} of arguments")
    return {"type": kind, "context": context, "children_spec": [_node(child) for child in children]}


_TEXTS: dict[str, Callable[[str], str]] = {
    "target": _target,
    "expr_str": _expression,
    "in_spec": _structure,
    "out_spec": _structure,
    "name": _identifier,
    "as_name": _identifier,
    "forward_arg_names": _identifier,
    "as_string": lambda text: _matching("an argument", _EQUATION, text),
    "as_strings": lambda text: _matching("an argument", _EQUATION, text),
    "as_float": lambda text: _matching("a number", _NUMBER_WORD, text),
    "as_floats": lambda text: _matching("a number", _NUMBER_WORD, text),
    "torch_version": lambda text: _matching("torch's version", _VERSION, text),
}
"""The rule of a text by the entry that has it."""
