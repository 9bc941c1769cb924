"""Online stores whose deadlines a loaded machine keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paimon_features.online.store import OnlineSettings, OnlineStore, open_store

PATIENT_ONLINE = dict.fromkeys(("connect_timeout", "timeout", "write_timeout"), "60s")
"""Settings of ``[online]``: a test that expects success does not depend on a deadline."""
PATIENT_TOML = "".join(f'{name} = "{time}"\n' for name, time in PATIENT_ONLINE.items())
"""The same as lines of a settings file."""


def make_patient(config: Path) -> None:
    """Give the settings file of a project these deadlines."""
    settings = config.read_text()
    assert "\n[online]\n" in settings
    config.write_text(settings.replace("\n[online]\n", f"\n[online]\n{PATIENT_TOML}"))


def patient_store(url: str, **values: Any) -> OnlineStore:
    """The store at ``url`` with long deadlines; ``values`` are more settings of ``[online]``."""
    return open_store(OnlineSettings.of({"url": url, **PATIENT_ONLINE, **values}, environ={}))
