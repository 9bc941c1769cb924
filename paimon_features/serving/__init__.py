"""Answering requests from the online store."""
