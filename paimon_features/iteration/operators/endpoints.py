"""Runners at the boundaries of a program and of an iteration: sources, outputs, results."""

from __future__ import annotations

from typing import Any

from paimon_features.core.errors import JobError
from paimon_features.iteration.epochs import END
from paimon_features.iteration.operators.node import NodeRunner
from paimon_features.iteration.operators.reporter import ReportingRunner
from paimon_features.iteration.wires import ENDED, Notice


class SourceRunner(NodeRunner):
    """A source of the program: every record has epoch 0 (S1), the only watermark is the end.

    Raises
    ------
    JobError
        For a record after the end.
    """

    def records(
        self, input_index: int, epoch: int, values: list[Any], keys: list[Any] | None
    ) -> None:
        if self.tracker.watermark == END:
            raise JobError(
                f"iteration: source {self.node.name!r} delivered records after its end: it began "
                "again when the job resumed from a checkpoint that contains them. Expected a "
                "source that continues at its position, such as job.from_collection, or a stream "
                "of env.from_source"
            )
        self.outlet.records(0, values)

    def advance(self, before: int, watermark: int) -> None:
        self.outlet.watermark(watermark)


class OutputRunner(ReportingRunner):
    """An output of the iteration: drops epochs; ends after the iteration has ended (S20)."""

    def records(
        self, input_index: int, epoch: int, values: list[Any], keys: list[Any] | None
    ) -> None:
        self.outlet.records(0, values)

    def advance(self, before: int, watermark: int) -> None:
        if watermark == END:
            self.report(self.notice(ENDED))
            self.outlet.watermark(END)

    def open_notices(self) -> list[Notice]:
        return [self.notice(ENDED)] if self.tracker.watermark == END else []


class ResultRunner(NodeRunner):
    """A result of the program: the host emits its records."""

    def records(
        self, input_index: int, epoch: int, values: list[Any], keys: list[Any] | None
    ) -> None:
        self.task.results.append((self.node.index, values))

    def advance(self, before: int, watermark: int) -> None:
        pass
