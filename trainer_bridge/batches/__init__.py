"""Batches: the forms of columns, ragged lists, vocabularies."""
