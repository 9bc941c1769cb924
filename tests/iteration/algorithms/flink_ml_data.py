"""Training data and results that Flink ML's own tests state."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from paimon_features.transformers.flink_ml import SparseVector

BINARY = pa.table(
    {
        "features": [[float(i), 2.0, 3.0, 4.0] for i in (1, 2, 3, 4, 5, 11, 12, 13, 14, 15)],
        "label": [0.0] * 5 + [1.0] * 5,
        "weight": [1.0, 2.0, 3.0, 4.0, 5.0] * 2,
    }
)
"""LogisticRegressionTest and LinearSVCTest."""

REGRESSION = pa.table(
    {
        "features": [[2.0, 1], [3, 2], [4, 3], [2, 4], [2, 2], [4, 3], [1, 2], [5, 3]],
        "label": [4.0, 7, 10, 10, 6, 10, 5, 11],
        "weight": [1.0] * 8,
    }
)
"""LinearRegressionTest."""

KMEANS = np.array([[0, 0], [0, 0.3], [0.3, 0], [9, 0], [9, 0.6], [9.6, 0]])
"""KMeansTest."""

ONLINE_KMEANS = [
    np.array([[10, 0], [10, 0.3], [10.3, 0], [-10, 0], [-10, 0.6], [-10.6, 0]]),
    np.array([[10, 100], [10, 100.3], [10.3, 100], [-10, -100], [-10, -100.6], [-10.6, -100]]),
]
"""OnlineKMeansTest: two batches."""

FTRL_DENSE = [
    [
        [0.1, 2],
        [0.2, 2],
        [0.3, 2],
        [0.4, 2],
        [0.5, 2],
        [11.0, 12],
        [12, 11],
        [13, 12],
        [14, 12],
        [15, 12],
    ],
    [
        [0.2, 3],
        [0.8, 1],
        [0.7, 1],
        [0.6, 2],
        [0.2, 2],
        [14.0, 17],
        [15, 10],
        [16, 16],
        [17, 10],
        [18, 13],
    ],
]
FTRL_DENSE_LABELS = [0.0] * 5 + [1.0] * 5
FTRL_DENSE_START = [0.41233679404769874, -0.18088118293232122]
"""OnlineLogisticRegressionTest: two batches."""


def ones(*indices: int) -> SparseVector:
    """A sparse vector of ten numbers, 1 at three places."""
    return SparseVector(10, indices, [1.0, 1.0, 1.0])


FTRL_SPARSE = [
    [
        ones(1, 3, 4),
        ones(0, 2, 3),
        ones(0, 3, 4),
        ones(2, 3, 4),
        ones(1, 3, 4),
        ones(6, 7, 8),
        ones(6, 8, 9),
        ones(5, 8, 9),
        ones(5, 6, 7),
    ],
    [
        ones(1, 2, 4),
        ones(2, 3, 4),
        ones(0, 2, 4),
        ones(1, 3, 4),
        ones(6, 7, 9),
        ones(7, 8, 9),
        ones(5, 7, 9),
        ones(5, 6, 7),
        ones(5, 8, 9),
    ],
]  # fmt: skip
FTRL_SPARSE_LABELS = [[0.0] * 5 + [1.0] * 4, [0.0] * 4 + [1.0] * 5]
FTRL_SPARSE_WEIGHTS = [
    [1.0, 1.4, 1.3, 1.4, 1.6, 1.8, 1.9, 1.0, 1.1],
    [1.0, 1.3, 1.4, 1.0, 1.6, 1.8, 1.0, 1.5, 1.0],
]

SCALER = np.array([[-2.5, 9, 1], [1.4, -5, 1], [2, -1, -2]])
"""StandardScalerTest."""

ONLINE_SCALER = np.array(
    [
        [-2.5, 9, 1],
        [1.4, -5, 1],
        [2, -1, -2],
        [0.7, 3, 1],
        [0, 1, 1],
        [0.5, 0, -2],
        [0.4, 1, 1],
        [0.3, 2, 1],
        [0.5, 1, -2],
    ]
)  # fmt: skip
ONLINE_SCALER_TIMES = [0, 1000, 2000, 6000, 7000, 8000, 9000, 10000, 11000]
"""OnlineStandardScalerTest."""

BINS = np.array([[v, 10, 0] for v in (1, 1, 1, 4, 5, 6, 7, 10)] + [[13, 10, 3]], np.float64)
BINS_ASKED = np.array(
    [[-1, 0, 0], [1, 1, 1], [1.5, 1, 2], [5, 2, 3], [7.25, 3, 4], [13, 4, 5], [15, 4, 6]]
)
"""KBinsDiscretizerTest."""
