"""Framework adapters: each module is the only one that imports its framework."""
