"""Features of values in memory: windows, decay, interactions; ``online_features`` exports them."""
