"""``ingest``: events into the lake, from files, a topic or a change log."""

from __future__ import annotations

import click

from paimon_features.cli import SuggestingGroup
from paimon_features.cli.ingest_changes import changes
from paimon_features.cli.ingest_files import files
from paimon_features.cli.ingest_topic import topic


@click.group(cls=SuggestingGroup)
def ingest() -> None:
    """Ingest events into a source: files (each once, in one commit), a Kafka topic, a change log.

    A row that is not a valid event (unreadable, wrong type, no time ...) is written to
    rejected_SOURCE with the reason; reasons are counted at the end. Columns are matched by name,
    ignoring case and underscores: CustomerID matches customer_id. Times are milliseconds since
    1970, timestamps, or texts of RFC 3339 such as 2010-12-01T08:26:30+01:00; a text without an
    offset, such as 2010-12-01 08:26, is UTC.

    \b
    paimon-features ingest files retail events.parquet
    paimon-features ingest topic clicks shop.clicks --kafka broker:9092
    paimon-features ingest changes orders shop.orders

    Events ahead of the clock by more than max_skew are held in rejected_SOURCE; each run first
    releases those that are due ('paimon-features maintain --only release' does only that).

    An interrupted run has committed nothing, or is completed by the next one. A job of a topic or a
    change log runs until Ctrl-C, or detached with --cluster until --stop, and resumes from its last
    checkpoint when started again.
    """


for _command in (files, topic, changes):
    ingest.add_command(_command)
