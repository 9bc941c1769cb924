"""``paimon-features ui``: the pages of the web UI over a project's lake, without a server.

::

    browser ── page_server ── project_pages ── view_copies     values, explained as served
                    │               └── status, lineage, monitoring, models, training sets
                    └── serving.ui: the page, the same as the feature server's
"""
