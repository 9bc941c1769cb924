"""A project: its configuration, definitions, lake and stores, behind one object.

The names are imported when they are first used: the installation can be checked, and manifests
can be rendered, where the packages of the lake are not installed.
"""

from paimon_features.core._lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
