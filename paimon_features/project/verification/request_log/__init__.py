"""Verification of the request log: served values are committed to the lake and compared there.

::

    server ── request_log ──> spool files ── commit ──> served_<project> ── check ──> differences

The server's part is in ``serving``, since a server needs no lake.
"""
