"""``check``: the state of the installation, the warehouse, the online store, and changes."""

from __future__ import annotations

import click

from paimon_features.cli._options import JSON, PROJECT, check_options
from paimon_features.cli._shared_options import grouped
from paimon_features.cli.checks import SizingOptions

TOPICS: dict[str, set[str]] = {
    "warehouse": {"since", "sample"},
    "installation": set(),
    "records": {"accept_loss"},
    "leases": set(),
    "audit": {"since", "kinds"},
    "sizing": {"events_per_day", "measure", "entities", "node_memory", "headroom"},
}
"""What can be checked, with the options of each topic."""
_NAMED = ("warehouse", "audit", "sizing")
"""The topics that take names."""
_KINDS = ("apply", "switch", "drop", "forget", "model", "take_over", "token_use")


@click.command()
@click.argument("names", nargs=-1, metavar="[TOPIC] [NAMES]...")
@click.option(
    "--since",
    help="warehouse: only data files committed since a time, or within a duration such as 2h; "
    "audit: only changes since then.",
)
@click.option(
    "--sample",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    help="warehouse: fraction of data files to read, chosen at random; default: all.",
)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(_KINDS),
    help="audit: only changes of this kind; repeatable.",
)
@click.option(
    "--accept-loss",
    is_flag=True,
    help="records: continue without the lost records of commits, leases, removals and scores.",
)
@click.option(
    "--events-per-day",
    type=click.FloatRange(min=0, min_open=True),
    help="sizing: average events per entity and day; determines how many tiles it fills.",
)
@click.option(
    "--measure",
    is_flag=False,
    flag_value=1_000,
    type=click.IntRange(1),
    metavar="[RECORDS]",
    help="sizing: measure records in the online store instead, by default 1000 of each view.",
)
@click.option(
    "--entities", default="1e6,1e7,1e8,1e9", show_default=True, help="sizing: numbers of entities."
)
@click.option(
    "--node-memory", type=click.FloatRange(min=0, min_open=True), default=64.0, show_default=True,
    help="sizing: memory of one server, GiB.",
)  # fmt: skip
@click.option(
    "--headroom", type=click.FloatRange(0, 1, max_open=True), default=0.25, show_default=True,
    help="sizing: share to keep free, for fragmentation, replication, clients.",
)  # fmt: skip
@grouped(SizingOptions, "sizing")
@PROJECT
@JSON
def check(
    names: tuple[str, ...],
    since: str | None,
    sample: float,
    kinds: tuple[str, ...],
    accept_loss: bool,
    sizing: SizingOptions,
    path: str,
    as_json: bool,
) -> None:
    """Check a TOPIC, by default the warehouse.

    \b
    warehouse     read NAMES (tables; default: all) and report every damaged file
    installation  check what this machine and the project need: OK, MISSING, or - if not needed
    records       show lost records of the warehouse; accept their loss
    leases        show which process or job owns each table, and whether it is alive
    audit         show who changed NAMES (views, models, tokens; default: all), when and how
    sizing        estimate the online store's memory for NAMES (feature views; default: all)

    \b
    paimon-features check installation
    paimon-features check                        # the complete warehouse
    paimon-features check events_retail tiles_customer_spend_g1
    paimon-features check --since 1d             # what was committed since yesterday
    paimon-features check --sample 0.05          # a different 5 % of the data files every night
    paimon-features check records --accept-loss  # only if no process or job writes a table
    paimon-features check leases
    paimon-features check audit --since 7d --kind apply --kind switch
    paimon-features check audit "churn scorer" --kind token_use
    paimon-features check sizing                        # upper bound: an event in every tile
    paimon-features check sizing --events-per-day 2.5   # events at random times
    paimon-features check sizing --measure              # most accurate: existing records

    warehouse: reads all snapshots and tags: schemas, manifests, and each data file's size, footer,
    pages (CRC32), rows, order and range of keys; and the records next to the tables. Names the
    damaged files, the snapshots, tags and training sets that contain them, and what to do. Changes
    nothing, and may run while jobs write.

    installation: verifies the sha256 of every jar. Inside a project, its online store and warehouse
    are checked as well; --project need not be a project.

    records: tables depend on the records in the folder _paimon_features: which files were ingested,
    who owns a table, which generation is active. Commands that need a lost record fail with an
    error that says what to do.

    leases: a table has one committing owner at a time; tables that nobody owns are not listed. An
    owner in another container or on another machine is watched for up to 10 s: if no heartbeat
    arrives, the next command that writes the table takes it over, after 30 s without one.

    audit: of every 'apply', 'drop', 'forget' and promotion there is a record in the warehouse, also
    of those that failed. The use of tokens is in the folder of [serve] audit: a line per token and
    minute. Set PAIMON_FEATURES_IDENTITY where the user of the system says too little. A * after
    the commit: the definitions file was not as committed.

    sizing: a record has a header of 56 bytes and a cell for each tile, hour or day in which its
    entity has events. The peak occurs while a view is rebuilt next to its old records. Use this
    number of nodes for Redis Cluster (docs/how-to/serving/online-store.md); replicas are extra.

    Exit code 1 if anything is damaged, missing or lost.
    """
    topic = names[0] if names and names[0] in TOPICS else "warehouse"
    chosen = names[names[:1] == (topic,) :]
    if chosen and topic not in _NAMED:
        raise click.UsageError(f"'check {topic}' takes no names: {', '.join(chosen)}")
    check_options({"names", *TOPICS[topic]}, f"'check {topic}'")
    if topic == "installation":
        from paimon_features.cli.checks.check_installation import check_installation

        check_installation(path, as_json)
    elif topic == "records":
        from paimon_features.cli.checks.check_records import check_records

        check_records(accept_loss, path, as_json)
    elif topic == "leases":
        from paimon_features.cli.checks.check_leases import check_leases

        check_leases(path, as_json)
    elif topic == "audit":
        from paimon_features.cli.checks.check_audit import check_audit

        check_audit(chosen, since, kinds, path, as_json)
    elif topic == "sizing":
        from paimon_features.cli.checks.check_sizing import check_sizing

        check_sizing(chosen, sizing, path, as_json)
    else:
        from paimon_features.cli.checks.check_warehouse import check_warehouse

        check_warehouse(chosen, since, sample, path, as_json)
