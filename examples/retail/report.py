"""The demo's report: one HTML file, in the style and with the charts of the web UI.

It loads nothing from elsewhere, and its policy allows only its own style and script, by their
hashes. What the demo saw is data in it, from which the script makes text nodes and shapes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from circle import CircleFacts  # next to this file, which may be anywhere

from paimon_features.serving.ui import text

HERE = Path(__file__).parent
MODULES = ("prefs.js", "dom.js", "charts.js")


@dataclass
class Facts:
    """What the demo saw; each picture draws from here."""

    days: list[int] = field(default_factory=list)
    """Since 1970, with an event."""
    events_per_day: list[int] = field(default_factory=list)
    tiles_per_day: list[int] = field(default_factory=list)
    freshness_s: list[float] = field(default_factory=list)
    pairs: list[tuple[str, float, float]] = field(default_factory=list)
    """(feature, online, raw events) of some numbers."""
    compared: int = 0
    largest: float = 0.0
    steps: list[tuple[int, float]] = field(default_factory=list)
    """(epoch, loss of a step), in order."""
    epochs: list[dict[str, float]] = field(default_factory=list)
    hardest: list[dict[str, Any]] = field(default_factory=list)
    rejected: dict[str, int] = field(default_factory=dict)
    lookups: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    circle: CircleFacts = field(default_factory=CircleFacts)
    total_s: float = 0.0


def write_report(path: Path, facts: Facts) -> None:
    """Write the report; it needs no network and no other file."""
    style = text("app.css") + (HERE / "report.css").read_text(encoding="utf-8")
    script = one_script([*map(text, MODULES), (HERE / "report.js").read_text(encoding="utf-8")])
    # '<' could end the element that the data is in
    data = json.dumps(asdict(facts), allow_nan=False).replace("<", "\\u003c")
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "img-src data:; base-uri 'none'; form-action 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
    page = (HERE / "report.html").read_text(encoding="utf-8")
    parts = {"policy": policy, "style": style, "script": script, "facts": data}
    page = re.sub(r"\{(policy|style|script|facts)\}", lambda found: parts[found[1]], page)
    path.write_text(page, encoding="utf-8")


def one_script(modules: list[str]) -> str:
    """Modules that import each other, in the order of their use, as one.

    >>> one_script(["export const a = 1;", 'import { a } from "./a.js";\\nf(a);'])
    'const a = 1;\\n\\nf(a);'
    """
    joined = "\n".join(re.sub(r"(?m)^import .*;$", "", module) for module in modules)
    return re.sub(r"(?m)^export ", "", joined)


def _hash(content: str) -> str:
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
