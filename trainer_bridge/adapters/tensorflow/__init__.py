"""Snapshot readers in TensorFlow: ``tf.data`` by whole blocks, Keras, ``tf.distribute``.

``trainer_bridge.tensorflow`` has the public names, each imported when it is first used.
"""

from __future__ import annotations

import importlib.util

from paimon_features.core.errors import MissingExtraError

if importlib.util.find_spec("tensorflow") is None:
    raise MissingExtraError.of("tensorflow", "tensorflow", "trainer_bridge.adapters.tensorflow")
