"""The error that both sides catch; imported only where scikit-learn is imported already."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from paimon_features.core.errors import NotFittedError

if TYPE_CHECKING:
    _Theirs = Exception
else:
    _Theirs = import_module("sklearn.exceptions").NotFittedError


class SklearnNotFittedError(NotFittedError, _Theirs):
    """A transformer that is not fitted, for code that catches scikit-learn's NotFittedError."""
