"""Steps that several partials share, computed once per event.

Flink computes an expression wherever its text stands, and takes longer to plan the more text
there is: a moment names the square of its value a dozen times, a sketch the digest of its text.
The job's two statements select from one step (see ``tiling``); what is a column there is computed
once. So the largest repeated parts of the partials become columns of it.

>>> from paimon_features.expressions import parse
>>> from paimon_features.schema import String
>>> sketch = parse("distinct_item(md5(item(word)))", {"word": String})
>>> steps, rest = shared_steps({"p_distinct_word": sketch})
>>> steps["__step_1"].text, rest["p_distinct_word"].text
('md5(item(word))', 'distinct_item(__step_1)')
"""

from __future__ import annotations

from collections.abc import Mapping

from paimon_features.expressions import Expression, replace_nodes, to_flink
from paimon_features.expressions.nodes import Call, walk

STEP = "__step_"
"""Begins the name of a step's column."""
WORTH = 400
"""Characters of SQL that a step has to save; a column more costs something, too."""


def shared_steps(
    expressions: Mapping[str, Expression],
) -> tuple[dict[str, Expression], dict[str, Expression]]:
    """The steps by the names of their columns, and the expressions in terms of them."""
    steps: dict[str, Expression] = {}
    rest = dict(expressions)
    while True:
        found = _largest(rest)
        if found is None:
            return steps, rest
        name = f"{STEP}{len(steps) + 1}"
        steps[name] = found
        rest = {key: replace_nodes(e, {found: name}) for key, e in rest.items()}


def _largest(expressions: Mapping[str, Expression]) -> Expression | None:
    """The part with the longest text of those that are worth a step."""
    whole = "\n".join(map(to_flink, expressions.values()))
    # a step reads columns of the source only: Flink would put one that reads another back
    parts = {
        node: to_flink(node)
        for expression in expressions.values()
        for node in walk(expression)
        if isinstance(node, Call) and not any(name.startswith(STEP) for name in node.columns)
    }
    # the longest first, for what is in it cannot be a step of its own without it
    for part, text in sorted(parts.items(), key=lambda item: (-len(item[1]), item[1])):
        if (whole.count(text) - 1) * len(text) >= WORTH:
            return part
    return None
