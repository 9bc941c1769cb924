"""The code, libraries and machine of a training run: what its result depends on besides data."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import torch

from paimon_features import __version__

_LIBRARIES = ("lightning", "numpy", "onnx", "onnxscript", "pyarrow", "scikit-learn", "torch")


def code_versions() -> dict[str, str]:
    """Return the version of this package; of a checkout its commit, and a digest of changes."""
    versions = {"paimon_features": __version__}
    folder = Path(__file__).parents[2]
    if (folder / ".git").exists():
        for name, arguments in (
            ("commit", ("rev-parse", "HEAD")),
            ("changes", ("status", "--porcelain", "--", "paimon_features", "trainer_bridge")),
        ):
            done = subprocess.run(
                ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False
            )
            text = done.stdout.strip()
            if done.returncode == 0 and text:
                digest = hashlib.sha256(text.encode()).hexdigest()[:12]
                versions[name] = text if name == "commit" else digest
    return versions


def library_versions() -> dict[str, str]:
    """Return the versions of the installed libraries that a training run uses."""
    versions = {}
    for name in _LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def machine() -> dict[str, str]:
    """Return what the last bits of a sum can depend on."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {
        "python": platform.python_version(),
        "processor": platform.machine(),
        "vector": torch.backends.cpu.get_cpu_capability(),
        "device": device,
        "threads": str(torch.get_num_threads()),
    }
