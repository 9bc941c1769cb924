"""Training runs: from a training set to a registered model version that can be reproduced.

``config`` contains the settings of a run, and imports nothing heavy; ``run`` trains, evaluates,
registers.
"""
