"""``check``: the state of the installation, the warehouse and who changes it."""

from __future__ import annotations

import click

from paimon_features.cli._options import JSON, PROJECT

TOPICS: dict[str, set[str]] = {
    "warehouse": {"since", "sample"},
    "installation": set(),
    "records": {"accept_loss"},
    "leases": set(),
    "audit": {"since", "kinds"},
}
"""What can be checked, with the options of each topic."""
_NAMED = ("warehouse", "audit")
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
@PROJECT
@JSON
@click.pass_context
def check(
    context: click.Context,
    names: tuple[str, ...],
    since: str | None,
    sample: float,
    kinds: tuple[str, ...],
    accept_loss: bool,
    path: str,
    as_json: bool,
) -> None:
    """Check a TOPIC: warehouse (the default), installation, records, leases or audit.

    \b
    warehouse     read NAMES (tables; default: all) and report every damaged file
    installation  check what this machine and the project need: OK, MISSING, or - if not needed
    records       show lost records of the warehouse; accept their loss
    leases        show which process or job owns each table, and whether it is alive
    audit         show who changed NAMES (views, models, tokens; default: all), when and how

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

    Exit code 1 if anything is damaged, missing or lost.
    """
    topic = names[0] if names and names[0] in TOPICS else "warehouse"
    chosen = names[names[:1] == (topic,) :]
    _refuse_others(context, topic, chosen)
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
    else:
        from paimon_features.cli.checks.check_warehouse import check_warehouse

        check_warehouse(chosen, since, sample, path, as_json)


def _refuse_others(context: click.Context, topic: str, names: tuple[str, ...]) -> None:
    """Raise UsageError for names or options of another topic."""
    if names and topic not in _NAMED:
        raise click.UsageError(f"'check {topic}' takes no names: {', '.join(names)}")
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if source == click.core.ParameterSource.COMMANDLINE and name not in {
            "names",
            *TOPICS[topic],
        }:
            raise click.UsageError(f"{parameter.opts[0]} is no option of 'check {topic}'")
