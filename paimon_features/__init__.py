"""Features from the lake: one definition, the same values online and in training sets.

>>> import paimon_features as pf
>>> customer = pf.Entity("customer", keys={"customer_id": pf.Int64})

The public names (``__init__.pyi`` lists them) are imported when they are first used, so that
importing the package is quick and a serving host never loads what only a training host needs.
"""

from paimon_features._version import __version__ as __version__
from paimon_features.core._lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
