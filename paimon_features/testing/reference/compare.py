"""Differences between the values of a path and the oracle: exact where promised, else bounded.

Counts, extremes, last values and sums of integers and decimals must be equal. Sums of floats
may differ by ``n * eps * sum(|v|)``, because engines add in different orders; decayed ones also
by the rounding of their weights.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from paimon_features.definitions import FeatureView
from paimon_features.testing.reference.features import Answer, Event, entered, window_of
from paimon_features.testing.reference.tolerance import Bound, tolerance, undecided


def differences(
    view: FeatureView,
    events: Sequence[Event],
    as_of_ms: int,
    expected: Answer,
    values: Mapping[str, Any],
    statuses: Mapping[str, str] | None = None,
    online: bool = False,
    own_event: Event | None = None,
) -> list[str]:
    """Return the differences of ``values`` from the oracle; empty if there are none.

    ``events`` are all events of the entity, ``expected`` is the oracle's answer from them.
    ``statuses``, if given, contains the status of each feature, and ``own_event`` is the event of
    the request.
    """
    wrong = []
    rows = entered(view, events)
    own_row = next(iter(entered(view, [] if own_event is None else [own_event])), None)
    for feature in view.compiled.features:
        window = window_of(view, feature, rows, as_of_ms, online=online, own_event=own_row)
        got, wanted = values[feature.name], expected.values[feature.name]
        ill = feature.name in expected.ill_conditioned
        present = "PRESENT" if feature.name in expected.counting else expected.status
        status = "ILL_CONDITIONED" if ill else present
        if statuses is not None and statuses[feature.name] != status:
            if not undecided(feature.aggregate, window):
                wrong.append(f"{feature.name}: status {statuses[feature.name]}, expected {status}")
            continue
        if got is None or wanted is None:
            if got is not wanted and not undecided(feature.aggregate, window):
                wrong.append(f"{feature.name}: got {got!r}, expected {wanted!r}")
            continue
        bound = tolerance(feature.aggregate, window, wanted)
        if differs(got, wanted, bound):
            exactly = "exactly " if bound == 0 else ""
            within = "" if bound == 0 else f" ± {bound!r}"
            wrong.append(f"{feature.name}: got {got!r}, expected {exactly}{wanted!r}{within}")
    return wrong


def differs(got: Any, wanted: Any, bound: Bound) -> bool:
    """Return whether a value differs from the expected one by more than ``bound``, item by item."""
    if bound == 0:
        # repr distinguishes what == does not: 1 and True, a zero's sign, a decimal's scale
        return bool(got != wanted) or repr(got) != repr(wanted)
    if isinstance(wanted, list):
        bounds = bound if isinstance(bound, Sequence) else [bound] * len(wanted)
        pairs = zip(got, wanted, bounds, strict=True)
        return len(got) != len(wanted) or any(differs(*pair) for pair in pairs)
    if isinstance(wanted, tuple):  # a key of a map and its value
        return bool(got[0] != wanted[0]) or differs(got[1], wanted[1], bound)
    assert isinstance(bound, float)
    return bound < math.inf and abs(Fraction(got) - Fraction(wanted)) > Fraction(bound)
