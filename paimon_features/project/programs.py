"""The programs that Flink runs: files of this distribution, one for each kind of job.

::

    flink run -m jobmanager:8081 -py $(python -m paimon_features.project.programs)/tiles.py ...

They are not an importable package, so that a project can have a folder ``jobs/`` of its own.
"""

from __future__ import annotations

from pathlib import Path

from paimon_features.core.errors import SetupError, UnknownNameError

PROGRAMS = ("ingest", "tiles", "history", "iterate", "maintain")
FOLDERS = ("../jobs", "_jobs")
"""The folder of the programs relative to the package: in a clone, and in an installed wheel."""


def programs_folder() -> Path:
    """Return the folder of the programs.

    >>> sorted(path.stem for path in programs_folder().glob("*.py")) == sorted(PROGRAMS)
    True
    """
    package = Path(__file__).resolve().parents[1]
    for folder in FOLDERS:
        programs = (package / folder).resolve()
        # a project may have a folder of that name next to the installed package
        if all((programs / f"{name}.py").is_file() for name in PROGRAMS):
            return programs
    raise SetupError("this installation came without the programs for Flink; install it again")


def program(name: str) -> Path:
    """Return the file of a program.

    >>> program("tiles").name
    'tiles.py'
    """
    if name not in PROGRAMS:
        raise UnknownNameError.of("program", name, PROGRAMS)
    return programs_folder() / f"{name}.py"


if __name__ == "__main__":
    print(programs_folder())
