"""The feature server: online features over HTTP, Feast's JSON and two compact formats.

::

    server/supervisor ── one listening socket, starts workers, forwards signals
      └─ server/worker ── server, one event loop; protocol: HTTP over one connection
           └─ server/app ── routes, errors, one log line and a few counts per request
                ├─ access/       hosts, tokens, quotas, admission: before a body is read
                ├─ endpoints/    feature_reads and predictions by the way of entity_requests;
                │    │           inference_protocols; admin_pages: health, metrics, openapi, ...
                │    ├─ bodies/       bytes of a request -> what is requested; response -> bytes
                │    └─ definitions/  names -> selections; the reader of one set of definitions
                └─ messages, http_errors, limits, logs, metrics ── what all of them use

A worker needs the definitions file and the online store: no lake, no Flink.
"""
