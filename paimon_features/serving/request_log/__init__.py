"""The request log: a sample of served replies, spooled on the server, committed to the lake."""
