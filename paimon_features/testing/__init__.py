"""What proves the rest: naive oracles, comparisons, generators, contracts.

``naive`` and ``compare`` need nothing but the project itself, so that ``verify`` can use them on
any host; contracts and generators need the extra ``dev``.
"""
