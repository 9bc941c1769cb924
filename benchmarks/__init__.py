"""Figures of docs/internals/performance.md: each module prints its own, as ratios within a run."""
