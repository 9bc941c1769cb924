"""Predictions of model versions: their networks, their inputs, and batches across requests."""
