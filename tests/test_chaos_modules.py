"""``make chaos`` runs whatever ``make test`` leaves to it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_make_chaos_names_each_module_with_a_part_of_it() -> None:
    recipe = (ROOT / "Makefile").read_text().partition("\nchaos:\n")[2].partition("\n\n")[0]
    named = [word for word in recipe.split() if word.startswith("tests/")]
    assert all((ROOT / name).exists() for name in named)
    modules = [
        path.relative_to(ROOT)
        for path in (ROOT / "tests").rglob("test_*.py")
        if "\nfrom tests.chaos import" in path.read_text()
    ]
    assert len(modules) > 15
    missing = [
        module
        for module in modules
        if not any(module.is_relative_to(name) or str(module) == name for name in named)
    ]
    assert not missing, "make chaos does not name these"
