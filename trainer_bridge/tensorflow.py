"""The public names for TensorFlow and Keras; each is imported when it is first used.

``tensorflow.pyi`` says where each is defined.
"""

from paimon_features.core._lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__, "tensorflow.pyi")
