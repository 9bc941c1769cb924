"""Batches: the forms of columns, ragged lists, vocabularies.

A batch is assembled by a form: ``forms.Form.gather`` copies its rows out of decoded blocks,
``batch`` names its columns; ``numpy_form`` does both for NumPy.
"""
