"""Figures of docs/performance.md: each module prints its own, as ratios within one run."""
