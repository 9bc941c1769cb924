"""What a server serves at present: definitions, models, and their health."""
