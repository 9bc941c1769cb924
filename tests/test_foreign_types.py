"""The types in which other programs give columns mean the same at every entrance."""

from __future__ import annotations

import decimal
import json
import random
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.ipc
import pytest

import paimon_features as pf
from paimon_features.core.columns.column import Column
from paimon_features.core.columns.given_values import as_arrow, kind_of
from paimon_features.core.configuration.input_settings import InputSettings
from paimon_features.core.errors import PaimonFeaturesError
from paimon_features.core.types.foreign_types import (
    is_plain,
    plain_array,
    plain_column,
    plain_table,
)
from paimon_features.core.types.schema import Float64, Int64, String, Timestamp, arrow_schema
from paimon_features.definitions.request import request_columns, row_inputs
from paimon_features.ingest.inputs.profiles import profile_input
from paimon_features.iteration.flink.table_outputs import TableRowConverter
from paimon_features.lake import Lake, append_arrow, read_arrow
from paimon_features.lake.specs import TableSpec
from paimon_features.lake.writing.table_writer import EventWriter
from paimon_features.offline.inputs.checked_columns import event_times, key_columns
from paimon_features.offline.inputs.row_source import arrow_table
from paimon_features.offline.local.features import features
from paimon_features.online.store.keys import key_arrays
from paimon_features.project.first_steps.trial import read_events
from paimon_features.project.monitoring.value_statistics import collect
from paimon_features.project.preview import preview_events
from paimon_features.serving.client.core import _arrow_request
from paimon_features.serving.client.requests import ClientRequest
from paimon_features.serving.http.bodies.arrow_body import read_columns
from paimon_features.testing.sizes import every_seed
from paimon_features.transformers.flink_ml.vectors import read_features
from paimon_features.transformers.frames import read_frame
from tests.shop_projects import make_project
from trainer_bridge.dataframe.writing import deduplicate
from trainer_bridge.feedback.rows import to_arrow
from trainer_bridge.samplers.inputs import as_labels, as_numbers

NOW_MS = 1_795_000_000_000
HOUR_MS = 3_600_000
USERS, AMOUNTS = ["ada", "bo", "a name of more than twelve letters"], [1.5, 2.0, -0.25]
TIMES = [NOW_MS, NOW_MS + HOUR_MS, NOW_MS + 2 * HOUR_MS]

DEFINITIONS = """
import paimon_features as pf

v = pf.FeatureView(
    "v",
    source=pf.EventSource(
        "s", schema={"k": pf.String, "t": pf.Timestamp, "x": pf.Float64}, event_time="t"
    ),
    entity=pf.Entity("e", keys={"k": pf.String}),
    features=[pf.Sum("x", windows=["1d"])],
)
"""


def view() -> pf.FeatureView:
    names: dict[str, Any] = {}
    exec(DEFINITIONS, names)
    found: pf.FeatureView = names["v"]
    return found


def runs(array: pa.Array) -> pa.Array:
    """Run-end encoded, a run for each value."""
    kind = pa.run_end_encoded(pa.int32(), array.type)
    return pa.RunEndEncodedArray.from_arrays(list(range(1, len(array) + 1)), array, kind)


def within(array: pa.Array, rng: random.Random) -> pa.Array:
    """The same values as a part of a longer array, where kernels can tell them apart."""
    if not rng.randrange(2) or pa.types.is_run_end_encoded(array.type):
        return array
    return pa.concat_arrays([array, array]).slice(len(array))


def forms_of(values: list[Any], kind: pa.DataType) -> Iterator[pa.Array]:
    """The values in the types that other programs have for them."""
    plain = pa.array(values, kind)
    texts = pa.types.is_string(kind)
    yield plain.dictionary_encode()
    yield runs(plain)
    if texts:
        yield pa.array(values, pa.large_string())
        yield pa.array(values, pa.string_view())
        yield runs(pa.array(values, pa.string_view()))
        order = pa.array(range(len(values)), pa.uint32())
        yield pa.DictionaryArray.from_arrays(order, pa.array(values, pa.string_view()))
        yield pa.DictionaryArray.from_arrays(order, pa.array(values, pa.large_string()))
    if pa.types.is_timestamp(kind):
        yield plain.cast(pa.timestamp("ns")).dictionary_encode()
        yield runs(plain.cast(pa.timestamp("us", "UTC")))


def columns_of(rng: random.Random) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Keys, times and amounts, each in a form by chance."""
    kinds = ((USERS, pa.string()), (TIMES, pa.timestamp("ms")), (AMOUNTS, pa.float64()))
    made = [within(rng.choice(list(forms_of(v, kind))), rng) for v, kind in kinds]
    return made[0], made[1], made[2]


def refused() -> list[pa.Array]:
    """Arrays of three values that have no meaning here."""
    kinds = pa.array([0, 1, 0], pa.int8())
    union = pa.UnionArray.from_sparse(kinds, [pa.array([1, 2, 3]), pa.array(["a", "b", "c"])])
    offsets = pa.array([0, 0, 1], pa.int32())
    dense = pa.UnionArray.from_dense(kinds, offsets, [pa.array([1, 2]), pa.array(["b"])])
    return [union, dense, pa.array([(1, 2, 3)] * 3, pa.month_day_nano_interval()), runs_of(union)]


def runs_of(array: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([array], ["of_a_struct"])


# -- the function ---------------------------------------------------------------------------

VALUES: Mapping[pa.DataType, list[Any]] = {
    pa.list_view(pa.float64()): [[1.0, 2.0], None, [], [3.0]],
    pa.large_list_view(pa.string()): [["a"], None, [], ["b", None]],
    pa.large_list(pa.large_string()): [["a"], None, [], ["b", None]],
    pa.list_(pa.int64(), 2): [[1, 2], None, [3, None]],
    pa.binary(2): [b"ab", None],
    pa.binary_view(): [b"a", None, b"more than twelve bytes"],
    pa.large_binary(): [b"a", None],
    pa.string_view(): ["a", None, "more than twelve letters", ""],
    pa.struct([("x", pa.large_string()), ("y", pa.int64())]): [{"x": "a", "y": 1}, None],
    pa.map_(pa.large_string(), pa.large_list(pa.int64())): [[("a", [1])], None, [], [("b", None)]],
    pa.dictionary(pa.int8(), pa.string()): ["a", None, "a", "b"],
}


@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_values_stay_what_they_are(kind: pa.DataType) -> None:
    values = VALUES[kind]
    array = pa.array(values, kind)
    for given, wanted in ((array, values), (array[1:], values[1:]), (array[:0], [])):
        made = plain_array(given)
        made.validate(full=True)
        assert made.to_pylist() == wanted
        assert is_plain(made.type)
        assert plain_array(made) is made
    chunks = pa.chunked_array([array, array[:1]])
    assert plain_column(chunks).to_pylist() == [*values, values[0]]
    if not pa.types.is_dictionary(kind):
        assert plain_array(runs(array)).to_pylist() == values


def test_views_of_lists_may_share_items_in_any_order() -> None:
    views = pa.ListViewArray.from_arrays([1, 0, 0], [2, 3, 0], pa.array([1.0, 2.0, 3.0]))
    assert plain_array(views).to_pylist() == [[2.0, 3.0], [1.0, 2.0, 3.0], []]


def test_nulls_of_a_dictionary_are_nulls() -> None:
    coded = pa.DictionaryArray.from_arrays([0, 1, None], pa.array(["a", None]))
    assert plain_array(coded).to_pylist() == ["a", None, None]


def test_extension_types_are_read_by_their_meaning_or_not_at_all() -> None:
    ids = [uuid.UUID(int=5), None, uuid.UUID("12345678-1234-5678-1234-567812345678")]

    def column(name: str, values: pa.Array) -> pa.Table:
        field = pa.field("c", values.type, metadata={"ARROW:extension:name": name})
        return plain_table(pa.table([values], schema=pa.schema([field])))

    octets = pa.array([None if each is None else each.bytes for each in ids], pa.binary(16))
    assert column("arrow.uuid", octets)["c"].to_pylist() == [each and str(each) for each in ids]
    truths = column("arrow.bool8", pa.array([1, None, 0], pa.int8()))["c"]
    assert truths.to_pylist() == [True, None, False]
    assert column("arrow.json", pa.array(["{}"]))["c"].to_pylist() == ["{}"]
    period = column("pandas.period", pa.array([1]))
    with pytest.raises(pa.ArrowInvalid, match=r"extension type 'pandas\.period'"):
        plain_column(period["c"])


@pytest.mark.parametrize("array", refused(), ids=lambda array: str(array.type)[:30])
def test_unions_and_intervals_are_refused(array: pa.Array) -> None:
    with pytest.raises(pa.ArrowInvalid, match="which has no type here; write"):
        plain_array(array)


def test_a_wrong_place_of_a_view_is_an_error_and_nothing_of_memory() -> None:
    texts = pa.array(["more than twelve letters"] * 3, pa.string_view())
    buffers = texts.buffers()
    views = np.frombuffer(buffers[1], np.int32).copy()
    views[2::4] = 1 << 20  # of a buffer that is not there
    batch = pa.record_batch({"t": texts})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data = sink.getvalue().to_pybytes().replace(bytes(buffers[1])[:48], views.tobytes()[:48])
    wrong = pa.ipc.open_stream(data).read_all().column("t").chunk(0)
    with pytest.raises(pa.ArrowException, match="buffer"):
        plain_array(wrong)


# -- entrances ------------------------------------------------------------------------------

# what an entrance has understood of keys, times and amounts
Read = Callable[[pa.Array, pa.Array, pa.Array], tuple[list[Any], list[Any], list[Any]]]


def _stored(table: pa.Table) -> tuple[list[Any], list[Any], list[Any]]:
    times = table.column("t").cast(pa.timestamp("ms")).cast(pa.int64())
    return table.column("k").to_pylist(), times.to_pylist(), table.column("x").to_pylist()


def by_entity_rows(k: pa.Array, t: pa.Array, x: pa.Array) -> Any:
    table = arrow_table(pa.table({"k": k, "event_time_ms": t, "x": x}))
    inputs = row_inputs({"x": Float64}, table)
    keys = key_columns(table, {"k": String}, "e")
    return keys["k"].to_pylist(), event_times(table).tolist(), inputs["x"].to_pylist()


def by_local_features(k: pa.Array, t: pa.Array, x: pa.Array) -> Any:
    rows = {"k": USERS, "event_time_ms": [time + 1 for time in TIMES]}
    found = features(view(), pa.table({"k": k, "t": t, "x": x}), rows)
    own = features(view(), {"k": USERS, "t": TIMES, "x": AMOUNTS},
                   pa.table({"k": k, "event_time_ms": t}))  # fmt: skip
    assert own["sum_x_1d"].to_pylist() == [None] * 3  # an event is after its own time
    return found["k"].to_pylist(), TIMES, found["sum_x_1d"].to_pylist()


def by_preview(k: pa.Array, t: pa.Array, x: pa.Array) -> Any:
    made = [
        preview_events(view(), arrow_table(pa.table({"k": k, "t": t, "x": x})), user)
        for user in USERS
    ]
    times = [event.time_ms for each in made for event in each.events]
    return [each.entity["k"] for each in made], times, [each.values["sum_x_1d"] for each in made]


def by_feedback(k: pa.Array, t: pa.Array, x: pa.Array) -> Any:
    times = to_arrow(pa.chunked_array([t]), pa.int64(), "t")
    return (to_arrow(k, pa.string(), "k").to_pylist(), times.to_pylist(),
            to_arrow(x, pa.float64(), "loss").to_pylist())  # fmt: skip


def by_lookup(k: pa.Array, t: pa.Array, x: pa.Array) -> Any:
    keys = key_arrays({"k": String}, {"k": pa.chunked_array([k])})[0]
    inputs = request_columns({"t": Timestamp, "x": Float64}, {"t": t, "x": x}, 3)
    return keys.to_pylist(), inputs["t"].values.tolist(), inputs["x"].values.tolist()


def by_columns(k: pa.Array, t: pa.Array, x: pa.Array) -> Any:
    read = [Column.from_arrow(pa.chunked_array([each])).values.tolist() for each in (k, t, x)]
    return tuple(read)


def by_online_features(k: pa.Array, t: pa.Array, x: pa.Array) -> Any:
    made = [as_arrow(pa.chunked_array([each])) for each in (k, t, x)]
    assert [kind_of("x", each.type) for each in (k, t, x)] == [String, Timestamp, Float64]
    times = Column.from_arrow(made[1]).values.tolist()
    return made[0].to_pylist(), times, made[2].to_pylist()


def by_transformers(k: pa.Array, t: pa.Array, x: pa.Array) -> Any:
    frame = read_frame(pa.table({"k": k, "x": x}))
    alone = read_frame(x).columns[0].values.tolist()
    assert np.asarray(read_features(pa.table({"x": x}), "x")).ravel().tolist() == alone
    return frame.columns[0].values.tolist(), TIMES, frame.columns[1].values.tolist()


def by_monitoring(k: pa.Array, t: pa.Array, x: pa.Array) -> Any:
    keys, amounts = collect(["k", "x"], [pa.table({"k": k, "x": x})])
    return list(keys.counts), TIMES, amounts.values.tolist()


def by_samplers(k: pa.Array, t: pa.Array, x: pa.Array) -> Any:
    labels = as_labels(k)
    users = [labels.classes[code] for code in labels.codes]
    return users, TIMES, as_numbers(x, "scores", negative=True).tolist()


def by_arrow_clients(k: pa.Array, t: pa.Array, x: pa.Array) -> Any:
    body = _arrow_request("s", pa.table({"k": k, "t": t, "x": x}), None, False)[1]
    columns, _ = read_columns(body)
    return _stored(pa.table(columns))


def by_json_clients(k: pa.Array, t: pa.Array, x: pa.Array) -> Any:
    request = ClientRequest.of("s", {"k": k}, None, {"t": t, "x": pa.chunked_array([x])}, False)
    document = json.loads(request.body())
    given = document["request"]
    times = [np.datetime64(text.rstrip("Z"), "ms").astype(int).item() for text in given["t"]]
    return document["entities"]["k"], times, given["x"]


def by_iteration_tables(k: pa.Array, t: pa.Array, x: pa.Array) -> Any:
    schema = arrow_schema({"k": String, "t": Timestamp, "x": Float64})
    return _stored(
        TableRowConverter("rows", schema).arrow(pa.record_batch({"k": k, "t": t, "x": x}))
    )


def by_deduplicated_files(k: pa.Array, t: pa.Array, x: pa.Array) -> Any:
    table = deduplicate(pa.table({"k": k, "t": t, "x": x}), 3, ["k"])
    flat = [plain_column(table.column(name)).combine_chunks().flatten() for name in ("k", "t", "x")]
    return _stored(pa.table(flat, names=["k", "t", "x"]))


ENTRANCES: list[Read] = [
    by_entity_rows, by_local_features, by_preview, by_feedback, by_lookup, by_columns,
    by_online_features, by_transformers, by_monitoring, by_samplers, by_arrow_clients,
    by_json_clients, by_iteration_tables, by_deduplicated_files,
]  # fmt: skip


@pytest.mark.parametrize("entrance", ENTRANCES)
@every_seed(8)
def test_an_entrance_reads_the_same_values_in_each_type(seed: int, entrance: Read) -> None:
    k, t, x = columns_of(random.Random(seed))
    assert entrance(k, t, x) == (USERS, TIMES, AMOUNTS), (k.type, t.type, x.type)


@pytest.mark.parametrize("entrance", [each for each in ENTRANCES if each is not by_columns])
@pytest.mark.parametrize("array", refused(), ids=lambda array: str(array.type)[:20])
def test_an_entrance_refuses_what_has_no_type(entrance: Read, array: pa.Array) -> None:
    k, t, x = pa.array(USERS), pa.array(TIMES, pa.timestamp("ms")), pa.array(AMOUNTS)
    for arguments in ((array, t, x), (k, t, array)):
        with pytest.raises(PaimonFeaturesError):
            entrance(*arguments)


# -- the lake and files ---------------------------------------------------------------------


@every_seed(3)
def test_writers_store_the_same_values(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    folder = tmp_path / str(seed)
    folder.mkdir()
    project = make_project(folder, DEFINITIONS, '[project]\nname = "types"\n')
    project.lake.create(TableSpec("own", {"k": String, "t": Timestamp, "x": Float64}))
    source = project.definitions.source("s")
    writer = EventWriter.of(project.lake, source, lambda: NOW_MS + 3 * HOUR_MS)
    for _ in range(2):
        k, t, x = columns_of(rng)
        report = writer.write(pa.table({"k": k, "t": t, "x": x}))
        assert (report.written, report.rejected) == (3, {}), (k.type, t.type, x.type)
        append_arrow(project.lake, "own", pa.table({"x": x, "t": t, "k": k}))
    for table in ("events_s", "own"):
        stored = read_arrow(project.lake, table).sort_by([("t", "ascending")])
        rows = {tuple(row) for row in zip(*_stored(stored), strict=True)}
        assert (stored.num_rows, rows) == (6, set(zip(USERS, TIMES, AMOUNTS, strict=True)))


def test_history_takes_frames_of_polars_as_arrow_has_them(tmp_path: Path) -> None:
    project = make_project(tmp_path, DEFINITIONS, '[project]\nname = "types"\n')
    frame = pl.DataFrame({"k": USERS, "event_time_ms": TIMES, "note": ["n"] * 3})
    rows = project.get_historical_features("v", pa.table(frame))
    assert rows.column("k").to_pylist() == USERS
    assert rows.column("note").to_pylist() == ["n"] * 3


@every_seed(4)
def test_files_of_arrow_are_read_in_each_type(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    k, t, x = columns_of(rng)
    unused = rng.choice(refused())
    batch = pa.record_batch({"k": k, "t": t, "x": x, "unused": unused})
    path = tmp_path / f"events{seed}.arrow"
    with pa.ipc.new_file(str(path), batch.schema) as file:
        file.write_batch(batch)
    profile = profile_input(path, InputSettings(), set())
    kinds = {column.field: column.type for column in profile.columns}
    assert kinds == {"k": String, "t": Int64, "x": Float64, "unused": None}
    read = read_events(path, view().source, InputSettings(), {})
    assert (_stored(read.events), dict(read.rejected)) == ((USERS, TIMES, AMOUNTS), {})


@pytest.mark.parametrize("array", refused(), ids=lambda array: str(array.type)[:20])
def test_a_file_whose_key_has_no_type_is_refused(array: pa.Array, tmp_path: Path) -> None:
    batch = pa.record_batch({"k": array, "t": pa.array(TIMES), "x": pa.array(AMOUNTS)})
    path = tmp_path / "events.arrow"
    with pa.ipc.new_file(str(path), batch.schema) as file:
        file.write_batch(batch)
    with pytest.raises(PaimonFeaturesError, match=r"column 'k': the file contains .*unions"):
        read_events(path, view().source, InputSettings(), {})


def test_rows_with_two_columns_of_a_name_are_refused(tmp_path: Path) -> None:
    lake = Lake.open(tmp_path, "shop")
    lake.create(TableSpec("own", {"k": String}))
    doubled = pa.table([["a"], ["b"]], names=["k", "k"])
    with pytest.raises(PaimonFeaturesError, match="two columns 'k'"):
        append_arrow(lake, "own", doubled)
    for rows in (doubled, doubled.to_reader()):
        with pytest.raises(PaimonFeaturesError, match="two columns 'k'"):
            arrow_table(rows)
    frame = doubled.rename_columns(["k", "l"]).to_pandas()
    frame.columns = ["k", "k"]
    with pytest.raises(PaimonFeaturesError, match=r"[Dd]uplicate"):
        arrow_table(frame)


def test_decimals_in_a_dictionary_keep_their_digits() -> None:
    coded = pa.DictionaryArray.from_arrays([0, 0], pa.array([decimal.Decimal("1.50")]))
    assert Column.from_arrow(coded).values.tolist() == [decimal.Decimal("1.50")] * 2
