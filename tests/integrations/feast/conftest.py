"""Programs of the environment with Feast, which no test process here can import."""

collect_ignore = ["feast_checks.py", "universal_repo.py"]
