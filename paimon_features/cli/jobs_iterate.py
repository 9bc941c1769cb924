"""``jobs iterate``: run a program of iterations, and watch it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paimon_features.cli._options import CLUSTER, JSON, PROJECT, cluster_address
from paimon_features.cli._progress_line import ProgressLine
from paimon_features.core.errors import JobError
from paimon_features.iteration.program_file import load_program
from paimon_features.lake.storage.file_path import FilePath, job_state_folder
from paimon_features.project import Project

if TYPE_CHECKING:
    from paimon_features.iteration.flink.job_settings import Mode

SHOWN_VALUES = 10


@dataclass(frozen=True, slots=True)
class EpochProgress:
    """How far an iteration is."""

    elapsed_s: float
    iterations: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.elapsed_s:6.1f} s  " + "   ".join(self.iterations)


class Watch:
    """Formats the status of a job's iterations as a line."""

    def __init__(self, show: Callable[[EpochProgress], None]) -> None:
        self._show = show
        self._began = time.monotonic()
        self._before: dict[int, tuple[float, int]] = {}
        self._rate: dict[int, float] = {}
        self.status: Sequence[Mapping[str, Any]] = ()

    def __call__(self, status: Sequence[Mapping[str, Any]]) -> None:
        self.status = status
        texts = tuple(self._text(number, one) for number, one in enumerate(status))
        self._show(EpochProgress(time.monotonic() - self._began, texts))

    def _text(self, number: int, status: Mapping[str, Any]) -> str:
        epoch = status.get("epoch")
        if epoch is None:
            return str(status.get("state", "starting"))
        at = float(status.get("at", 0.0))
        before_s, before = self._before.get(number, (at, epoch))
        if at > before_s:
            self._rate[number] = max(0.0, (epoch - before) / (at - before_s))
        self._before[number] = at, epoch
        parts = [f"epoch {epoch:,}"]
        if status.get("loss") is not None:
            parts.append(f"loss {status['loss']:.6g}")
        if number in self._rate:
            parts.append(f"{self._rate[number]:,.1f} epochs/s")
        if status.get("records") is not None:
            parts.append(f"{status['records']:,} records")
        return "  ".join([*parts, str(status.get("state", ""))])


@click.command()
@click.argument("program")
@click.option("--watch", is_flag=True, help="Show epoch, loss and rate while it runs.")
@CLUSTER
@click.option(
    "--parallelism",
    type=click.IntRange(min=1),
    help="The value of job.parallelism; default: the project's.",
)
@click.option(
    "--mode",
    type=click.Choice(["auto", "thread", "process"]),
    default="auto",
    show_default=True,
    help="Python inside Flink's processes, or in separate ones.",
)
@click.option(
    "--wire",
    metavar="URL",
    help="Transport of the feedback: 'memory' (one process) or redis://...; default: [flink] wire "
    "of the project, or memory without a cluster.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the outputs; default: in the project's state folder.",
)
@click.option("--resume", metavar="PATH", help="Resume from this savepoint or checkpoint.")
@click.option("--detach", is_flag=True, help="On a cluster: return once it is running.")
@PROJECT
@JSON
def iterate(
    program: str,
    watch: bool,
    cluster: str | None,
    parallelism: int | None,
    mode: Mode,
    wire: str | None,
    output: Path | None,
    resume: str | None,
    detach: bool,
    path: str,
    as_json: bool,
) -> None:
    """Run PROGRAM, a function of iterations, on Flink.

    PROGRAM is module:function or file.py:function; the function (default: 'build')
    takes the job and returns streams. Each output is written to files, exactly once. See
    docs/how-to/iteration/index.md.

    \b
    paimon-features jobs iterate train.py --watch
    paimon-features jobs iterate my.programs:train --cluster --wire memory --mode thread
    paimon-features jobs iterate train.py --cluster --detach --wire redis://10.0.0.5:6379/3

    Flink recovers from failures from the last checkpoint. Ctrl-C cancels the job and prints how
    to resume it; so does a job that fails for good.
    """
    config = Project.open(path).config
    address = cluster_address(config.state_dir, cluster)
    if detach and (address is None or watch):
        raise click.UsageError("--detach requires --cluster and excludes --watch")
    build = load_program(program)
    name = program.rpartition("/")[2].replace(":", ".").replace(".py", "")
    folder = (output or config.state_dir / "iterations" / f"{name}-{int(time.time())}").absolute()
    from paimon_features.iteration.flink import FileOutput, IterationJob, IterationSettings
    from paimon_features.iteration.flink.job_settings import choose_wire

    job = IterationJob(
        name=name,
        settings=IterationSettings(
            mode=mode,
            wire=choose_wire(wire, config.flink, address),
            checkpoint_interval_ms=config.flink.checkpoint_interval_ms,
        ),
        cluster=address,
        state_dir=config.state_dir,
        job_state=job_state_folder(config.state_dir, config.flink),
        resume=resume,
        parallelism=parallelism or config.flink.parallelism,
    )
    files: dict[str, FileOutput] = {}

    def sink(output_name: str) -> FileOutput:
        files[output_name] = FileOutput(folder / output_name)
        return files[output_name]

    began = time.monotonic()
    running = job.execute_async(build, sink, detached=detach)
    if detach:
        _print_values(as_json, {"job": running.job_id, "output": str(folder)})
        return
    with ProgressLine(silent=not watch) as line:
        seen = Watch(line)
        try:
            running.wait(seen)
        except KeyboardInterrupt as interrupt:
            click.echo(f"\ncancelled{_how_to_resume(running.checkpoint(), folder)}", err=True)
            raise click.Abort from interrupt
        except JobError as error:
            error.add_note(f"failed{_how_to_resume(running.checkpoint(), folder)}")
            raise
    epochs = [status.get("epoch") for status in seen.status]
    seconds = time.monotonic() - began
    outputs = {name: len(one.read()) for name, one in files.items()}
    if as_json:
        _print_values(
            as_json,
            {"epochs": epochs, "seconds": seconds, "outputs": outputs, "output": str(folder)},
        )
        return
    click.echo(f"ended after epoch {', '.join(map(str, epochs)) or '-'}, {seconds:.1f} s")
    for name, one in files.items():
        click.echo(f"{name}: {outputs[name]:,} values in {one.folder}")
        for value in one.read()[:SHOWN_VALUES]:
            click.echo(f"  {value!r}")


def _how_to_resume(checkpoint: FilePath | None, folder: Path) -> str:
    if checkpoint is None:
        return " before its first checkpoint: nothing is committed; run it again from the start"
    return (
        "; to resume from its last checkpoint, run the same command with "
        f"--resume {checkpoint} --output {folder}"
    )


def _print_values(as_json: bool, values: Mapping[str, Any]) -> None:
    if as_json:
        click.echo(json.dumps(values, indent=2))
    else:
        click.echo("  ".join(f"{name} {value}" for name, value in values.items()))
