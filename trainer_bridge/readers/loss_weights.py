"""A sampler's loss weights as a column of the batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from trainer_bridge.batches.forms import Batch
from trainer_bridge.readers.epoch_rows import RowSampler

SAMPLE_WEIGHT = "sample_weight"


def with_loss_weights(batch: Batch, sampler: RowSampler) -> Batch:
    """Return the batch with the float32 column ``sample_weight``, if the sampler has loss
    weights."""
    weights = sampler.loss_weights(batch.row_numbers)
    if weights is None:
        return batch
    column = np.asarray(weights, dtype=np.float32)
    if batch.arrow is not None:
        return replace(batch, arrow=batch.arrow.append_column(SAMPLE_WEIGHT, pa.array(column)))
    return replace(batch, columns={**batch.columns, SAMPLE_WEIGHT: column})
