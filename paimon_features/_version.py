"""The version of the distribution; the one in ``pyproject.toml`` is checked against it."""

__version__ = "0.1.0"
