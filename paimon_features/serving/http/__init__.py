"""The feature server: online features over HTTP, Feast's JSON and two compact formats.

::

    supervisor ── one listening socket, starts workers, passes signals on
      └─ worker ── uvicorn, one event loop
           └─ app ── routes, limits, tokens, errors, one log line and a few counts per request
                ├─ body     bytes of a request -> what is asked for
                ├─ served   names -> selections; the reader of one set of definitions
                └─ health, metrics, catalogue, openapi: what is told about it all

A worker needs the definitions file and the online store: no lake, no Flink.
"""
