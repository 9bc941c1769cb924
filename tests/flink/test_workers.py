"""Workers of pyflink that are forked: as ``python`` would run them, and ended with their client.

The worker here is a stand-in under pyflink's name; real ones run in ``test_workers_flink``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paimon_features.flink.workers import write_python
from tests.long_cases import quick_cases
from tests.os_processes import is_running
from tests.waiting import LONG_S, await_true

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")

WORKER = """\
import json, os, random, signal, sys, time
about = {
    "arguments": sys.argv[1:], "name": __name__, "directory": os.getcwd(), "path": sys.path,
    "environment": dict(os.environ), "parent": os.getppid(), "pid": os.getpid(),
    "drawn": random.random(), "imported": sys.modules.get("imported_by_servers") is not None,
}
numpy = sys.modules.get("numpy")
if numpy is not None:
    about["drawn_by_numpy"] = numpy.random.random()
print(json.dumps(about), flush=True)
print("complaint", file=sys.stderr)
what = sys.argv[1]
if what == "signal":
    os.kill(os.getpid(), signal.SIGSEGV)
elif what == "sleep":
    time.sleep(600)
elif what == "read":
    print(sys.stdin.read())
elif what == "raise":
    raise SystemError("on purpose")
sys.exit(int(what) if what.isdigit() else 0)
"""


class Host:
    """The host of a task manager: ``python`` that forks workers, and a folder for sockets."""

    def __init__(self, folder: Path, servers: str = "import imported_by_servers, numpy") -> None:
        self.folder = folder
        package = folder / "p" / "pyflink" / "fn_execution" / "beam"
        package.mkdir(parents=True)
        for path in (package, *package.parents[:2]):
            (path / "__init__.py").touch()
        (folder / "p" / "imported_by_servers.py").write_text("")
        self.main = package / "beam_sdk_worker_main.py"
        self.main.write_text(servers)
        (package / "beam_boot.py").write_text(WORKER)
        self.python = write_python(folder / "bin") / "python"
        self.environment = {**os.environ, "PYTHONPATH": str(folder / "p"), "TMPDIR": str(folder)}

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        # Flink's script is always between the worker and the task manager
        return subprocess.Popen(
            ["bash", "-c", '"$@" <&0; exit $?', "script", str(self.python), *self._of(arguments)],
            env={**self.environment, **environment},
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **environment: str) -> tuple[dict[str, Any], str, int]:
        process = self.start(*arguments, **environment)
        output, errors = process.communicate("to read", timeout=LONG_S)
        first, _, rest = output.partition("\n")
        return json.loads(first), rest + errors, process.returncode

    def plain(self, *arguments: str) -> tuple[dict[str, Any], str, int]:
        done = subprocess.run(
            [sys.executable, *self._of(arguments)],
            env=self.environment,
            cwd=self.folder,
            input="to read",
            capture_output=True,
            text=True,
            timeout=LONG_S,
        )
        first, _, rest = done.stdout.partition("\n")
        return json.loads(first), rest + done.stderr, done.returncode

    def sockets(self) -> list[Path]:
        return [path for path in self.folder.glob("paimon-features-workers-*/*") if not path.suffix]

    @staticmethod
    def _of(arguments: tuple[str, ...]) -> list[str]:
        return ["-m", "pyflink.fn_execution.beam.beam_boot", *arguments]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path, as sockets require; its servers are ended at the end."""
    path = Path(tempfile.mkdtemp(prefix="pfw", dir="/tmp"))
    yield path
    for pid in _servers(path):
        os.kill(pid, signal.SIGTERM)
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def host(folder: Path) -> Host:
    return Host(folder)


def _servers(folder: Path) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        ours = len(words) > 2 and words[1].endswith(b"workers/server.py")
        if ours and words[2].startswith(os.fsencode(folder)):
            found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize("what", quick_cases(["0", "7", "read", "raise"], "7", "raise"))
def test_a_forked_worker_behaves_like_a_started_one(host: Host, what: str) -> None:
    about, output, code = host.run(what, "--id=3", "ä b")
    plain, plainly_said, plain_code = host.plain(what, "--id=3", "ä b")
    assert about.pop("imported"), output
    assert not plain.pop("imported")
    assert [line for line in output.splitlines() if "File" not in line and "^" not in line][-1] == (
        plainly_said.splitlines()[-1]
    )
    assert code == plain_code
    own = {"_", "SHLVL", "PWD", "OLDPWD", "OMP_NUM_THREADS", "MKL_NUM_THREADS"}
    own |= {"OPENBLAS_NUM_THREADS"}
    for one in (about, plain):
        one["environment"] = {k: v for k, v in one["environment"].items() if k not in own}
        for name in ("pid", "parent", "drawn", "drawn_by_numpy"):
            one.pop(name, None)
    assert about == plain


def test_a_worker_killed_by_a_signal_is_reported_as_such(host: Host) -> None:
    # bash returns 128 plus the number of the signal
    assert host.run("signal")[2] == 128 + signal.SIGSEGV


def test_workers_of_a_task_manager_share_a_server_but_not_random_state(
    host: Host,
) -> None:
    started = [host.start("0") for _ in range(4)]
    about = [json.loads(one.communicate(timeout=LONG_S)[0].splitlines()[0]) for one in started]
    assert len({one["parent"] for one in about}) == 1
    assert len({one["drawn"] for one in about}) == 4
    assert len({one["drawn_by_numpy"] for one in about}) == 4
    assert len(_servers(host.folder)) == 1
    assert {one["environment"]["OPENBLAS_NUM_THREADS"] for one in about} == {"1"}


def test_a_worker_ends_with_its_client(host: Host) -> None:
    process = host.start("sleep")
    assert process.stdout is not None
    worker = json.loads(process.stdout.readline())["pid"]
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    await_true(lambda: not is_running(worker))
    process.communicate(timeout=LONG_S)


def test_a_worker_survives_its_server_and_the_next_gets_a_new_one(host: Host) -> None:
    process = host.start("sleep")
    assert process.stdout is not None
    about = json.loads(process.stdout.readline())
    os.kill(about["parent"], signal.SIGKILL)
    await_true(lambda: not is_running(about["parent"]))
    again, output, _ = host.run("0")
    assert again["imported"], output
    assert again["parent"] != about["parent"]
    assert is_running(about["pid"])
    assert process.poll() is None
    os.kill(about["pid"], signal.SIGTERM)
    process.communicate(timeout=LONG_S)
    assert process.returncode != 0


def test_a_server_that_is_killed_while_a_client_waits_is_replaced(host: Host) -> None:
    server = host.run("0")[0]["parent"]
    (address,) = map(str, host.sockets())
    os.kill(server, signal.SIGSTOP)
    process = host.start("0")
    # the listener, and a connection that it has not accepted
    await_true(lambda: Path("/proc/net/unix").read_text().count(f" {address}\n") == 2)
    os.kill(server, signal.SIGKILL)
    output, errors = process.communicate(timeout=LONG_S)
    about = json.loads(output.splitlines()[0])
    assert about["imported"], errors
    assert about["parent"] != server


def test_a_changed_file_is_imported_again(host: Host) -> None:
    before = host.run("0")[0]
    changed = host.folder / "p" / "imported_by_servers.py"
    changed.write_text("import changed_since")
    (host.folder / "p" / "changed_since.py").write_text("")
    after = host.run("0")[0]
    assert after["imported"]
    assert after["parent"] != before["parent"]
    await_true(lambda: not is_running(before["parent"]))
    assert host.run("0")[0]["parent"] == after["parent"]


def test_a_server_ends_with_its_task_manager_and_leaves_no_file(host: Host) -> None:
    script = f"bash -c '\"{host.python}\" {' '.join(host._of(('0',)))}; true'; echo; read wait"
    manager = subprocess.Popen(
        ["bash", "-c", script],
        env=host.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert manager.stdout is not None
    server = json.loads(manager.stdout.readline())["parent"]
    assert is_running(server)
    assert len(host.sockets()) == 1
    manager.kill()
    manager.communicate()
    await_true(lambda: not is_running(server))
    assert not list(host.folder.glob("paimon-features-workers-*/*"))


@pytest.mark.parametrize(
    ("variable", "why"),
    [
        ({"_PYTHON_WORKING_DIR": "/tmp"}, "_PYTHON_WORKING_DIR is set"),
        ({"_PYTHON_REQUIREMENTS_FILE": "/tmp/r.txt"}, "_PYTHON_REQUIREMENTS_FILE is set"),
        ({"PYTHON_LOOPBACK_SERVER_ADDRESS": "a:1"}, "PYTHON_LOOPBACK_SERVER_ADDRESS is set"),
        ({"TMPDIR": "/tmp/" + 100 * "x"}, "No such file or directory"),
        ({"TMPDIR": "/nowhere"}, "No such file or directory"),
    ],
)
def test_a_worker_with_own_packages_or_no_socket_folder_is_started_directly(
    host: Host, variable: dict[str, str], why: str
) -> None:
    about, output, code = host.run("5", **variable)
    assert code == 5
    assert re.search(f"paimon-features: this worker is not forked: .*{why}", output)
    assert not about["imported"]
    assert not _servers(host.folder)


def test_why_a_server_does_not_start_is_printed(folder: Path) -> None:
    host = Host(folder, servers="raise SystemError('no fonts')")
    about, output, code = host.run("5")
    assert (code, about["imported"]) == (5, False)
    assert re.search("this worker is not forked: the server .*: SystemError: no fonts", output)


def test_a_folder_writable_by_others_is_not_used(host: Host) -> None:
    others = host.folder / f"paimon-features-workers-{os.getuid()}"
    others.mkdir()
    others.chmod(0o777)
    assert not host.run("0")[0]["imported"]
    assert not list(others.iterdir())


def test_a_worker_is_started_directly_if_server_imports_are_missing(folder: Path) -> None:
    host = Host(folder, servers="import not_there_at_all")
    about, _, code = host.run("5")
    assert code == 5
    assert not about["imported"]


def test_other_invocations_run_python_directly(host: Host) -> None:
    done = subprocess.run(
        [str(host.python), "-c", "import sys; print(sys.executable, sys.argv)", "a b"],
        env=host.environment,
        capture_output=True,
        text=True,
        timeout=LONG_S,
        check=True,
    )
    assert done.stdout.strip() == f"{sys.executable} ['-c', 'a b']"
