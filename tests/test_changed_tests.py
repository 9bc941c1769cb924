"""``tools/changed_tests.py``: which tests a change selects, in a small repository."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "changed_tests.py"

FILES = {
    "paimon_features/__init__.py": "__getattr__, __dir__, __all__ = attach_stub(__name__)\n",
    "paimon_features/__init__.pyi": """
from paimon_features.sums import Sum as Sum
from paimon_features.views import View as View
""",
    "paimon_features/sums.py": '"""\n>>> 1 + 1\n2\n"""\nSum = 1\n',
    "paimon_features/views.py": """
def tiles():
    from paimon_features.tiler import tile
    return tile

View = tiles
""",
    "paimon_features/tiler.py": "tile = 1\n",
    "paimon_features/lake.py": "Lake = 1\n",
    "paimon_features/worker.py": "",
    "paimon_features/native/__init__.py": "",
    "paimon_features/native/core.c": "",
    "paimon_features/cli/__init__.py": """
import importlib
def command(name):
    return importlib.import_module(f"{__name__}.{name}")
""",
    "paimon_features/cli/fit.py": "",
    "paimon_features/cli/train_all.py": "",
    "jobs/tiles.py": "",
    "tools/house.py": "",
    "docker/alerts.yml": "",
    "docs/views.md": "```python\nimport paimon_features as pf\npf.View\n```\n",
    "docs/plain.md": "No code: paimon_features.views.\n",
    "conftest.py": "",
    "tests/conftest.py": """
import pytest
from tests.waiting import LONG_S

@pytest.fixture
def lake():
    from paimon_features.lake import Lake
    return wait(Lake)

def wait(value):
    return value, LONG_S
""",
    "tests/waiting.py": "LONG_S = 1\n",
    "tests/helper.py": "from paimon_features.sums import Sum\n",
    "tests/test_sums.py": "from tests.helper import Sum\n",
    "tests/test_public.py": "import paimon_features as pf\nresult = pf.Sum\n",
    "tests/test_views.py": "from paimon_features import (\n    View,\n)\n",
    "tests/test_tables.py": "def test_it(lake): pass\n",
    "tests/test_native.py": "import paimon_features.native\n",
    "tests/test_process.py": """
import subprocess
subprocess.run(["paimon-features", "fit"])
""",
    "tests/test_fit.py": """
from paimon_features.cli import command
command("train-all")
""",
    "tests/test_worker.py": """script = "import paimon_features.worker"\n""",
    "tests/test_house.py": "house = ROOT / 'tools' / tool(\"house\")\n",
    "tests/test_alerts.py": 'path = ROOT / "docker" / "alerts.yml"\n',
    "tests/serving/conftest.py": "import pytest\n@pytest.fixture(autouse=True)\ndef calm():\n"
                                 "    import tests.calm\n",
    "tests/calm.py": "",
    "tests/serving/test_http.py": "",
    "tests/serving/data/request.json": "{}",
}  # fmt: skip

EXPECTED = {
    # imports, also of helpers and in functions; doctests of the module
    "paimon_features/sums.py": ["paimon_features/sums.py", "tests/test_public.py",
                                "tests/test_sums.py"],
    # lazy public names, in modules and in documents
    "paimon_features/views.py": ["docs/views.md", "tests/test_views.py"],
    "paimon_features/tiler.py": ["docs/views.md", "tests/test_views.py"],
    # fixtures, by name and automatic
    "paimon_features/lake.py": ["tests/test_tables.py"],
    "tests/waiting.py": ["tests/test_tables.py"],
    "tests/calm.py": ["tests/serving/test_http.py"],
    "tests/serving/conftest.py": ["tests/serving/test_http.py"],
    "tests/serving/data/request.json": ["tests/serving/test_http.py"],
    # commands and other processes
    "paimon_features/cli/__init__.py": ["tests/test_fit.py", "tests/test_process.py"],
    "paimon_features/cli/fit.py": ["tests/test_process.py"],
    "paimon_features/cli/train_all.py": ["tests/test_fit.py"],
    "paimon_features/worker.py": ["tests/test_worker.py"],
    # files that are no modules
    "paimon_features/native/core.c": ["tests/test_native.py"],
    "docker/alerts.yml": ["tests/test_alerts.py"],
    "tools/house.py": ["tests/test_house.py"],
    "docs/views.md": ["docs/views.md"],
    "docs/plain.md": [],
    "tests/test_fit.py": ["tests/test_fit.py"],
}  # fmt: skip


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository on the branch ``main``, with the tool."""
    root = tmp_path_factory.mktemp("repository")
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    shutil.copy(TOOL, root / "tools" / "changed_tests.py")
    git(root, "init", "--quiet", "--initial-branch", "main")
    git(root, "add", ".")
    commit(root)
    return root


def git(root: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=root, check=True, capture_output=True)


def commit(root: Path) -> None:
    author = ("-c", "user.name=a", "-c", "user.email=a@b")
    git(root, *author, "commit", "--quiet", "--all", "--message", "change")


def python(root: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-P", *words], cwd=root, check=True, capture_output=True, text=True
    )
    return done.stdout


SELECTIONS = """
import json, sys
sys.path.insert(0, "tools")
import changed_tests
repository = changed_tests.Repository()
print(json.dumps({
    file: [path.relative_to(changed_tests.ROOT).as_posix()
           for path in repository.affected(repository.changed_modules([file]))]
    for file in sys.argv[1:]
}))
"""


def test_a_change_selects_the_tests_that_depend_on_it(repository: Path) -> None:
    assert json.loads(python(repository, "-c", SELECTIONS, *EXPECTED)) == EXPECTED


def test_changes_are_those_since_the_base_with_the_working_tree(repository: Path) -> None:
    tool = "tools/changed_tests.py"
    assert python(repository, tool) == ""
    git(repository, "switch", "--quiet", "--create", "work")
    (repository / "paimon_features" / "lake.py").write_text("Lake = 2\n")
    commit(repository)
    (repository / "tests" / "test_new.py").write_text("")
    assert python(repository, tool).split() == ["tests/test_new.py", "tests/test_tables.py"]
    assert python(repository, tool, "--base", "HEAD").split() == ["tests/test_new.py"]
    (repository / "conftest.py").write_text("# changed\n")
    everything = ["tests", "paimon_features", "docs"]
    assert python(repository, tool).split() == everything
