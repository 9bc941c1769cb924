"""``paimon-features.toml``: what it says of a remote warehouse reaches the lake."""

from __future__ import annotations

from pathlib import Path

import pytest

from paimon_features.config import read_config
from paimon_features.errors import ConfigurationError
from paimon_features.operations.backup import back_up
from paimon_features.project import Project
from paimon_features.tables.storage.rest_catalog import TOKEN_VARIABLE, RestCatalog
from paimon_features.testing.object_store import object_store


def test_a_project_can_have_its_lake_on_s3(tmp_path: Path) -> None:
    with object_store("config") as store:
        options = ", ".join(f'{name} = "{value}"' for name, value in store.options.items())
        (tmp_path / "paimon-features.toml").write_text(
            '[lake]\nwarehouse = "s3://config/lake"\nside_folder = "locks"\n'
            f"options = {{ {options}, attempts = 2 }}\n"
        )
        config = read_config(tmp_path)
        assert config.lake_options == {**store.options, "attempts": "2"}
        assert config.side_folder == tmp_path / "locks"
        lake = Project.open(tmp_path).lake
        assert lake.list() == []
        assert lake.side_folder == tmp_path / "locks"


def test_options_of_a_warehouse_that_is_a_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "paimon-features.toml").write_text('[lake]\noptions = { endpoint = "x" }\n')
    with pytest.raises(ConfigurationError, match="is a folder; options and side_folder"):
        _ = Project.open(tmp_path).lake


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('uri = "https://c"', "warehouse is missing"),
        ('uri = "http://elsewhere"\nwarehouse = "w"', "each request contains the token"),
        ('uri = "https://c"\nwarehouse = "w"\ntype = "jdbc"', "type = 'jdbc'; expected 'rest'"),
        ('token = "secret"', "unknown key 'token'.*comes from the environment"),
    ],
)
def test_a_rest_catalog_is_named_completely_and_without_its_token(
    tmp_path: Path, lines: str, message: str
) -> None:
    (tmp_path / "paimon-features.toml").write_text(f"[lake.catalog]\n{lines}\n")
    with pytest.raises(ConfigurationError, match=message):
        read_config(tmp_path)


def test_a_project_with_a_rest_catalog_has_its_token_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "paimon-features.toml").write_text(
        '[lake.catalog]\nuri = "https://catalog.example.com/"\nwarehouse = "shop"\n'
    )
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    lake = Project.open(tmp_path).lake
    assert lake.rest == RestCatalog("https://catalog.example.com", "shop", "secret")
    assert "secret" not in repr(lake.rest)
    with pytest.raises(ConfigurationError, match="the tables belong to the REST catalog"):
        back_up(Project.open(tmp_path), tmp_path / "backup")
