"""What computes features of the data of one request."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class OnlineFeatureComputer(ABC):
    """Something that makes named features of the data of one request."""

    @abstractmethod
    def compute(self, data: Any) -> dict[str, Any]:
        """The features, by name."""
