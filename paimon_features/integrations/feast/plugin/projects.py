"""The project of a Feast repository's stores, opened once per process."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from paimon_features.project import Project


def project_of(config: Any, store: Any) -> Project:
    """Return the project that ``project_path`` of a store's configuration names.

    A relative path counts from the folder of ``feature_store.yaml``.

    Raises
    ------
    ConfigurationError
        If there is no project.
    """
    base = Path() if config.repo_path is None else Path(config.repo_path)
    return _opened(str((base / store.project_path).resolve()))


@functools.lru_cache(maxsize=32)
def _opened(path: str) -> Project:
    return Project.open(path)
