"""Events to tiles: target tables of a generation, the jobs that fill them, both engines."""
