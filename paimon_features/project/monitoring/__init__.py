"""Column statistics over time, from tiles and events: drift reports and fitted transformers.

Everything here reads the lake at pinned snapshots; only versions of fitted transformers are
written.
"""

from paimon_features.project.monitoring.drift import ks, ks_p_value, psi
from paimon_features.project.monitoring.time_ranges import TimeRange

__all__ = ["TimeRange", "ks", "ks_p_value", "psi"]
