"""A network's first run, in a process of its own that can be ended.

A network is a program: it may loop without an end, or take more memory than there is, while it is
loaded or when it runs. A thread cannot be ended, so each version is loaded and run once in another
process, with a deadline, before a server loads it.

``python -m paimon_features.serving.prediction.network_trial`` is that process: it reads the
manifest and the network from stdin, and writes why the version cannot be served, or nothing.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from paimon_features.core.errors import ModelError, PaimonFeaturesError, shortened
from paimon_features.models import ModelManifest
from paimon_features.online.store.published_models import ServedModel

_SIZE = 8
"""Bytes of the length in front of the manifest."""
_MOST_TEXT = 1_000


def try_network(model: ServedModel, timeout_s: float) -> None:
    """Load a network and run it once, in a process that ends after ``timeout_s`` at the latest.

    Raises
    ------
    ModelError
        If it does not load, does not run, does not end in time, or ends the process.
    """
    manifest = model.manifest.to_bytes()
    data = len(manifest).to_bytes(_SIZE) + manifest + model.network
    command = [sys.executable, "-m", __name__, str(math.ceil(timeout_s) + 1)]
    title = f"model {model.manifest}: its network"
    try:
        ended = subprocess.run(command, input=data, capture_output=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise ModelError(
            f"{title} did not load and run one row within {timeout_s:g} s ([serve] "
            "predict_load_timeout); does it loop without an end?"
        ) from None
    except OSError as error:
        raise ModelError(f"{title} cannot be tried in a process of its own: {error}") from error
    if problem := ended.stdout.decode("utf-8", "replace"):
        raise ModelError(problem)
    if ended.returncode:
        reason = ended.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise ModelError(
            f"{title} ended the process in which it was tried, with code {ended.returncode}: "
            f"{shortened(reason, _MOST_TEXT) or 'it may need more memory than there is'}"
        )


def main() -> None:
    """Try the network that stdin has; what is wrong with it goes to stdout."""
    if hasattr(signal, "alarm"):  # ends this process also where its parent is gone
        signal.alarm(int(sys.argv[1]))
    with suppress(OSError):  # if memory runs out, this process is to end, and no server
        Path("/proc/self/oom_score_adj").write_text("1000")
    data = sys.stdin.buffer.read()
    # only the verdict is written to stdout, whatever libraries print
    verdict = os.dup(1)
    os.dup2(2, 1)
    size = int.from_bytes(data[:_SIZE])
    manifest = ModelManifest.from_bytes(data[_SIZE : _SIZE + size])
    from paimon_features.serving.prediction.network import OnnxNetwork

    try:
        OnnxNetwork(ServedModel(manifest, data[_SIZE + size :]))
    except (PaimonFeaturesError, MemoryError) as error:
        os.write(verdict, (str(error) or "there is not enough memory").encode())


if __name__ == "__main__":
    main()
