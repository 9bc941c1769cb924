"""The text of a program of iterations: 64 is halved until it is at most 0.1."""

PROGRAM = """
from paimon_features.iteration import *


class Halve(IterationListener):
    def open(self, ctx):
        self.values = ctx.state.map("values")

    def process_element(self, value, ctx, out):
        self.values.put(ctx.epoch, value)

    def on_epoch_watermark_incremented(self, epoch, ctx, out):
        value = self.values.get(epoch) / 2
        self.values.remove(epoch)
        out.collect(value)
        out.side("loss", value)

    def on_iteration_terminated(self, ctx, out):
        out.side("model", [value for _, value in self.values.items()])


def build(job):
    def body(variables, data):
        halved = variables.get(0).process(Halve())
        criteria = halved.get_side_output("loss").flat_map(terminate_on_max_iter_or_tol(100, 0.1))
        outputs = DataStreamList.of(halved.get_side_output("model"))
        return IterationBodyResult(DataStreamList.of(halved), outputs, criteria)

    start = DataStreamList.of(job.from_collection([64.0]))
    data = ReplayableDataStreamList.not_replay()
    config = IterationConfig(wire="memory")
    return {"model": iterate_bounded_streams_until_termination(start, data, config, body).get(0)}
"""
