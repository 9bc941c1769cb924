"""Bounded inputs in the forms that people have: read, converted for ``ingest``, and described."""
