"""The feature server: online features over HTTP, Feast's JSON and two compact formats.

::

    supervisor ── one listening socket, starts workers, forwards signals
      └─ worker ── server, one event loop; protocol: HTTP over one connection
           └─ app ── routes, errors, one log line and a few counts per request
                ├─ feature_reads, predictions ── the request path: entity_requests
                │    ├─ request_body     bytes of a request -> requested features and entities
                │    ├─ definition_set   names -> selections; the reader of one set of definitions
                │    └─ rendered_reply   response -> bytes in the requested format
                └─ admin_pages ── health, metrics, catalogue, openapi, docs_page, explorer

A worker needs the definitions file and the online store: no lake, no Flink.
"""
