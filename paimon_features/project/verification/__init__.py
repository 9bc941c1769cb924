"""Verification: compare served, stored and computed values with the oracle."""
