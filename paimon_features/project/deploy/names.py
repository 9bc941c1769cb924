"""Names of Kubernetes objects."""

from __future__ import annotations

import hashlib
import re

LONGEST = 45
"""The operator's limit for a FlinkDeployment, whose services and pods have longer names."""


def object_name(*parts: str) -> str:
    """Return the parts joined by dashes, as a DNS label of at most 45 characters.

    Our names have underscores, which DNS does not allow; a name that would be too long, or would
    end with a dash, ends with a hash of the complete one.

    >>> object_name("shop", "tiles", "customer_spend")
    'shop-tiles-customer-spend'
    >>> object_name("shop", "tiles", "customer_spend_of_the_last_thirty_days")
    'shop-tiles-customer-spend-of-the-las-...'
    """
    joined = re.sub(r"[^a-z0-9-]", "-", "-".join(parts).lower())
    if len(joined) <= LONGEST and re.fullmatch(r"[a-z](.*[a-z0-9])?", joined):
        return joined
    digest = hashlib.sha256("/".join(parts).encode()).hexdigest()[:8]
    start = joined if joined[0].isalpha() else f"p{joined}"
    return f"{start[: LONGEST - 9]}-{digest}"
