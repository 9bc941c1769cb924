"""A program of the store is rebuilt from what it says, and torch loads only that."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import pickle
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from paimon_features.core.errors import ModelError  # noqa: E402
from trainer_bridge.models import (  # noqa: E402
    InputShapes,
    Network,
    SequenceTransformerNetwork,
    TabularTransformerNetwork,
    WideAndDeepNetwork,
)
from trainer_bridge.training import export, program_graph  # noqa: E402
from trainer_bridge.training.program_archive import canonical_program  # noqa: E402

_unpickled: list[str] = []
"""Names that any unpickler of this process has looked up, in C or in Python."""


def _listen(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "pickle.find_class":
        _unpickled.append(".".join(map(str, arguments)))


sys.addaudithook(_listen)

PLAIN = InputShapes(((0, 1), (2,)))
LISTS = InputShapes(((0, 1), (2,)), (7,), 1, 4)
NETWORKS: dict[str, tuple[Callable[[], Network], str]] = {
    "wide": (lambda: WideAndDeepNetwork(PLAIN, dim=4, layers=1), "binary"),
    "tabular": (
        lambda: TabularTransformerNetwork(PLAIN, 3, dim=4, layers=1, heads=2),
        "multiclass",
    ),
    "sequence": (lambda: SequenceTransformerNetwork(LISTS, dim=4, layers=1, heads=2), "regression"),
}


@pytest.fixture(scope="module", params=NETWORKS)
def network(request: pytest.FixtureRequest) -> tuple[Network, bytes]:
    make, task = NETWORKS[request.param]
    made = make().eval()
    made.scale_labels(0.0, 1.0)
    return made, export.export_program(made, task)[1]


@pytest.fixture(scope="module")
def data() -> bytes:
    return export.export_program(WideAndDeepNetwork(PLAIN, dim=4, layers=1).eval(), "binary")[1]


def parts_of(data: bytes) -> list[tuple[str, bytes]]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return [(entry.filename, archive.read(entry)) for entry in archive.infolist()]


def archive_of(parts: list[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, content in parts:
            archive.writestr(zipfile.ZipInfo(name), content, compression)
    return out.getvalue()


def changed(data: bytes, end: str, edit: Callable[[Any], None]) -> bytes:
    """The archive with an edited document."""
    parts = []
    for name, content in parts_of(data):
        if name.endswith(end):
            document = json.loads(content)
            edit(document)
            content = json.dumps(document).encode()
        parts.append((name, content))
    return archive_of(parts)


def seen_by_torch(data: bytes) -> dict[str, bytes]:
    reader = torch._C.PyTorchFileReader(io.BytesIO(data))
    return {name: reader.get_record(name) for name in reader.get_all_records()}


def test_the_rebuilt_program_predicts_the_same(network: tuple[Network, bytes]) -> None:
    made, data = network
    feeds = made.examples(5)
    expected = torch.export.load(io.BytesIO(data)).module()(**feeds)
    assert torch.equal(export.load_program(data)(**feeds), expected)
    again = export.program_with_weights(data, made.state_dict())
    assert torch.equal(export.load_program(again)(**feeds), expected)


def test_torch_sees_the_parts_that_were_written(network: tuple[Network, bytes]) -> None:
    _, data = network
    rebuilt = canonical_program(data)
    written = dict(parts_of(rebuilt))
    assert seen_by_torch(rebuilt) == {
        name.removeprefix("archive/"): content for name, content in written.items()
    }
    assert canonical_program(rebuilt) == rebuilt


class Evil:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


def _pickled_constant(name: str, use_pickle: bool) -> Callable[[bytes, bytes], bytes]:
    def change(data: bytes, payload: bytes) -> bytes:
        payload += b"." * (-len(payload) % 4)
        weights = dict(parts_of(data))["archive/data/weights/model_weights_config.json"]
        meta = copy.deepcopy(next(iter(json.loads(weights)["config"].values()))["tensor_meta"])
        meta |= {"sizes": [{"as_int": len(payload) // 4}], "strides": [{"as_int": 1}]}
        entry = {"path_name": name, "is_param": False, "use_pickle": use_pickle,
                 "tensor_meta": meta}  # fmt: skip
        made = changed(data, "constants_config.json", lambda d: d["config"].update(evil=entry))
        return archive_of([*parts_of(made), (f"archive/data/constants/{name}", payload)])

    return change


def _replaced(end: str, payload_of: str) -> Callable[[bytes, bytes], bytes]:
    """Weights that are a pickle, of which another configuration tells."""

    def change(data: bytes, payload: bytes) -> bytes:
        def use(document: Any) -> None:
            for each in document["config"].values():
                each["use_pickle"] = True

        honest = parts_of(data)
        hostile = dict(parts_of(changed(data, "weights_config.json", use)))
        out = []
        for name, content in honest:
            if name.endswith("weights_config.json"):
                out.append((name.replace("_config.json", end), hostile[name]))
                if payload_of == "double":
                    out.append((name, content))
            else:
                out.append((name, payload if "/weight_" in name else content))
        return archive_of(out)

    return change


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    "change",
    [
        _pickled_constant("opaque_obj_0.json", False),
        _pickled_constant("opaque_obj_0", True),
        _pickled_constant("custom_obj_0", False),
        _pickled_constant("tensor_0", True),
        _replaced("_CONFIG.json", ""),
        _replaced("_config.json", ""),
        _replaced("_config.json", "double"),
        lambda data, payload: archive_of([*parts_of(data), ("archive/extra/x", payload)]),
        lambda data, payload: archive_of([*parts_of(data), ("other/models/model.json", payload)]),
        lambda data, payload: archive_of([*parts_of(data), ("archive/../x", payload)]),
        lambda data, payload: archive_of([*parts_of(data), ("version", payload)]),
        lambda data, payload: archive_of([
            (n, payload if n.endswith("inputs/model.pt") else c) for n, c in parts_of(data)]),
        lambda data, payload: archive_of([
            *parts_of(data), ("archive/data/weights/model.pt", payload)]),
        lambda data, payload: archive_of(parts_of(data), zipfile.ZIP_DEFLATED),
    ],
)  # fmt: skip
def test_no_part_of_an_archive_is_unpickled(
    data: bytes, tmp_path: Path, change: Callable[[bytes, bytes], bytes]
) -> None:
    marker = tmp_path / "ran"
    _unpickled.clear()
    with pytest.raises(ModelError):
        export.load_program(change(data, pickle.dumps(Evil(marker))))
    assert not _unpickled
    assert not marker.exists()


def _node(document: Any) -> Any:
    return document["graph_module"]["graph"]["nodes"][0]


def _sized(document: Any) -> Any:
    return next(
        size["as_expr"]
        for tensor in document["graph_module"]["graph"]["tensor_values"].values()
        for size in tensor["sizes"]
        if "as_expr" in size
    )


def _structure(kind: str, context: Any) -> str:
    leaf = {"type": None, "context": None, "children_spec": []}
    return json.dumps([1, {"type": kind, "context": context, "children_spec": [leaf]}])


def _code(marker: Path) -> str:
    return f"__import__('pathlib').Path({str(marker)!r}).touch()"


def _named(document: Any, name: str) -> None:
    """The input of the graph by another name, everywhere."""
    text = json.dumps(document["graph_module"]["graph"]).replace('"numbers"', json.dumps(name))
    document["graph_module"]["graph"] = json.loads(text)
    signature = json.dumps(document["graph_module"]["signature"])
    document["graph_module"]["signature"] = json.loads(
        signature.replace('"numbers"', json.dumps(name))
    )


@pytest.mark.parametrize(
    "edit",
    [
        lambda d, code: _sized(d).update(expr_str=code),
        lambda d, code: _sized(d).update(expr_str=f"Symbol('s0', positive={code})"),
        lambda d, code: _sized(d).update(expr_str="Integer(9)**9**9**9"),
        lambda d, code: _sized(d).update(expr_str="Symbol(__name__)"),
        lambda d, code: _sized(d).update(expr_str="Max"),
        lambda d, code: _node(d).update(target="torch.os.system"),
        lambda d, code: _node(d).update(target="_operator.methodcaller"),
        lambda d, code: _node(d).update(target="torch.load"),
        lambda d, code: _node(d).update(target="torch.ops.aten.from_file.default"),
        lambda d, code: _node(d).update(target="torch.ops.aten.add.out"),
        lambda d, code: _node(d).update(target="torch.ops.load_library"),
        lambda d, code: _node(d).update(target="#x"),
        lambda d, code: _node(d)["inputs"][0].update(arg={"as_custom_obj": {"name": "x"}}),
        lambda d, code: _node(d)["inputs"][0].update(arg={"as_operator": "torch.os.system"}),
        lambda d, code: _node(d)["inputs"][0].update(name=f"x={code}"),
        lambda d, code: _named(d, f"numbers={code}"),
        lambda d, code: _named(d, f"numbers\n\n{code}\n#"),
        lambda d, code: _named(d, "lambda"),
        lambda d, code: _named(d, "__import__"),
        lambda d, code: d["graph_module"]["module_call_graph"][0]["signature"].update(
            in_spec=_structure("builtins.dict", json.dumps([f"x'] or {code} or ['"]))),
        lambda d, code: d["graph_module"]["module_call_graph"][0]["signature"].update(
            in_spec=_structure("builtins.tuple", '{"__enum__": true, "fqn": "antigravity:x"}')),
        lambda d, code: d["graph_module"]["module_call_graph"][0]["signature"].update(
            out_spec=_structure("collections.defaultdict", {"default_factory_module": "antigravity",
                                "default_factory_name": "x", "dict_context": []})),
        lambda d, code: d["graph_module"]["module_call_graph"][0]["signature"].update(
            in_spec='[1, {"type": null, "type": "x", "context": null, "children_spec": []}]'),
    ],
)  # fmt: skip
def test_no_text_of_a_graph_is_evaluated_imported_or_called(
    data: bytes, tmp_path: Path, edit: Callable[[Any, str], None]
) -> None:
    marker = tmp_path / "ran"
    hostile = changed(data, "models/model.json", lambda document: edit(document, _code(marker)))
    with pytest.raises(ModelError):
        export.load_program(hostile)
    assert not marker.exists()
    assert "antigravity" not in sys.modules


def test_code_that_only_debuggers_or_guards_read_is_dropped(data: bytes, tmp_path: Path) -> None:
    marker = tmp_path / "ran"

    def edit(document: Any) -> None:
        document["guards_code"] = [_code(marker)]
        _node(document)["metadata"] = {"nn_module_stack": f"a,b,{_code(marker)}"}

    hostile = changed(data, "models/model.json", edit)
    assert export.load_program(hostile)(numbers=torch.zeros(3, 3)).shape == (3, 1)
    assert not marker.exists()
    assert b"pathlib" not in canonical_program(hostile)


def test_a_key_of_a_document_may_occur_once(data: bytes) -> None:
    def doubled(name: str, content: bytes) -> bytes:
        return content.replace(b'"use_pickle"', b'"use_pickle": true, "use_pickle"')

    parts = [(name, doubled(name, content)) for name, content in parts_of(data)]
    with pytest.raises(ModelError, match="'use_pickle' twice"):
        canonical_program(archive_of(parts))


def test_arrays_have_the_bytes_that_their_sizes_need(data: bytes) -> None:
    def edit(document: Any) -> None:
        meta = next(iter(document["config"].values()))["tensor_meta"]
        meta["sizes"] = [{"as_int": 1 << 40}]

    with pytest.raises(ModelError, match="elements in"):
        canonical_program(changed(data, "weights_config.json", edit))


# -- random changes ------------------------------------------------------------------------------

WORDS = st.sampled_from(
    ["use_pickle", "opaque_obj_0", "custom_obj_0", "weight_0", "..", "a b", "__import__('os')",
     "torch.os.system", "as_custom_obj", "Symbol('s0')", "exit()", "", "x\n", "null", "version"]
)  # fmt: skip


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container and key of a document."""
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    for key in list(keys):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


@st.composite
def archives(draw: st.DrawFn, data: bytes) -> bytes:
    """The archive after some changes of its parts, documents and bytes."""
    parts = parts_of(data)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(parts) - 1))
        name, content = parts[at]
        kind = draw(st.sampled_from(["document", "double", "rename", "bytes", "swap", "drop"]))
        if kind == "document" and name.endswith(".json"):
            document = json.loads(content)
            places = list(_places(document))
            container, key = places[draw(st.integers(0, len(places) - 1))]
            new = draw(st.one_of(WORDS, st.none(), st.booleans(), st.integers(-1, 99)))
            if isinstance(container, dict) and draw(st.booleans()):
                container[draw(WORDS)] = container.pop(key)
            else:
                container[key] = new
            parts[at] = name, json.dumps(document).encode()
        elif kind == "double":
            parts.insert(draw(st.integers(0, len(parts))), (name, draw(st.binary(max_size=4))))
        elif kind == "rename":
            parts[at] = draw(st.sampled_from([name.upper(), f"{name}.pt", f"x/{name}"])), content
        elif kind == "bytes" and content:
            where = draw(st.integers(0, len(content) - 1))
            parts[at] = name, content[:where] + draw(st.binary(max_size=3)) + content[where + 1 :]
        elif kind == "swap":
            parts[at], parts[0] = parts[0], parts[at]
        elif kind == "drop":
            del parts[at]
    made = bytearray(archive_of(parts))
    if draw(st.booleans()):  # of the directory, too
        made[draw(st.integers(0, len(made) - 1))] = draw(st.integers(0, 255))
    return bytes(made)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@settings(max_examples=60)
@given(st.data())
def test_what_is_accepted_is_what_torch_sees(data: bytes, drawn: st.DataObject) -> None:
    hostile = drawn.draw(archives(data))
    try:
        rebuilt = canonical_program(hostile)
    except ModelError:
        return
    written = dict(parts_of(rebuilt))
    assert len(written) == len(parts_of(rebuilt))
    assert seen_by_torch(rebuilt) == {n.removeprefix("archive/"): c for n, c in written.items()}
    assert canonical_program(rebuilt) == rebuilt
    _unpickled.clear()
    with contextlib.suppress(ModelError):
        export.load_program(hostile)
    assert not _unpickled


def test_the_operators_that_are_allowed_exist_or_are_older() -> None:
    known = [n for n in program_graph._OPERATORS if hasattr(torch.ops.aten, n)]
    assert len(known) > 150
    assert all(not getattr(torch.ops.aten, n).default._schema.is_mutable
               for n in known if hasattr(getattr(torch.ops.aten, n), "default"))  # fmt: skip
