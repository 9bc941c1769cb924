"""Makes what a release consists of, in dist/: packages, bills of materials, licences, hashes.

    make release

- the sdist and the wheel, with the time of the last commit, so that the same commit makes the
  same bytes;
- for each kind of host (an image of docker/, and a client) a CycloneDX document of what is
  installed there: Python packages with licences and dependencies, and for `jobs` Flink's jars with
  their hashes. It is read from a virtual environment into which the host's lock file and the wheel
  were installed, and whose `paimon-features --version` has answered;
- LICENCES.md, a table of the licences of all of them;
- SHA256SUMS over everything, which the release workflow attests.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from paimon_features.core.installation.jars import DEFAULT_GROUPS, locked_jars

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
UV = [sys.executable, "-m", "uv"]

# kind of host -> the extras of its lock file in locks/; a client has no image, and no lock file
HOSTS = {
    "client": None,
    "serving": "serving",
    "predict": "predict",
    "materializer": "materializer",
    "jobs": "jobs",
    "training": "training",
}


def main() -> int:
    shutil.rmtree(DIST, ignore_errors=True)
    documents = {}
    with tempfile.TemporaryDirectory() as folder:
        build_packages(Path(folder))
        (wheel,) = DIST.glob("*.whl")
        tool = make_environment(
            Path(folder) / "tool", ["--require-hashes", "-r", "locks/release.txt"]
        )
        for host, lock in HOSTS.items():
            documents[host] = document_of_host(host, lock, wheel, tool, Path(folder))
            path = DIST / f"sbom-{host}.cdx.json"
            path.write_text(json.dumps(documents[host], indent=1) + "\n")
            say(f"{path.name}: {len(documents[host]['components'])} components")
    (DIST / "LICENCES.md").write_text(licence_table(documents))
    sums = [f"{digest(path)}  {path.name}" for path in sorted(DIST.iterdir())]
    (DIST / "SHA256SUMS").write_text("\n".join(sums) + "\n")
    say(f"{len(sums)} files and SHA256SUMS in dist/")
    return 0


def say(text: str) -> None:
    print(f"release: {text}", flush=True)


def run(command: list[str], **variables: str) -> str:
    """Run a command to its end and return what it printed; its errors end the release."""
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=os.environ | variables
    )
    if done.returncode:
        raise SystemExit(f"release: exit code {done.returncode} of: {' '.join(command)}")
    return done.stdout


def build_packages(folder: Path) -> None:
    """The sdist, and the wheel from it, with the time of the commit.

    The native core is compiled by the locked ``ziglang``, for every Linux with an old enough glibc.
    """
    locks = ["locks/bootstrap.txt", "locks/compiler.txt"]
    python = make_environment(
        folder / "build", ["--require-hashes", *(word for lock in locks for word in ("-r", lock))]
    )
    committed = run(["git", "log", "-1", "--format=%ct"]).strip()
    run(
        [str(python), "-m", "uv", "build", "--quiet", "--no-build-isolation",
         "--python", str(python), "--out-dir", str(DIST)],
        SOURCE_DATE_EPOCH=committed, PAIMON_FEATURES_COMPILER="zig",
    )  # fmt: skip
    for path in DIST.glob(".gitignore"):
        path.unlink()
    say(", ".join(sorted(path.name for path in DIST.iterdir())))


def make_environment(folder: Path, requirements: list[str]) -> Path:
    """A virtual environment with these requirements; the path of its Python."""
    run([*UV, "venv", "--quiet", "--python", sys.executable, str(folder)])
    python = folder / "bin" / "python"
    run([*UV, "pip", "install", "--quiet", "--python", str(python), *requirements])
    return python


def document_of_host(
    host: str, lock: str | None, wheel: Path, tool: Path, folder: Path
) -> dict[str, Any]:
    """Install a kind of host, try it, and return its bill of materials (CycloneDX 1.6)."""
    if lock:
        python = make_environment(folder / host, ["--require-hashes", "-r", f"locks/{lock}.txt"])
        run([*UV, "pip", "install", "--quiet", "--python", str(python), "--no-deps", str(wheel)])
    else:
        python = make_environment(
            folder / host,
            ["-c", "requirements.lock", f"paimon-features[{host}] @ {wheel.as_uri()}"],
        )
    run([str(python.parent / "paimon-features"), "--version"])
    text = run(
        [str(tool), "-m", "cyclonedx_py", "environment", "--spec-version", "1.6",
         "--output-reproducible", "--output-format", "JSON", "--pyproject", "pyproject.toml",
         "--mc-type", "application", str(python)]
    )  # fmt: skip
    document: dict[str, Any] = json.loads(text)
    # where the wheel lay while it was installed is nobody's matter
    components = [c for c in document["components"] if c["name"] != "paimon-features"]
    document["components"] = components + (jars() if host == "jobs" else [])
    return document


def jars() -> list[dict[str, Any]]:
    """Flink's jars as components: coordinate and SHA-256 as in jars.lock.toml."""
    found = []
    for jar in locked_jars(DEFAULT_GROUPS):
        group, artifact, version = jar.coordinate.split(":")
        url = f"pkg:maven/{group}/{artifact}@{version}?type=jar"
        found.append(
            {
                "type": "library",
                "bom-ref": url,
                "group": group,
                "name": artifact,
                "version": version,
                "purl": url,
                "hashes": [{"alg": "SHA-256", "content": jar.sha256}],
            }
        )
    return found


def licence_table(documents: dict[str, dict[str, Any]]) -> str:
    """A table of all components: name, version, licence, and the hosts that have it."""
    rows: dict[tuple[str, str], tuple[str, list[str]]] = {}
    for host, document in documents.items():
        for component in document["components"]:
            key = component["name"], component["version"]
            rows.setdefault(key, (licence(component), []))[1].append(host)
    lines = [f"| {name} | {version} | {text} | {', '.join(hosts)} |"
             for (name, version), (text, hosts) in sorted(rows.items())]  # fmt: skip
    head = ["# Licences of what each kind of host installs", "",
            "| package | version | licence | hosts |", "|---|---|---|---|"]  # fmt: skip
    return "\n".join([*head, *lines, ""])


def licence(component: dict[str, Any]) -> str:
    """The licence that a component declares: an expression, or its names."""
    if component.get("purl", "").startswith("pkg:maven/"):
        return "see its POM"
    found = []
    for entry in component.get("licenses", []):
        named = entry.get("license", {})
        text = entry.get("expression") or named.get("id") or named.get("name") or ""
        # a classifier's last part says it; and a declared "licence" can be the whole text of one
        text = re.sub(r"\s+", " ", text.split(" :: ")[-1]).replace("|", "/")
        if text and text not in found:
            found.append(text if len(text) <= 80 else text[:77] + "...")
    return "; ".join(found) or "not declared"


def digest(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    sys.exit(main())
