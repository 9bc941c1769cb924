"""How well an order mixes the rows of a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


def shuffle_quality(order: Any, classes: npt.ArrayLike | None = None) -> dict[str, float]:
    """Return how well an order mixes, in two numbers; both cost O(rows) time and memory.

    ``neighbours_kept``: share of consecutive positions whose rows are neighbours in the
    table (1 unshuffled, about ``2 / rows`` in a perfect shuffle). ``class_spread`` (with
    ``classes``, one label per row): spread of the class shares over ten equal parts of
    the epoch, over the spread that chance alone causes; about 1 is perfect.
    """
    rows = order.rows(np.arange(len(order)))
    kept = float(np.mean(np.abs(np.diff(rows)) == 1)) if len(rows) > 1 else 0.0
    if classes is None:
        return {"neighbours_kept": kept}
    _, labels = np.unique(np.asarray(classes), return_inverse=True)
    parts = np.array_split(labels[rows], min(10, max(len(rows), 1)))
    shares = np.bincount(labels) / len(labels)
    # axes: (part, class)
    counts = np.stack([np.bincount(part, minlength=len(shares)) for part in parts])
    expected = np.outer([len(part) for part in parts], shares)
    chance = (len(parts) - 1) * max(len(shares) - 1, 1)
    spread = float(((counts - expected) ** 2 / expected).sum() / chance)
    return {"neighbours_kept": kept, "class_spread": spread**0.5}
