"""``paimon-features.toml``: what it says of a remote warehouse reaches the lake."""

from __future__ import annotations

from pathlib import Path

import pytest

from paimon_features.core.configuration.project_config import FILE_NAME, read_config
from paimon_features.core.errors import ConfigurationError
from paimon_features.lake.storage.rest_catalog import TOKEN_VARIABLE, RestCatalog
from paimon_features.project import Project
from paimon_features.project.backup import back_up
from tests.servers.object_store import object_store


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[project", "paimon-features.toml: .*(at line 1|at end)"),
        ("inputs = 1", r"\[inputs\]; expected a table \[inputs.NAME\] for a source"),
        ('inputs.sales = "a.csv"', r"\[inputs\]; expected a table \[inputs.NAME\] for a source"),
        ('[project]\nname = "My Shop"', r"\[project\] name = 'My Shop'; expected lower-case"),
        (
            '[project]\nengine = "spark"',
            r"\[project\] engine = 'spark'; expected 'flink' or 'local'",
        ),
        ("[flink]\nparallelism = 0", r"\[flink\] parallelism = 0; expected 1 or more"),
        ('[flink]\ncheckpoint_interval = "1"', r"\[flink\] checkpoint_interval: .*'1'"),
        ("servr = 1", "unknown entry 'servr'; expected the tables project, .*outcomes.MODEL"),
        ("outcomes = 1", r"outcomes.MODEL is not a table; expected \[outcomes.MODEL\] with: "),
        ('outcomes.churn = "a"', r"outcomes.churn is not a table; exp.* \[outcomes.churn\] with"),
        (
            "[outcomes.churn]\notherwise = 0\nkeys = { user = 1 }",
            r"\[outcomes.churn\] keys = \{'user': 1\}; expected the name of a column for each key",
        ),
        (
            '[serve]\nhosts = ["https://a"]',
            r"\[serve\] hosts: 'https://a'; expected names without scheme and port",
        ),
        (
            '[serve.oidc]\nissuer = "https://["\naudience = "a"',
            r"\[serve.oidc\] issuer = 'https://\['; expected https://HOST/",
        ),
        (
            '[serve.oidc]\nissuer = "https://a"\naudience = 1',
            r"\[serve.oidc\] audience = 1; expected a list of texts",
        ),
    ],
)  # fmt: skip
def test_an_entry_that_cannot_be_is_refused_with_the_file_and_what_it_takes(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(ConfigurationError, match=message) as raised:
        read_config(tmp_path)
    assert str(raised.value).startswith(str(tmp_path / FILE_NAME))
