"""The interface of feature computations on the data of one request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class OnlineFeatureComputer(ABC):
    """Computes named features from the data of one request."""

    @abstractmethod
    def compute(self, data: Any) -> dict[str, Any]:
        """Return the features, by name."""
