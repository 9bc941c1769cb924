"""The server gives transformed features of the pinned version, in every format, never mixed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from paimon_features.core.configuration.project_config import read_config
from paimon_features.core.types.schema import Float64
from paimon_features.definitions import (
    Definitions,
    FeatureService,
    FeatureView,
    Fitted,
    Interaction,
    RequestSource,
    Transformed,
)
from paimon_features.serving.http.bodies.formats import Format
from paimon_features.serving.http.server.reload import Reloader
from paimon_features.transformers import (
    FittedVersion,
    OneHotEncoder,
    StandardScaler,
    StoredTransformer,
)
from paimon_features.transformers.fitted_version import write_version
from tests.tile_lake import PROJECT
from tests.waiting import LONG_S

JSON, PACK, ARROW = (format_.value for format_ in Format)
NOW = RequestSource("now", schema={"amount": Float64})
SHARE = Interaction("share", "amount / clicks:sum_n_1d", request=NOW)
READ = {"feature_service": "m", "entities": {"user": [1, 2, 99]}, "request": {"amount": 6.0}}


def export(folder: Path, name: str, transformer: StoredTransformer, version: int = 1) -> None:
    write_version(folder, FittedVersion(name, version, transformer, 0))


def of(view: FeatureView, folder: Path, version: int = 1) -> Definitions:
    items = [
        Transformed("scaled", "clicks:sum_n_1d", Fitted("n", version)),
        Transformed("both", ["clicks:sum_n_1h", SHARE], Fitted("pair", 1)),
        Transformed("word", "clicks:last_word_30d", Fitted("word", 1), owner="growth"),
    ]
    return Definitions.of([view, FeatureService("m", [*items, "clicks:sum_n_1d"])], fitted=folder)


@pytest.fixture
def defined(filled: Any, tmp_path: Path) -> Definitions:
    export(tmp_path, "n", StandardScaler().fit([[2.0], [12.0]]))
    export(tmp_path, "n", StandardScaler().fit([[12.0], [14.0]]), 2)
    export(tmp_path, "pair", StandardScaler().fit([[0.0, 0.0], [2.0, 2.0]]))
    export(tmp_path, "word", OneHotEncoder("ignore").fit([["hello"], ["bye"]]))
    return of(filled.definitions.views["clicks"], tmp_path)


VALUES = {
    "scaled": [1.0, -1.2, None],
    "both": [[4.0, -0.5], [0.0, 5.0], None],
    "word": [[0.0, 1.0], [0.0, 0.0], [0.0, 0.0]],
    "sum_n_1d": [12, 1, None],
}
STATUSES = ["PRESENT", "PRESENT", "NOT_FOUND"]


def test_json_message_pack_and_arrow_carry_them(make_client: Any, defined: Definitions) -> None:
    client = make_client(definitions=defined)
    answer = client.read(READ)
    assert answer.status == 200, answer.json
    assert answer.json["metadata"]["feature_names"] == ["user", *VALUES]
    for values, result in zip(VALUES.values(), answer.json["results"][1:], strict=True):
        assert result["values"] == values
        assert result["statuses"] == STATUSES
    packed = client.read(msgspec.msgpack.encode(READ), headers={"content-type": PACK})
    assert msgspec.msgpack.decode(packed.body)["values"][1:] == list(VALUES.values())
    arrow = client.read(READ, headers={"accept": ARROW})
    table = pa.ipc.open_stream(arrow.body).read_all()
    assert table.select(list(VALUES)).to_pydict() == VALUES
    assert table.schema.field("both").type == pa.list_(pa.float64())
    named = client.read({"features": ["scaled", "clicks:count_12d"], "entities": {"user": [2]}})
    assert [r["values"] for r in named.json["results"]] == [[2], [-1.2], [1]]
    single = client.read({"features": ["word"], "entities": {"user": [1]}})
    assert single.json["results"][1]["values"] == [[0.0, 1.0]]
    full = client.read({**READ, "full_feature_names": True})
    assert full.json["metadata"]["feature_names"][1:4] == ["scaled", "both", "word"]


def test_the_catalogue_and_the_document_of_the_api_show_them(
    make_client: Any, defined: Definitions
) -> None:
    client = make_client(definitions=defined)
    catalogue = client.get("/features").json
    scaled, both, word = catalogue["transformed"]
    fitted = defined.transformation("scaled").fitted
    assert scaled["fitted"] == {
        "name": "n", "version": 1, "digest": fitted.digest, "kind": "standard_scaler",
    }  # fmt: skip
    assert (both["of"], both["request"]) == (["clicks:sum_n_1h", "share"], {"amount": "float64"})
    assert (word["type"], word["owner"]) == ("list(float64, 2)", "growth")
    text = json.dumps(client.get("/openapi.json").json)
    assert '"both"' in text
    assert '"amount"' in text
    refused = client.read({"features": ["scald"], "entities": {"user": [1]}})
    assert refused.status == 404
    assert "scaled" in refused.json["detail"]


def test_the_version_of_a_service_follows_what_goes_into_a_transformer(
    make_client: Any, defined: Definitions, tmp_path: Path, filled: Any
) -> None:
    def version(expression: str, description: str = "") -> str:
        share = Interaction("part", expression, request=NOW)
        both = Transformed(
            "both", ["clicks:sum_n_1h", share], Fitted("pair", 1), description=description
        )
        items = [filled.definitions.views["clicks"], FeatureService("m", [both])]
        client = make_client(definitions=Definitions.of(items, fitted=tmp_path))
        found: str = client.get("/features").json["services"][0]["version"]
        return found

    before = version("amount / clicks:sum_n_1d")
    assert version("amount / clicks:sum_n_1d", description="reported") == before
    assert version("2.0 * amount / clicks:sum_n_1d") != before


def test_another_pinned_version_changes_replies_and_mixes_none(
    make_client: Any, tmp_path: Path, filled: Any
) -> None:
    """The service reads one feature through the pinned version twice; both have to agree."""
    folder = tmp_path / "project"
    folder.mkdir()
    fitted = folder / "fitted"
    export(fitted, "n", StandardScaler().fit([[2.0], [12.0]]))
    path = folder / "features.py"

    def write(version: int) -> None:
        path.write_text(
            "import paimon_features as pf\n"
            "from tests.serving.http.conftest import CLICK_VIEW\n"
            f"one = pf.Transformed('one', 'clicks:sum_n_1d', pf.Fitted('n', {version}))\n"
            f"two = pf.Transformed('two', 'clicks:sum_n_1d', pf.Fitted('n', {version}))\n"
            "m = pf.FeatureService('m', [one, two])\n"
            "view = CLICK_VIEW\n"
        )

    write(1)
    (folder / "paimon-features.toml").write_text(f'[project]\nname = "{PROJECT}"\n')
    config = read_config(folder)
    reloader = Reloader(config, config.serve, filled.store)
    served, _ = reloader.first()
    client = make_client(definitions=served.definitions)
    version = client.get("/features").json["services"][0]["version"]
    seen: list[tuple[float, float]] = []
    body = json.dumps({"feature_service": "m", "entities": {"user": [1]}}).encode()

    async def ask_on(stop: asyncio.Event) -> None:
        while not stop.is_set():
            answer = await client.send("POST", "/get-online-features", body)
            assert answer.status == 200
            one, two = (result["values"][0] for result in answer.json["results"][1:])
            seen.append((one, two))
            await asyncio.sleep(0)

    async def work() -> None:
        stop = asyncio.Event()

        async def until_seen(values: tuple[float, float]) -> None:
            async with asyncio.timeout(LONG_S):
                while values not in seen:
                    await asyncio.sleep(0.001)

        asking = [asyncio.create_task(ask_on(stop)) for _ in range(3)]
        await until_seen((1.0, 1.0))
        write(2)
        assert not await reloader.reload(client.app)  # not exported: the previous one continues
        assert "fitted n 2 --export" in client.app.state.reload_error
        stamp = reloader._stamps()
        export(fitted, "n", StandardScaler().fit([[12.0], [14.0]]), 2)
        assert reloader._stamps() != stamp  # the new file alone is seen
        assert await reloader.reload(client.app)
        await until_seen((-1.0, -1.0))
        stop.set()
        await asyncio.gather(*asking)

    client.run(work())
    assert set(seen) == {(1.0, 1.0), (-1.0, -1.0)}
    assert client.get("/features").json["services"][0]["version"] != version
