"""What columns look like over time: statistics from tiles and events, their drift, and fits.

Everything here reads the lake at pinned snapshots; nothing writes to it but versions of fitted
transformers.
"""

from paimon_features.monitoring.drift import ks, ks_p_value, psi
from paimon_features.monitoring.time_ranges import TimeRange

__all__ = ["TimeRange", "ks", "ks_p_value", "psi"]
