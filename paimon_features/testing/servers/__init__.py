"""A local Redis for the demo, tests and first steps."""
