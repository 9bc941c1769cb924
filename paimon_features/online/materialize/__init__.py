"""Materialize tiles into the online store, exactly once: follow, fold, apply, rebuild."""

from paimon_features.online.materialize.follow import Materializer
from paimon_features.online.materialize.materialize_progress import MaterializeProgress

__all__ = ["MaterializeProgress", "Materializer"]
