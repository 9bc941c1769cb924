"""Contract classes and random cases for people who extend the product. Needs the extra ``dev``.

The reference implementations and comparisons are in ``paimon_features.testing.reference``.
"""
