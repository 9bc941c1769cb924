"""Which snapshots, files and rows of the lake a join needs, and joins larger than memory."""
