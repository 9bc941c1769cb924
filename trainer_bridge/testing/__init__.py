"""The contract class of samplers and small tables, for people who extend the bridge."""
