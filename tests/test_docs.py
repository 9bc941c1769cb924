"""The documentation names only what exists: modules, files, commands, options, pages, anchors."""

from __future__ import annotations

import ast
import csv
import itertools
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from benchmarks import __main__ as benchmarks
from paimon_features.cli import cli
from paimon_features.project.programs import PROGRAMS, program
from tests.modules import load_file

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PACKAGES = ("paimon_features", "trainer_bridge")
FOLDERS = "paimon_features|trainer_bridge|tests|examples|docs|tools|jobs|docker|locks|benchmarks"
A_PATH = re.compile(rf"`((?:{FOLDERS})/[\w./-]*)`")
A_MODULE = re.compile(r"`((?:paimon_features|trainer_bridge)(?:\.\w+)+)(?:\(.*?\))?`")
A_LINK = re.compile(r"\]\(([^)\s]+)\)")
A_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


every_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


def prose(page: Path) -> str:
    return A_FENCE.sub("", page.read_text(encoding="utf-8"))


@every_page
def test_every_file_named_in_a_page_exists(page: Path) -> None:
    named = A_PATH.findall(prose(page))
    assert [path for path in named if not (ROOT / path).exists()] == []


def exists(dotted: str) -> bool:
    """Whether a dotted name is a module, or a name defined or exported by one."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        home = ROOT.joinpath(*parts[:end])
        sources = [home / f"__init__{suffix}" for suffix in (".pyi", ".py")]
        sources += [home.with_suffix(suffix) for suffix in (".pyi", ".py")]
        if found := [source for source in sources if source.is_file()]:
            rest = parts[end:]
            return not rest or any(rest[0] in names_in(source) for source in found)
    return False


def names_in(source: Path) -> set[str]:
    tree = ast.parse(source.read_text(encoding="utf-8"))
    names = {
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    }
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


@every_page
def test_every_module_and_name_in_a_page_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = A_MODULE.findall(text) + re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)
    assert [name for name in named if not exists(name)] == []


A_PYTHON_BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```", re.MULTILINE | re.DOTALL)


def unknown_names(block: str) -> Iterator[str]:
    """What a block of Python imports from our packages, or uses of ``pf``, and does not exist."""
    aliases = {}
    tree = ast.parse(block)
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            aliases |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        ours = (name for name in names if name.partition(".")[0] in PACKAGES)
        yield from (name for name in ours if not exists(name))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            home = aliases.get(node.value.id, "pf" if node.value.id == "pf" else "")
            home = "paimon_features" if home == "pf" else home
            if home.partition(".")[0] in PACKAGES and not exists(f"{home}.{node.attr}"):
                yield f"{node.value.id}.{node.attr}"


@every_page
def test_every_block_of_python_compiles_and_imports_what_exists(page: Path) -> None:
    """Also blocks that are skipped, because what they need is not on this host."""
    for _, block in A_PYTHON_BLOCK.findall(page.read_text(encoding="utf-8")):
        assert list(unknown_names(textwrap.dedent(block))) == []


def test_a_name_that_does_not_exist_is_found() -> None:
    block = """
import paimon_features as pf
from paimon_features.project import now_ms
from trainer_bridge import SnapshotReader
view = pf.FeatureVeiw("a", features=[pf.Sum("x")])
"""
    assert list(unknown_names(block)) == ["paimon_features.project.now_ms", "pf.FeatureVeiw"]


def commands(text: str) -> Iterator[list[str]]:
    """The words of every call of the command line: in shell blocks and between backticks."""
    for language, block in A_FENCE.findall(text):
        if language in ("sh", "bash", ""):
            for line in block.replace("\\\n", " ").splitlines():
                call = re.match(r"(?:\$ )?(?:.*&& )?(paimon-features .*)", line.strip())
                if call:
                    yield shlex.split(call[1], comments=True)
    for inline in re.findall(r"`(paimon-features [^`]+)`", A_FENCE.sub("", text)):
        yield shlex.split(inline)


def problem(words: list[str]) -> str | None:
    """What is unknown in a call, None where all of it exists."""
    command: click.Command = cli
    known = {"--help", *(name for item in cli.params for name in item.opts)}
    for word in words[1:]:
        if word in ("&&", "|", ">", ";"):
            break
        if word.startswith("--"):
            if word.partition("=")[0] not in known:
                return f"{' '.join(words)}: {word}"
        elif isinstance(command, click.Group):
            inner = command.get_command(click.Context(command), word)
            if inner is not None:
                command = inner
                known |= {
                    name for item in inner.params for name in (*item.opts, *item.secondary_opts)
                }
            elif command is cli and re.fullmatch(r"[a-z][a-z-]*", word):
                return f"{' '.join(words)}: {word}"
        elif command.name == "run" and "application" in words and word in PROGRAMS:
            # options after a program's name are the program's
            known |= set(re.findall(r'"(--[a-z-]+)"', program(word).read_text(encoding="utf-8")))
    return None


@every_page
def test_every_command_and_option_in_a_page_exists(page: Path) -> None:
    found = [problem(words) for words in commands(page.read_text(encoding="utf-8"))]
    assert [text for text in found if text] == []


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    plain = [re.sub(r"[`*]|\[(.*?)\]\(.*?\)", r"\1", title) for title in titles]
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", t).strip().lower()) for t in plain}


@every_page
def test_every_link_in_a_page_leads_somewhere(page: Path) -> None:
    broken = []
    for link in A_LINK.findall(prose(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


A_TABLE = re.compile(r"(?:^ *\|.*\n?)+", re.MULTILINE)
A_DELIMITER = re.compile(r" *\|[ :|-]*-[ :|-]*\|? *")
A_PARAGRAPH_END = re.compile(r"\n\s*\n|\n(?= *(?:[-*]|\d+\.) )")
REPEATED_WORDS = 6
SHARED_START = 32


def damage(text: str) -> Iterator[str]:
    """What an edit leaves behind that keeps both the old and the new text.

    ``text`` is a page without its fenced blocks and drawings.
    """
    for table in A_TABLE.findall(text):
        rows = table.splitlines()
        if [row for row in rows if A_DELIMITER.fullmatch(row)] != rows[1:2]:
            yield f"expected one delimiter, after the header, in the table {rows[0]}"
        yield from (f"repeated row {row}" for row in sorted({r for r in rows if rows.count(r) > 1}))
    for paragraph in A_PARAGRAPH_END.split(A_TABLE.sub("\n\n", text)):
        # two files of one folder begin alike
        lines = re.sub(r"`[\w.]+/[\w./]*/", "`", paragraph).strip().splitlines()
        for line, following in itertools.pairwise(lines):
            if line[:SHARED_START] == following[:SHARED_START]:
                yield f"two lines begin with {line[:SHARED_START]!r}"
        words = paragraph.split()
        runs = [" ".join(words[i : i + REPEATED_WORDS]) for i in range(len(words))]
        complete = runs[: len(words) - REPEATED_WORDS + 1]
        yield from (f"repeated {run!r}" for run in {r for r in complete if complete.count(r) > 1})


def test_damage_by_an_edit_is_found() -> None:
    table = "| a | b |\n|---|---|\n| 1 | 2 |\n"
    assert list(damage(f"Some words:\n\n{table}\nThe end.")) == []
    assert len(list(damage(f"|---|---|\n{table}"))) == 2, "the delimiter is also a repeated row"
    assert list(damage(f"{table}| 3 | 4 |\n| 1 | 2 |")) == ["repeated row | 1 | 2 |"]
    assert len(list(damage("| a | b |\n| 1 | 2 |"))) == 1
    start = "It shows all views and services with"
    found = list(damage(f"{start} names and\n{start} owners."))
    assert found[0] == f"two lines begin with {start[:SHARED_START]!r}"
    assert f"repeated {start.rpartition(' ')[0]!r}" in found[1:]
    assert list(damage("Before each epoch\nit reads what others wrote.")) == []
    twice = "several ranks, it reads them before each epoch"
    assert list(damage(f"With {twice} alone.\nThen {twice} again."))
    assert list(damage(f"- With {twice} alone.\n- Then {twice} again.")) == []


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=name_of)
def test_no_page_contains_both_the_old_and_the_new_text_of_an_edit(page: Path) -> None:
    other = re.compile(r"^( *)```.*?^\1```|<svg.*?</svg>", re.MULTILINE | re.DOTALL)
    assert list(damage(other.sub("", page.read_text(encoding="utf-8")))) == []


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "internals" / "decisions"
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", (folder / "index.md").read_text()))
    assert linked == {path.name for path in folder.glob("*.md")} - {"index.md"}


def test_the_site_has_a_hook_for_every_generated_part() -> None:
    hooks = load_file("docs_hooks", ROOT / "tools" / "docs_hooks.py")
    for page in PAGES:
        for package in re.findall(r"<!-- api: ([\w.]+) -->", page.read_text(encoding="utf-8")):
            assert hooks.public_names(package), package


@pytest.mark.parametrize("package", ["paimon_features", "trainer_bridge"])
def test_the_code_layout_has_a_row_for_every_folder(package: str) -> None:
    page = (ROOT / "docs" / "internals" / "index.md").read_text(encoding="utf-8")
    table = page.partition(f"\n## `{package}`\n")[2].partition("\n## ")[0]
    cells = " ".join(re.findall(r"^\| (`.*?) \|", table, re.MULTILINE))
    listed = re.findall(r"`(\w+)/`", cells)
    folders = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
    assert sorted(listed) == sorted(folders)


def test_every_table_of_figures_is_on_a_page_and_has_complete_rows() -> None:
    internals = ROOT / "docs" / "internals"
    pages = "\n".join(page.read_text(encoding="utf-8") for page in internals.glob("*.md"))
    linked = re.findall(r"^\[[^\]]+\]\(performance/([\w-]+\.csv)\)$", pages, re.MULTILINE)
    tables = {path.name: path for path in (internals / "performance").glob("*.csv")}
    assert sorted(linked) == sorted(tables), "each table stands once"
    for name, path in tables.items():
        with path.open(encoding="utf-8", newline="") as file:
            header, *rows = csv.reader(file)
        assert rows, name
        assert {len(row) for row in rows} == {len(header)}, name


def test_make_bench_measures_what_the_performance_page_names() -> None:
    internals = ROOT / "docs" / "internals"
    files = [*internals.glob("performance*.md"), *internals.glob("performance/*.csv")]
    page = "\n".join(path.read_text(encoding="utf-8") for path in files)
    runs = benchmarks.page_runs([], {})
    measured = {run.words[0] for run in runs}
    assert {name for name in measured if not (ROOT / f"benchmarks/{name}.py").is_file()} == set()
    assert {name for name in measured if name not in page} == set()
    named = set(re.findall(r"python -m benchmarks\.(\w+)", page))
    assert named - measured == {"train_gpu"}
    assert len({run.file_name for run in runs}) == len(runs)


def test_make_bench_keeps_what_is_printed_and_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        benchmarks.Run(("samplers", "--help")),
        benchmarks.Run(("samplers", "--no-such-option")),
    ]
    assert benchmarks.run_page(runs, tmp_path, idle=1e9, again=False) == 1
    assert "failed with code 2" in capsys.readouterr().out
    kept = (tmp_path / "samplers_help.txt").read_text()
    assert kept.startswith("# python -m benchmarks.samplers --help\n# 20")
    assert "usage: samplers.py" in kept
    assert benchmarks.run_page(runs[:1], tmp_path, idle=1e9, again=False) == 0
    assert "has been measured" in capsys.readouterr().out


def test_the_first_code_of_the_readme_prints_what_follows_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (language, code), (_, output) = A_FENCE.findall((ROOT / "README.md").read_text("utf-8"))[1:3]
    assert language == "python"
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == output
