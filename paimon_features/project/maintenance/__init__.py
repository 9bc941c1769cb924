"""Maintenance of a project's tables by Paimon's procedures."""
