"""Training runs: from a training set to a registered model version that can be reproduced.

``config`` is what a run is told, and imports nothing heavy; ``run`` trains, evaluates, registers.
"""
