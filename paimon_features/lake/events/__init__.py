"""Rules for rows of events tables: which are rejected, and which are duplicates."""
