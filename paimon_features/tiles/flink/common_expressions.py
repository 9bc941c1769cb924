"""Common subexpressions of several partials, computed once per event.

Flink computes an expression at each occurrence of its text, and planning time grows with the
text: a moment uses the square of its value a dozen times, a sketch the digest of its text. The
job's two statements select from one step (see ``tiling``), whose columns are computed once. So
the largest repeated subexpressions become columns of that step.

>>> from paimon_features.core.expressions import parse
>>> from paimon_features.core.types.schema import String
>>> sketch = parse("distinct_item(md5(item(word)))", {"word": String})
>>> steps, rest = shared_steps({"p_distinct_word": sketch})
>>> steps["__step_1"].text, rest["p_distinct_word"].text
('md5(item(word))', 'distinct_item(__step_1)')
"""

from __future__ import annotations

from collections.abc import Mapping

from paimon_features.core.expressions import Expression, replace_nodes, to_flink
from paimon_features.core.expressions.nodes import Call, walk

STEP = "__step_"
"""The prefix of a step's column."""
WORTH = 400
"""Characters of SQL that a step must save, since another column has a cost as well."""


def shared_steps(
    expressions: Mapping[str, Expression],
) -> tuple[dict[str, Expression], dict[str, Expression]]:
    """Return the steps by column name, and the expressions rewritten to use them."""
    steps: dict[str, Expression] = {}
    rest = dict(expressions)
    while True:
        largest = _largest(rest)
        if largest is None:
            return steps, rest
        name = f"{STEP}{len(steps) + 1}"
        steps[name] = largest
        rest = {key: replace_nodes(e, {largest: name}) for key, e in rest.items()}


def _largest(expressions: Mapping[str, Expression]) -> Expression | None:
    """Return the longest subexpression that is worth a step."""
    whole = "\n".join(map(to_flink, expressions.values()))
    # a step reads columns of the source only: Flink would inline one that reads another
    parts = {
        node: to_flink(node)
        for expression in expressions.values()
        for node in walk(expression)
        if isinstance(node, Call) and not any(name.startswith(STEP) for name in node.columns)
    }
    # longest first: a part of it cannot be a step of its own
    for part, text in sorted(parts.items(), key=lambda item: (-len(item[1]), item[1])):
        if (whole.count(text) - 1) * len(text) >= WORTH:
            return part
    return None
