"""The definitions and models that a server serves, and their health."""
