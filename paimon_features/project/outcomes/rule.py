"""What the outcome of a prediction is: declared in the project, or by a command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from paimon_features.core.errors import ConfigurationError, DefinitionError, unknown_name
from paimon_features.core.windows import parse_duration

Take = Literal["first", "last", "max", "min", "sum"]
TAKES: tuple[Take, ...] = get_args(Take)
LATENESS_MS = 300_000
_OF_A_PLACE = ("source", "rows", "where", "label", "time", "keys")


@dataclass(frozen=True)
class OutcomeRule:
    """How outcomes are found, and joined with predictions.

    An outcome is an event of ``source``, or a row of ``rows``: a table of the lake, or files. It
    belongs to a prediction of the same entity at ``t`` if its time is in [t, t + ``within_ms``):
    features contain events before ``t``. The label is the value of the expression ``label``, a
    number or a truth value, of the ``first`` outcome, the ``last``, their ``max``, ``min`` or
    ``sum`` (``take``); without an expression it is 1. Outcomes where it is null are left out. A
    prediction without an outcome has the label ``otherwise``, and none if that is None.

    ``where`` is the condition of an outcome, an expression. ``time`` is the column of the time (by
    default the source's, or ``event_time_ms``), ``keys`` maps entity keys to columns of other
    names.

    A prediction is mature when outcomes up to the end of its window are known: when the newest
    one is ``lateness_ms`` past it. Outcomes that come later change nothing.

    Raises
    ------
    ConfigurationError
        For neither or both of source and rows, or a value that cannot be right.
    """

    within_ms: int
    source: str | None = None
    rows: str | None = None
    label: str | None = None
    take: Take = "first"
    otherwise: float | None = None
    time: str | None = None
    where: str | None = None
    keys: Mapping[str, str] = field(default_factory=dict)
    lateness_ms: int = LATENESS_MS

    def __post_init__(self) -> None:
        if (self.source is None) == (self.rows is None):
            raise ConfigurationError(
                "outcomes are events of a source or rows of a table or file: pass exactly one of "
                "source and rows"
            )
        if self.within_ms < 1:
            raise ConfigurationError(f"within {self.within_ms} ms; expected 1 ms or more")
        if self.take not in TAKES:
            raise ConfigurationError(unknown_name("take", self.take, TAKES))

    @property
    def default(self) -> float | None:
        """The label of a prediction without an outcome: 0 where an outcome is one by existing."""
        return 0.0 if self.label is None and self.otherwise is None else self.otherwise


def outcome_rule(
    model: str, declared: Mapping[str, Any] | None, given: Mapping[str, Any]
) -> OutcomeRule:
    """Return the rule of a model: what the project declares, and in its place what is ``given``.

    Of a given source, or rows, nothing that was declared about columns counts. Durations are texts
    such as ``7d``.

    >>> outcome_rule("churn", {"source": "retail", "within": "7d"}, {"within": "1d"}).within_ms
    86400000

    Raises
    ------
    ConfigurationError
        If nothing says what outcomes are, or something cannot be right.
    """
    options = dict(declared or {})
    if given.get("source") or given.get("rows"):
        # another place than the declared one has other columns
        options = {key: value for key, value in options.items() if key not in _OF_A_PLACE}
    values = {**options, **{key: value for key, value in given.items() if value}}
    if given.get("otherwise") is not None:
        values["otherwise"] = given["otherwise"]
    if not values:
        raise ConfigurationError(
            f"nothing says what outcomes of model {model!r} are: declare them in "
            f"[outcomes.{model}] of paimon-features.toml, or pass --source or --rows, and --within"
        )
    if "within" not in values:
        raise ConfigurationError(
            f"outcomes of model {model!r}: within is missing: for how long after a prediction an "
            "event is its outcome, such as 7d"
        )
    for name in ("within", "lateness"):
        if name in values:
            try:
                values[f"{name}_ms"] = parse_duration(values.pop(name))
            except DefinitionError as error:
                raise ConfigurationError(f"outcomes of model {model!r}: {name}: {error}") from error
    return OutcomeRule(**values)
