"""Several algorithms in one job on a real Flink, with a failure: the same bits as in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from paimon_features.core.types.schema import Float64
from paimon_features.iteration import IterationConfig, ReferenceExecutor
from paimon_features.iteration.algorithms import (
    EventTimeTumblingWindows,
    KMeans,
    LogisticRegression,
    OnlineLogisticRegression,
    OnlineStandardScaler,
    ProcessingTimeTumblingWindows,
    RobustScalerStage,
    StandardScalerStage,
)
from paimon_features.iteration.algorithms.estimator import MODEL, IterativeEstimator
from paimon_features.lake import Lake, TableSpec, append_arrow
from paimon_features.models.fitted_table import load_fitted, save_fitted
from paimon_features.transformers.flink_ml import KMeansModel, LogisticRegressionModel

pytestmark = pytest.mark.flink

PARALLELISM = 4


class _FailOnce:
    """Fails when it has passed some record batches on; a file remembers that it has."""

    def __init__(self, marker: Path | None, after: int) -> None:
        self.marker = marker
        self.after = after

    def map(self, batch: Any) -> Any:
        self.after -= 1
        if self.marker is not None and self.after < 0 and not self.marker.exists():
            self.marker.touch()
            raise RuntimeError("injected")
        return batch


def table_of(rows: int) -> pa.Table:
    rng = np.random.default_rng(11)
    features = rng.normal(size=(rows, 3))
    labels = (features @ [1.0, -2.0, 0.5] + rng.normal(size=rows) > 0).astype(float)
    return pa.table(
        {
            **{f"x{j}": features[:, j] for j in range(3)},
            "label": labels,
            "time": np.arange(rows),
        }
    )


COLUMNS = ("x0", "x1", "x2")


def algorithms() -> dict[str, tuple[IterativeEstimator, Any]]:
    """Estimators, and what they start from."""
    centroids = [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [-1.0, -1.0, 1.0]]
    start = KMeansModel({"centroids": centroids, "weights": [1.0] * 3})
    zero = LogisticRegressionModel({"coefficient": [0.0] * 3})
    return {
        "logistic": (LogisticRegression(features_col=COLUMNS, global_batch_size=256), None),
        "kmeans": (KMeans(features_col=COLUMNS, k=3, max_iter=10), start),
        "robust": (RobustScalerStage(input_col=COLUMNS), None),
        "ftrl": (
            OnlineLogisticRegression(features_col=COLUMNS, global_batch_size=100, reg=0.1),
            zero,
        ),
        "windows": (
            OnlineStandardScaler(
                input_col=COLUMNS, windows=EventTimeTumblingWindows(300), timestamp_col="time"
            ),
            None,
        ),
        # all rows arrive in one window of the clock
        "arrivals": (
            OnlineStandardScaler(input_col=COLUMNS, windows=ProcessingTimeTumblingWindows(10**13)),
            None,
        ),
    }


def programs(table: pa.Table, marker: Path | None = None) -> Callable[[Any], Any]:
    """One program of all algorithms, each reading record batches of a table."""
    batches = table.to_batches(max_chunksize=64)
    config = IterationConfig(wire="memory")

    def build(job: Any) -> Any:
        outputs = {}
        for name, (estimator, start) in algorithms().items():
            fail = _FailOnce(marker if name == "kmeans" else None, after=3)

            def source(job: Any, fail: _FailOnce = fail) -> Any:
                return job.from_collection(batches).map(fail)

            made = estimator.program(source, initial=start, parallelism=PARALLELISM, config=config)
            outputs[name] = made(job)[MODEL]
        return outputs

    return build


def models(found: dict[str, list[Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, (estimator, _) in algorithms().items():
        made = estimator.model_of(found[name])
        versions = [made] if hasattr(made, "kind") else list(made)
        out[name] = [model.to_params() for model in versions]
    return out


def points_of(folder: Path, table: pa.Table) -> Lake:
    """A lake with a table of these rows, in two commits."""
    lake = Lake.open(folder / "lake", "features")
    lake.create(TableSpec("points", dict.fromkeys(table.column_names, Float64)))
    for part in (table.slice(0, 400), table.slice(400)):
        append_arrow(lake, "points", part)
    return lake


@pytest.mark.long
def test_algorithms_of_one_job_equal_the_reference_executor_bit_for_bit(
    tmp_path: Path,
) -> None:
    from paimon_features.iteration.flink import IterationJob, IterationSettings

    table = table_of(1000)
    marker = tmp_path / "failed"
    expected = models(ReferenceExecutor().run(programs(table)))
    assert [len(versions) for versions in expected.values()] == [1, 1, 1, 10, 4, 1]
    settings = IterationSettings(
        mode="thread", wire="memory", checkpoint_interval_ms=100, stuck_s=60.0
    )
    lake = points_of(tmp_path, table.drop_columns("time"))
    scaler = StandardScalerStage(input_col=COLUMNS)
    build = programs(table, marker)

    def with_lake(job: Any) -> Any:
        read = scaler.program(
            lambda job: job.from_table(lake, "points", COLUMNS, block_rows=64, parallelism=2),
            parallelism=2,
            config=IterationConfig(wire="memory"),
        )
        return {**build(job), "scaler": read(job)[MODEL]}

    job = IterationJob(settings=settings, state_dir=tmp_path / "state")
    found = job.run(with_lake)
    assert marker.exists()
    assert models(found) == expected
    # a table's rows come in the order of its files
    model, wanted = scaler.model_of(found["scaler"], rows=1000), scaler.fit(table)
    for name in ("mean", "std"):
        assert np.allclose(model.model_data[name], wanted.model_data[name], rtol=1e-12)
    saved = save_fitted(lake, "points_scaler", model, fitted_on={"table": "points"}, now_ms=1)
    assert load_fitted(lake, "points_scaler", 1) == saved
