"""Test support: contracts, generators of random cases, and local servers. Needs the extra ``dev``.

The reference implementations and comparisons are in ``paimon_features.testing.reference``.
"""
