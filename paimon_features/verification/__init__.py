"""Verification: what is served, stored and computed, compared with the oracle."""
