"""A server of a bundle: no definitions file, no code of the project, and it follows a new one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from paimon_features.core.errors import DefinitionError
from paimon_features.definitions.bundle import Bundle
from paimon_features.online.store.bundles import BundlePlace
from paimon_features.project import Project
from tests.patient_stores import patient_store
from tests.serving.http.test_server import FEATURES, Running, configure, folder, run
from tests.waiting import await_true

__all__ = ["folder", "run"]  # fixtures
pytestmark = pytest.mark.redis


@pytest.fixture
def publisher(folder: Path, tmp_path: Path, redis_url: str) -> Iterator[Path]:
    """Another host, with the definitions file; the server's has none."""
    own = tmp_path / "publisher"
    own.mkdir()
    (own / "features.py").write_text((folder / "features.py").read_text())
    (folder / "features.py").unlink()
    configure(own, redis_url)
    yield own
    assert not (folder / "features.py").exists()


def publish(publisher: Path, factor: int, where: str = "online") -> None:
    (publisher / "features.py").write_text(FEATURES.format(factor=factor))
    Project.open(publisher).publish_bundle(where)


def times(server: Running) -> list[Any]:
    status, reply = server.read()
    assert status == 200, reply
    return [column["values"][0] for column in reply["results"]]


@pytest.mark.parametrize("where", ["online", "file"])
def test_a_server_answers_from_a_bundle_and_follows_it(
    publisher: Path, run: Callable[..., Running], tmp_path: Path, where: str
) -> None:
    place = "online" if where == "online" else str(tmp_path / "shop.bundle")
    publish(publisher, 3, place)
    server = run("--bundle", place)
    assert times(server) == [7, 3, 5, 3]
    publish(publisher, 4, place)
    await_true(lambda: times(server) == [7, 4, 5, 4])
    assert server.get("/health/ready")[0] == 200


def test_a_damaged_bundle_replaces_nothing(
    publisher: Path, run: Callable[..., Running], tmp_path: Path
) -> None:
    file = tmp_path / "shop.bundle"
    publish(publisher, 3, str(file))
    server = run("--bundle", str(file))
    file.write_bytes(file.read_bytes()[:-1])
    await_true(lambda: "is damaged" in server.log.read_text())
    assert "nothing was replaced" in server.log.read_text()
    assert times(server) == [7, 3, 5, 3]
    publish(publisher, 5, str(file))
    await_true(lambda: times(server) == [7, 5, 5, 5])


def test_a_server_without_a_bundle_says_who_publishes_it(
    publisher: Path, folder: Path, redis_url: str
) -> None:
    project = Project.open(folder)
    with pytest.raises(DefinitionError, match="missing bundle: .*'paimon-features apply'"):
        project.bundle_at("online").read()
    publish(publisher, 1)
    assert project.bundle_at("online").read().project == project.name
    # a project whose name begins like ours has keys of its own
    store = patient_store(redis_url)
    with pytest.raises(DefinitionError, match="missing bundle"):
        BundlePlace(project.name[:-1], "online", lambda: store).read()
    store.close()


def test_lookups_read_the_bundle_where_there_is_no_file(
    publisher: Path, folder: Path, redis_url: str
) -> None:
    publish(publisher, 6)
    configure(folder, redis_url, bundle="online")
    found = Project.open(folder).get_online_features("times_v1", {"user": [7]}).to_pylist()
    assert found == [{"user": 7, "first_times": 6, "sum_n_1d": 5, "second_times": 6}]


def test_publishers_that_race_leave_one_complete_bundle(publisher: Path, redis_url: str) -> None:
    failed: list[Exception] = []

    def work(number: int) -> None:
        try:
            # who loses too often leaves by an error
            with closing(patient_store(redis_url)) as store:
                place = BundlePlace("shop", "online", lambda: store)
                definitions = Project.open(publisher).bundle()
                for _ in range(5):
                    place.publish(definitions)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # who lost too often is told; the bundle is complete
    assert all("others keep publishing" in str(error) for error in failed)
    store = patient_store(redis_url)
    [data] = store.get_many([f"{store.key_prefix}{{shop}}#bundle".encode()])
    assert data is not None
    assert Bundle.from_bytes(data).definitions.services.keys() == {"times_v1"}
    store.close()
