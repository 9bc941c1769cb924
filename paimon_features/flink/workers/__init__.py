"""Python workers of a task manager, forked from a server process with all imports done.

In process mode, Flink starts one Python process per operator and subtask, and each imports Beam and
pyflink: 2.4 s of CPU time. ``client`` replaces ``python`` there: it requests the worker from
``server``, one process per task manager, which forks it in milliseconds. Neither module is
imported: both run by their paths, ``client`` without importing any package.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from paimon_features.flink.gateway import BLAS_THREADS

_SCRIPT = """\
#!/bin/sh
# python, except that workers of pyflink are forked, see {folder}
export {blas}
case "$1 $2" in
"-m pyflink.fn_execution.beam.beam_boot") exec {python} -IS {folder}/client.py "$@" ;;
*) exec {python} "$@" ;;
esac
"""


def write_python(folder: Path) -> Path:
    """Write a program ``python`` that replaces this interpreter into a folder; return the folder,
    to be put first in PATH or used for Flink's ``python.executable``."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "python"
    own_folder = shlex.quote(str(Path(__file__).parent))
    blas = " ".join(f'{name}="${{{name}:-1}}"' for name in BLAS_THREADS)
    script = _SCRIPT.format(python=shlex.quote(sys.executable), folder=own_folder, blas=blas)
    program.write_text(script, "utf-8")
    program.chmod(0o755)
    return folder
