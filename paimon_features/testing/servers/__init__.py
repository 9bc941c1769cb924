"""Local servers for the demo, tests and first steps: Redis, object stores."""
