"""Outcomes of predictions, and the comparison of model versions by them.

::

    server ── prediction_log ──> predictions_<model> ──┐
    events, tables, files ─────> outcomes ─────────────┴── join ──> outcomes_<model> ── compare
"""
