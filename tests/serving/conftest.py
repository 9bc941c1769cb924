"""What all tests of serving share."""

from __future__ import annotations

import pytest

from paimon_features.serving.request_log import log_thread
from tests.waiting import LONG_S


@pytest.fixture(autouse=True)
def patient_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a loaded machine a log has as long as it takes to write its last rows."""
    monkeypatch.setattr(log_thread, "CLOSE_S", LONG_S)
