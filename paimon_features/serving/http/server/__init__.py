"""The processes and connections of a server, and the reload of what it serves."""
