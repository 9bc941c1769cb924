"""Reference implementations: plain loops over raw values that a reader can check by eye.

Nothing here knows tiles, arrays or engines. Every optimised path of the project is compared with
these functions, in the tests and, on production data, by ``paimon-features verify``.
"""
