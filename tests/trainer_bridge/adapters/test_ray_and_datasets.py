"""Ray and Hugging Face ``datasets``, in an environment of their own: Beam pins an older ``dill``.

``make adapters-test`` creates it and names its Python in PAIMON_FEATURES_ADAPTERS_PYTHON.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

PYTHON = os.environ.get("PAIMON_FEATURES_ADAPTERS_PYTHON")
ROOT = Path(__file__).parents[3]


@pytest.mark.skipif(PYTHON is None, reason="PAIMON_FEATURES_ADAPTERS_PYTHON (make adapters-test)")
@pytest.mark.parametrize("name", ["datasets", "trainer", "ray", "ray_train", "ray_example"])
def test_tables_are_read_sharded_and_resumed(name: str, tmp_path: Path) -> None:
    assert PYTHON is not None
    script = Path(__file__).with_name("ray_and_datasets_checks.py")
    # Ray's sockets are below this folder, and a socket's path is short
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [PYTHON, str(script), str(tmp_path), name],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, (done.stdout[-2_000:], done.stderr[-6_000:])
    assert f"{name}: right" in done.stdout
