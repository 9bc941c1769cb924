"""Supersteps: an iteration as one bounded run per epoch, its variables in a Paimon table."""
