"""``inspect-loader``: how fast a table loads into a trainer, what bounds it, what to change."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import click

from paimon_features.cli._options import JSON, PROJECT
from paimon_features.cli._shared_options import grouped
from paimon_features.cli._values import size_text
from paimon_features.core.errors import ConfigurationError, UnknownNameError
from paimon_features.lake.catalog import Lake
from paimon_features.project import Project
from trainer_bridge.inspection import Inspection, inspect


class Threads(click.ParamType):
    """A number from 0 on, or ``auto``."""

    name = "integer or auto"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | Literal["auto"]:
        if value == "auto":
            return "auto"
        number: int = click.IntRange(0).convert(value, param, ctx)
        return number


@dataclass(frozen=True, slots=True)
class ReaderOptions:
    """Options of the reader."""

    columns: str | None
    snapshot: str | None
    batch_size: int
    world_size: int
    where: str | None
    threads: int | Literal["auto"]
    memory_mb: int
    in_order: bool


@click.command()
@click.argument("table")
@click.option("--columns", help="Comma-separated columns to read; all by default.")
@click.option("--snapshot", help="Number or number@commit; the newest by default.")
@click.option(
    "--batch-size", type=click.IntRange(1), default=4096, show_default=True,
    help="Rows of a batch, per rank.",
)  # fmt: skip
@click.option(
    "--world-size", type=click.IntRange(1), default=1, show_default=True,
    help="Number of training ranks; the share of rank 0 is measured.",
)  # fmt: skip
@click.option(
    "--where",
    help="Read only rows that satisfy this condition, such as \"country = 'France'\".",
)
@click.option(
    "--threads", type=Threads(), default=2, show_default=True,
    help="Decoding threads; auto: tuned while reading.",
)  # fmt: skip
@click.option(
    "--memory-mb",
    type=click.IntRange(1),
    default=1024,
    show_default=True,
    help="Memory budget of the reader in MiB.",
)
@click.option("--in-order", is_flag=True, help="Do not shuffle.")
@click.option(
    "--seconds", type=click.FloatRange(0.1), default=4.0, show_default=True,
    help="Approximate duration of the measurement.",
)  # fmt: skip
@click.option("--warehouse", help="Warehouse; default: the project's.")
@click.option("--database", default="features", show_default=True, help="Its database.")
@grouped(ReaderOptions, "reader")
@PROJECT
@JSON
def inspect_loader(
    table: str,
    reader: ReaderOptions,
    seconds: float,
    warehouse: str | None,
    database: str,
    path: str,
    as_json: bool,
) -> None:
    """Show how SnapshotReader would load TABLE, and how fast.

    Plan: the files and row groups of the snapshot, which columns are read from them, the blocks
    that are decoded at once, and the streams that the order interleaves.

    Stages, each measured alone on one thread: "read files" decompresses Parquet to Arrow,
    "decode" converts it to one matrix per dtype, "order" computes the row order, "gather" moves
    rows into batches, "to tensors" converts batches to torch tensors. The first two run in
    parallel decoding threads, the next two in one prefetching thread. The slowest stage bounds the
    pipeline; a training loop slower than the pipeline never waits.

    \b
      paimon-features inspect-loader training_churn
      paimon-features inspect-loader training_churn --columns spent,bought --world-size 8
      paimon-features inspect-loader events --where "day >= '2026-01-01'" --threads auto
      paimon-features inspect-loader events --warehouse s3://bucket/lake --threads 16 --json
    """
    if warehouse is None:
        lake = Project.open(path).lake
    else:
        lake = _opened(warehouse, database)
    columns = None
    if reader.columns is not None:
        columns = [name.strip() for name in reader.columns.split(",")]
    result = inspect(
        lake,
        table,
        seconds=seconds,
        threads=reader.threads,
        snapshot_id=reader.snapshot,
        columns=columns,
        batch_size=reader.batch_size,
        world_size=reader.world_size,
        where=reader.where,
        shuffle=not reader.in_order,
        byte_budget=reader.memory_mb << 20,
    )
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=2))
    else:
        click.echo("\n".join(_lines(result)))


def _opened(warehouse: str, database: str) -> Lake:
    """Open an existing warehouse: a missing one would be created, even for a mistyped path."""
    parts = urlsplit(warehouse)
    if parts.scheme in ("", "file"):
        folder = Path(unquote(parts.path) if parts.scheme else warehouse).expanduser()
        if not folder.is_dir():
            raise ConfigurationError(f"--warehouse {warehouse}: folder not found")
        databases = [path.stem for path in folder.glob("*.db")]
        if database not in databases:
            raise UnknownNameError.of(
                f"database of warehouse {warehouse!r} (--database)", database, databases
            )
    return Lake.open(warehouse, database)


def _lines(found: Inspection) -> Iterator[str]:
    plan, files = found.plan, found.files
    yield f"table {plan['table']}, snapshot {plan['snapshot_id']}: {plan['rows']:,} rows"
    yield ""
    yield "plan"
    yield f"  files        {files.files:,} of {size_text(files.bytes)} in all"
    looked = "" if files.footers == files.files else f" in the first {files.footers} files"
    yield f"  row groups   {files.row_groups:,} of {files.row_group_rows:,} rows (median){looked}"
    yield (
        f"  columns      {files.columns_read} of {files.columns}: {files.share:.0%} of the bytes, "
        "the rest is not read"
    )
    if plan["not_read"]:
        yield "  left out     " + ", ".join(
            f"{count:,} {thing.replace('_', ' ')}" for thing, count in plan["not_read"].items()
        )
    yield f"  blocks       {plan['blocks']:,}, each decoded completely"
    uses = "read once" if plan["reads_each_block_once"] else f"by {plan['ranks_per_block']:g} ranks"
    yield f"  streams      {plan['streams']:,}; each block {uses}"
    yield f"  batches      {plan['batches']:,} of {plan['global_batch_size']:,} rows, all ranks"
    yield f"  output       {_OUTPUTS[found.output]}"
    yield ""
    yield f"  {'stage':12} {'rows/s, a thread':>17} {'threads':>8} {'rows/s':>13}"
    for stage in found.stages:
        yield (
            f"  {stage.name:12} {stage.rows_per_s:17,.0f} {stage.threads:8} {stage.capacity:13,.0f}"
        )
    yield f"  {'all together':12} {'':17} {'':8} {found.rows_per_s:13,.0f}"
    yield ""
    yield f"bound by {found.bound}; peak memory {size_text(found.peak_bytes)}"
    if found.advice:
        yield "advice"
        yield from (f"  - {line}" for line in found.advice)
    else:
        yield "nothing to advise"


_OUTPUTS: dict[str, Any] = {
    "numpy": "one matrix per dtype",
    "arrow": "Arrow batches: some columns have no tensor form, or nulls without a fill value",
}
