"""Compiles the native core while a wheel or an editable install is built.

With the system's compiler, else with the package ``ziglang``, a complete C compiler; without either
the wheel has no core, and NumPy does its work. In an isolated build ``ziglang`` is a requirement of
the build where no compiler is found. As a program it says by its exit code whether one is:

    python hatch_build.py            # 0: there is a compiler; 1: install locks/compiler.txt

``PAIMON_FEATURES_COMPILER`` picks: ``zig`` (the wheel then runs on every Linux with glibc 2.17 or
later), ``none``, or the command of a compiler.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path("paimon_features/core/native")
MODULE = "_core.abi3.so"
VARIABLE = "PAIMON_FEATURES_COMPILER"
# contraction and reordering would change the last bit of sums
FLAGS = ["-std=c11", "-O3", "-fPIC", "-ffp-contract=off", "-fno-fast-math", "-fvisibility=hidden"]
WARNINGS = ["-Wall", "-Wextra", "-Wshadow"]
_GLIBC = "2.17"


def zig() -> list[str] | None:
    """Return the command of the package ``ziglang``; None where it is not installed."""
    if importlib.util.find_spec("ziglang") is None:
        return None
    command = [sys.executable, "-m", "ziglang", "cc"]
    if sys.platform == "linux" and platform.libc_ver()[0] == "glibc":
        command += ["-target", f"{platform.machine()}-linux-gnu.{_GLIBC}"]
    return command


def system_compiler() -> list[str] | None:
    """Return the command of the first compiler on PATH that compiles; None without one."""
    chosen = os.environ.get(VARIABLE) or os.environ.get("CC") or ""
    for name in [chosen] if chosen else ["cc", "gcc", "clang"]:
        command = shlex.split(name)
        if shutil.which(command[0]) and _compiles(command):
            return command
    return None


def _compiles(command: list[str]) -> bool:
    """Whether it makes a shared library: a compiler without the C library's headers does not."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "try.c")
        source.write_text("#include <math.h>\n#include <stdlib.h>\nint one(void) { return 1; }\n")
        target = str(Path(folder, "try.so"))
        tried = subprocess.run(
            [*command, "-shared", "-fPIC", str(source), "-o", target], capture_output=True
        )
        return tried.returncode == 0


def find_compiler() -> list[str] | None:
    """Return the command of a compiler; None without one."""
    chosen = os.environ.get(VARIABLE, "")
    if chosen == "none":
        return None
    if chosen == "zig":
        return zig()
    return system_compiler() or zig()


def compile_core(
    root: Path, target: Path, compiler: list[str], *options: str, own_header: bool | None = None
) -> None:
    """Compile the core to ``target``; ``own_header``: without Python's headers.

    By default those are used where they are installed.

    Raises
    ------
    subprocess.CalledProcessError
        If the compiler fails; its output has the reason.
    """
    include = Path(sysconfig.get_path("include"))
    if own_header is None:
        own_header = not (include / "Python.h").is_file()
    headers = ["-DPAIMON_FEATURES_OWN_HEADER"] if own_header else ["-isystem", str(include)]
    linking = ["-bundle", "-undefined", "dynamic_lookup"]
    if sys.platform != "darwin":
        linking = ["-shared", "-Wl,-s"]
    # never half a module, and none that a running process has mapped
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        subprocess.run(
            [*compiler, *FLAGS, *WARNINGS, *headers, *options, *linking,
             str(root / FOLDER / "core.c"), "-o", str(partial)],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)


def platform_tag(compiler: list[str]) -> str:
    """Return the platform that a wheel with a core of this compiler is for."""
    if "-target" in compiler:
        return f"manylinux_{_GLIBC.replace('.', '_')}_{platform.machine()}"
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a program, by a Python without the build backend
    pass
else:

    class NativeCoreHook(BuildHookInterface[Any]):
        """The build hook of ``pyproject.toml``."""

        PLUGIN_NAME = "custom"

        def dependencies(self) -> list[str]:
            """Name what an isolated build installs first."""
            wants_zig = os.environ.get(VARIABLE) == "zig"
            lacks_one = self._is_wanted() and find_compiler() is None
            return ["ziglang"] if wants_zig or lacks_one else []

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Compile the core into the package's folder; without a compiler leave it out."""
            root = Path(self.root)
            target = root / FOLDER / MODULE
            target.unlink(missing_ok=True)
            compiler = find_compiler()
            if compiler is None:
                if self._is_wanted():
                    self.app.display_warning("no C compiler: NumPy does the native core's work")
                return
            try:
                compile_core(root, target, compiler)
            except subprocess.CalledProcessError as error:
                self.app.display_warning(
                    f"the native core does not compile, NumPy does its work\n{error.stderr}"
                )
                return
            build_data["artifacts"].append(f"/{FOLDER / MODULE}")
            if version == "standard":
                build_data["pure_python"] = False
                # the stable ABI: one wheel for every Python from 3.11 on
                build_data["tag"] = f"cp311-abi3-{platform_tag(compiler)}"

        def _is_wanted(self) -> bool:
            return os.environ.get(VARIABLE) != "none" and sys.platform != "win32"


if __name__ == "__main__":
    sys.exit(find_compiler() is None)
