"""Point-in-time joins of Arrow tables in memory; they know no table and no engine.

``point_in_time`` joins rows with tiles and with the raw events at window edges,
``newest_version`` with the versions of a slowly changing table.
"""
