"""Published models: verified by their hashes, one atomic index, the same online and as files."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paimon_features.core.configuration.project_config import ProjectConfig, read_config
from paimon_features.core.errors import ModelError, PaimonFeaturesError
from paimon_features.models import ModelManifest, ModelStates, sha256_of
from paimon_features.online.store import MemoryStore, OnlineStore
from paimon_features.online.store.documents import ONLINE
from paimon_features.online.store.published_models import (
    ModelPlace,
    PublishedModels,
    model_place_of,
)
from paimon_features.online.store.store import Write
from tests.models.networks import manifest, network
from tests.patient_stores import patient_store

Files = dict[str, Callable[[], bytes]]


@pytest.fixture(params=["memory", pytest.param("redis", marks=pytest.mark.redis), "folder"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> ModelPlace:
    if request.param == "folder":
        return ModelPlace("shop", str(tmp_path / "shop.bundle.models"), no_store)
    store: OnlineStore = MemoryStore()
    if request.param == "redis":
        url = request.getfixturevalue("redis_url")
        store = patient_store(url)
    return ModelPlace("shop", ONLINE, lambda: store)


def no_store() -> OnlineStore:
    raise AssertionError("no store is needed")


def version(number: int) -> tuple[ModelManifest, Files]:
    made = manifest(version=number, weight=float(number))
    network_bytes = network(float(number)).SerializeToString()
    return made, {
        sha256_of(made.to_bytes()): made.to_bytes,
        made.network.sha256: lambda: network_bytes,
    }


def states(*numbers: int) -> ModelStates:
    """All of them; the last one is in production."""
    made = ModelStates.new("churn", 1)
    for number in numbers:
        digest = sha256_of(version(number)[0].to_bytes())
        made = made.with_version(number, digest, number)
    return made.changed(numbers[-1], "production", 9)


def served(made: ModelStates) -> PublishedModels:
    kept = tuple(each for each in made.versions if each.state == "production")
    return PublishedModels("shop", 1, {"churn": replace(made, versions=kept)})


def test_what_is_published_is_loaded(place: ModelPlace) -> None:
    assert place.read() == PublishedModels("shop")
    assert place.stamp() == ""
    made, files = version(1)
    index = served(states(1))
    assert place.publish(index, files) == index == place.read()
    production = place.read().models["churn"].production
    assert production is not None
    found = place.load("churn", production)
    assert found.manifest == made
    assert found.network == network(1.0).SerializeToString()


def test_a_change_is_noticed_and_old_files_go_a_publication_later(place: ModelPlace) -> None:
    history = [states(*range(1, number + 1)) for number in (1, 2, 3)]
    stamps = []
    for number, made in enumerate(history, 1):
        place.publish(served(made), version(number)[1])
        stamps.append(place.stamp())
    assert len(set(stamps)) == 3
    first, second, third = (each.versions[-1] for each in history)
    place.load("churn", third)
    place.load("churn", second)  # a server that has read the previous index finds its files
    with pytest.raises(ModelError, match="is missing"):
        place.load("churn", first)


def test_an_older_publication_does_not_undo_a_newer_one(place: ModelPlace) -> None:
    older, newer = states(1), states(1, 2)
    place.publish(served(newer), version(2)[1])
    place.publish(served(older), version(1)[1])
    assert place.read().models["churn"].serial == newer.serial
    production = place.read().models["churn"].production
    assert production is not None
    assert production.version == 2
    place.load("churn", production)


def test_damaged_and_foreign_content_is_refused(place: ModelPlace) -> None:
    made, files = version(1)
    other = version(2)[0]
    index = served(states(1))
    place.publish(index, files)
    [state] = index.models["churn"].versions

    def overwrite(digest: str, data: bytes) -> None:
        if place.folder is not None:
            (place.folder / digest).write_bytes(data)
            return
        place._write(digest, data)

    overwrite(made.network.sha256, network(5.0).SerializeToString())
    with pytest.raises(ModelError, match=r"its network.* is damaged"):
        place.load("churn", state)
    overwrite(state.manifest, other.to_bytes())
    with pytest.raises(ModelError, match="does not match its SHA-256"):
        place.load("churn", state)
    place.publish(index, files)  # replaces what is damaged
    assert place.load("churn", state).manifest == made
    # a manifest by its own hash, of another version
    overwrite(sha256_of(other.to_bytes()), other.to_bytes())
    with pytest.raises(ModelError, match="is that of churn@2"):
        place.load("churn", replace(state, manifest=sha256_of(other.to_bytes())))
    place._index.publish(replace(index, project="bank").to_bytes())
    with pytest.raises(ModelError, match="are of project 'bank'"):
        place.read()


def test_a_network_with_external_data_is_not_loaded(place: ModelPlace) -> None:
    model = network()
    model.graph.initializer[0].data_location = 1
    data = model.SerializeToString()
    made = manifest()
    made = replace(made, files={"network.onnx": replace(
        made.network, sha256=sha256_of(data), bytes=len(data))})  # fmt: skip
    digest = sha256_of(made.to_bytes())
    index = ModelStates.new("churn", 1).with_version(1, digest, 1).changed(1, "production", 2)
    files: Files = {digest: made.to_bytes, made.network.sha256: lambda: data}
    place.publish(PublishedModels("shop", 1, {"churn": index}), files)
    with pytest.raises(ModelError, match=r"model 'churn', version 1: .* external data"):
        place.load("churn", index.versions[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-1] + b"x", "does not match the digest"),
        (lambda data: data[:40], "does not match|is not a"),
        (lambda data: b"{}", "is not a index of models|not a"),
        (lambda data: data.replace(b'_models":1', b'_models":9'), "upgrade this host"),
    ],
)
def test_a_damaged_index_is_refused_and_replaced(
    place: ModelPlace, change: Callable[[bytes], bytes], message: str
) -> None:
    index = served(states(1))
    place.publish(index, version(1)[1])
    document = place._index
    data = document.read()
    assert data is not None
    broken = change(data)
    if document.is_online:
        document.store.delete([document.key("models")])
        document.store.compare_and_set_many([Write(document.key("models"), None, broken)])
    else:
        Path(document.where).write_bytes(broken)
    with pytest.raises(ModelError, match=message):
        place.read()
    place.publish(index, version(1)[1])
    assert place.read() == index


def test_publishers_at_once_leave_an_index_whose_files_are_there(place: ModelPlace) -> None:
    histories = [states(*range(1, number + 1)) for number in (1, 2, 3, 4)]
    errors: list[Any] = []

    def work(number: int) -> None:
        for _ in range(5):
            try:
                place.publish(served(histories[number - 1]), version(number)[1])
            except PaimonFeaturesError as error:
                errors.append(error)

    threads = [threading.Thread(target=work, args=[number]) for number in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # those that lost a race often enough say so
    assert all("others keep publishing" in str(error) for error in errors)
    place.publish(served(histories[3]), version(4)[1])
    production = place.read().models["churn"].production
    assert production is not None
    assert production.version == 4
    place.load("churn", production)


def test_models_are_published_where_the_bundle_is(tmp_path: Path) -> None:
    def config(text: str) -> ProjectConfig:
        (tmp_path / "paimon-features.toml").write_text(f'[project]\nname = "shop"\n{text}')
        return read_config(tmp_path)

    store = MemoryStore()
    online = model_place_of(config('[serve]\nbundle = "online"'), lambda: store)
    assert online.folder is None
    file = model_place_of(config('[serve]\nbundle = "shop.bundle"'), no_store)
    assert file.folder == tmp_path / "shop.bundle.models"
    assert model_place_of(config(""), no_store).folder == tmp_path / ".paimon-features" / "models"
