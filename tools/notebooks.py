"""Runs the notebooks of docs/ as a reader would, each in an empty folder with a fresh kernel.

    make notebooks                          all of them
    make notebooks ARGS="tutorial.ipynb"    those whose path ends so

A cell that fails is an error. The notebooks with their outputs are written to build/notebooks/,
from where ``make docs`` takes them; those in docs/ stay without outputs, so that a difference is
one of the text or the code.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
EXECUTED = ROOT / "build" / "notebooks"
SOURCE = "source"
"""The metadata of an executed notebook that identifies the one it was made from."""
CELL_S = 300


def notebooks() -> list[Path]:
    """The notebooks of the documentation, in the order of their paths."""
    return sorted(DOCS.rglob("*.ipynb"))


def digest(path: Path) -> str:
    """Identifies the text and the code of a notebook."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    texts = [[cell["cell_type"], "".join(cell["source"])] for cell in cells]
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()


def executed(path: Path) -> Path | None:
    """The notebook with its outputs, if it was run since it was changed."""
    made = EXECUTED / path.relative_to(DOCS)
    if not made.is_file():
        return None
    metadata = json.loads(made.read_text(encoding="utf-8"))["metadata"]
    return made if metadata.get(SOURCE) == digest(path) else None


def run(path: Path) -> None:
    """Run one notebook and write it with its outputs; raises CellExecutionError."""
    import nbformat
    from nbclient import NotebookClient

    book: Any = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory(prefix="notebook-") as folder:
        where = {"metadata": {"path": folder}}
        # a busy machine starts kernels slowly
        client = NotebookClient(
            book, kernel_name="python3", timeout=CELL_S, startup_timeout=CELL_S, resources=where
        )
        try:
            client.execute()
        finally:
            for cell in book.cells:
                # when a cell ran says nothing, and differs each time
                cell.metadata.pop("execution", None)
            book.metadata[SOURCE] = digest(path)
            # a reader's folders are others
            text = nbformat.writes(book).replace(str(Path(folder).resolve()), "/home/me/work")
            text = text.replace(str(ROOT), "/home/me/paimon-features")
            made = EXECUTED / path.relative_to(DOCS)
            made.parent.mkdir(parents=True, exist_ok=True)
            made.write_text(text, encoding="utf-8")


def main(endings: list[str]) -> None:
    """Run the notebooks whose paths end in one of ``endings``, all by default."""
    chosen = [p for p in notebooks() if not endings or any(str(p).endswith(e) for e in endings)]
    if not chosen:
        sys.exit(f"no notebook ends in {' or '.join(endings)}; available: {notebooks()}")
    # the kernel is this Python; it finds the commands of this environment
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for path in chosen:
        began = time.monotonic()
        run(path)
        print(f"{path.relative_to(ROOT)}: {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
