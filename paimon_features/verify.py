"""Verify: online = tiles = raw events, on sampled entities and times.

Three independent ways to one number are compared: the online store as it answers now, the
tile table at the snapshot that the online store has applied, and the raw events through the
naive oracle. Online takes the open tile whole and offline does not, so that all three are
compared at times on a tile's edge, and two by two between the edges.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from paimon_features.aggregates import Aggregate, DecayedCount, DecayedMean, DecayedSum, Mean
from paimon_features.aggregates.basic import Numeric
from paimon_features.aggregates.moments import StdDev, Variance
from paimon_features.definitions import CompiledFeature, CompiledView, FeatureRef, FeatureView
from paimon_features.errors import VerificationError
from paimon_features.project import Features, Project
from paimon_features.tables import latest_snapshot, read_arrow
from paimon_features.tables.consumers import consumers
from paimon_features.tables.deltas import read_delta, read_file
from paimon_features.tables.snapshots import snapshots
from paimon_features.testing import naive

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """One feature of one entity at one time on which two paths disagree beyond the tolerance."""

    view: str
    feature: str
    entity: Mapping[str, Any]
    q_ms: int
    paths: str
    left: Any
    right: Any

    def __str__(self) -> str:
        entity = ", ".join(f"{key}={value!r}" for key, value in self.entity.items())
        return (
            f"{self.view}:{self.feature} of {entity} at {self.q_ms}: "
            f"{self.paths}: {self.left!r} != {self.right!r}"
        )


@dataclass
class Report:
    """What was compared and what differed.

    ``largest`` is the largest relative difference that was seen per feature, within the
    tolerance too; ``moved`` counts entities left out because events came in meanwhile.
    """

    compared: int = 0
    entities: int = 0
    moved: int = 0
    differences: list[Difference] = field(default_factory=list)
    largest: dict[str, float] = field(default_factory=dict)
    pairs: list[tuple[str, float, float]] = field(default_factory=list)
    """Up to a few thousand (feature, online, raw) values, to be drawn."""

    @property
    def ok(self) -> bool:
        return not self.differences


def verify(
    project: Project,
    features: Features,
    *,
    sample: int = 50,
    times: int = 6,
    seed: int = 0,
    wait_s: float = 30.0,
    progress: Callable[[str], None] | None = None,
) -> Report:
    """Compare the three paths on ``sample`` entities per view at ``times`` times each.

    Raises
    ------
    VerificationError
        If tile job or materializer have not caught up within ``wait_s``: then there is
        nothing to compare yet.
    """
    report = Report()
    refs = project.refs(features)
    for view in project.views_of(refs):
        wanted = [ref for ref in refs if ref.view == view.name]
        _verify_view(project, view, wanted, report, sample, times, random.Random(seed), wait_s,
                     progress or (lambda _: None))  # fmt: skip
    return report
