"""Outputs of a program: files or any Flink sink, committed with checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from paimon_features.core.configuration.arguments import check_arguments, shown
from paimon_features.core.errors import DefinitionError
from paimon_features.iteration.flink.hosts import result_values

if TYPE_CHECKING:
    from pyflink.datastream import DataStream


class IterationOutput(Protocol):
    """Writes one output stream of a program."""

    def attach(self, lines: DataStream, parallelism: int, uid: str) -> None:
        """Add a sink for lines that ``result_values`` decodes.

        ``uid`` identifies its state in savepoints.
        """
        ...


@dataclass(frozen=True, slots=True)
class FileOutput:
    """Values in files of a folder, exactly-once: a file is visible when its checkpoint completes.

    ``read`` returns the committed values, those of a subtask in the order in which it wrote them;
    the order between subtasks is undefined.
    """

    folder: Path

    def __post_init__(self) -> None:
        check_arguments("output", self)

    def attach(self, lines: DataStream, parallelism: int, uid: str) -> None:
        from pyflink.common.serialization import Encoder
        from pyflink.datastream.connectors.file_system import (
            FileSink,
            OutputFileConfig,
            RollingPolicy,
        )

        sink = (
            FileSink.for_row_format(str(self.folder), Encoder.simple_string_encoder())
            .with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy())
            .with_output_file_config(OutputFileConfig.builder().build())
            .build()
        )
        file_sink = lines.sink_to(sink).name(f"files {self.folder.name}").uid(uid)
        file_sink.set_parallelism(parallelism)

    def read(self) -> list[Any]:
        """Return all committed values."""
        return [value for path in self._committed() for value in _values(path)]

    def _committed(self) -> list[Path]:
        # names with a leading dot are in progress, pending, or left over from a failed attempt
        if not self.folder.is_dir():
            return []
        files = (
            path
            for path in self.folder.rglob("*")
            if path.is_file() and not path.name.startswith(".")
        )
        return sorted(files, key=_in_order)


@dataclass(frozen=True, slots=True)
class SinkOutput:
    """Any Flink sink: ``attach_sink(stream of Python values)`` adds it."""

    attach_sink: Callable[[DataStream], Any]

    def __post_init__(self) -> None:
        if not callable(self.attach_sink):
            raise DefinitionError(
                f"sinks: got {shown(self.attach_sink)}; expected an output such as FileOutput, or "
                "a function that adds a Flink sink to a stream"
            )

    def attach(self, lines: DataStream, parallelism: int, uid: str) -> None:
        values = lines.flat_map(result_values).name("values").uid(f"{uid}-values")
        values.set_parallelism(parallelism)
        self.attach_sink(values)


def _in_order(path: Path) -> tuple[str, str, int]:
    """Return the folder (an hour), the writer, and the number of a file: the tenth is after the
    second.

    >>> names = ["02/part-5a6f-10", "02/part-5a6f-2", "01/part-5a6f-11"]
    >>> [str(path) for path in sorted(map(Path, names), key=_in_order)]
    ['01/part-5a6f-11', '02/part-5a6f-2', '02/part-5a6f-10']
    """
    writer, _, number = path.name.rpartition("-")
    return str(path.parent), writer, int(number) if number.isdigit() else 0


def _values(path: Path) -> Iterator[Any]:
    with path.open("r", encoding="ascii") as lines:
        for line in lines:
            yield from result_values(line)
