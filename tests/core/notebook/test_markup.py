"""What notebooks show: escaped, bounded, and without an import that slows anything down."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from typing import Any

import pyarrow as pa
import pytest

import paimon_features as pf
from paimon_features.core.notebook.markup import (
    MAX_ROWS,
    MAX_TEXT,
    Markup,
    arrow_table,
    card,
    facts,
    table,
    text,
    utc,
)
from paimon_features.ingest.file_ingestion import IngestResult
from paimon_features.models import Metric, ModelManifest, ModelStates
from paimon_features.models.manifest import ModelFile, ModelInput, ModelKey, ModelOutput
from paimon_features.models.manifest import ModelSignature as Signature
from paimon_features.project.lineage import LineageGraph, LineageNode
from paimon_features.project.planning.plan import Change, ProjectPlan

HOSTILE = '<script>alert("x")</script>&\'<img src=x onerror=alert(1)>'
ALLOWED = {
    "style", "div", "h4", "p", "table", "thead", "tbody", "tr", "th", "td", "b", "progress",
    "svg", "title", "rect", "text", "g", "path", "circle", "line",
}  # fmt: skip


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def tags(page: str) -> _Tags:
    parser = _Tags()
    parser.feed(page)
    parser.close()
    return parser


def hostile_objects() -> list[Any]:
    source = pf.EventSource(
        "shop",
        schema={"user": pf.Int64, "t": pf.Int64, "kind": pf.String},
        event_time="t",
        description=HOSTILE,
        owner=HOSTILE,
        tags={HOSTILE: HOSTILE},
    )
    user = pf.Entity("user", keys={"user": pf.Int64}, description=HOSTILE, owner=HOSTILE)
    view = pf.FeatureView(
        "visits",
        source=source,
        entity=user,
        features=[pf.Count(windows=["1h"])],
        where="kind <> '<script>'",
        description=HOSTILE,
        tags={"a": HOSTILE},
    )
    pace = pf.Interaction("pace", "visits:count_1h * 2", description=HOSTILE)
    network = {"network.onnx": ModelFile("0" * 64, 1)}
    signature = Signature(
        "visitors",
        (ModelKey("user", "int64"),),
        (ModelInput("a", "feature", "visits:count_1h", "int64", "float64"),),
        (ModelOutput("p"),),
        "binary",
    )
    return [
        source,
        user,
        view,
        pace,
        pf.FeatureService("visitors", [view, pace], description=HOSTILE, owner=HOSTILE),
        ProjectPlan((Change("source", HOSTILE, "create", (HOSTILE,)),)),
        IngestResult(
            "1",
            (HOSTILE,),
            ((HOSTILE, HOSTILE),),
            rejected={HOSTILE: 1},
            examples={HOSTILE: HOSTILE},
        ),
        ModelManifest(
            "m", 1, 0, "trees", signature, network, metrics={HOSTILE: Metric(0.5)}, card=HOSTILE
        ),
        ModelStates.new("m", 0).with_version(1, "0" * 64, 5),
    ]


@pytest.mark.parametrize("shown", hostile_objects(), ids=lambda each: type(each).__name__)
def test_names_and_values_are_never_markup(shown: Any) -> None:
    found = tags(shown._repr_html_())
    assert found.tags <= ALLOWED, found.tags - ALLOWED
    assert not {name for name in found.attributes if name.startswith("on")}
    assert "<script" not in shown._repr_html_().replace("&lt;script", "")


def test_hostile_values_of_data_are_escaped() -> None:
    data = pa.table({HOSTILE: [HOSTILE, None], "n": [1234567, 2]})
    shown = card(HOSTILE, arrow_table(data), facts({HOSTILE: HOSTILE}), note=HOSTILE)
    assert tags(shown).tags <= ALLOWED
    assert "1234567" in shown  # data may be keys: not grouped


def test_a_lineage_picture_escapes_its_names() -> None:
    node = LineageNode("source", HOSTILE, HOSTILE)
    assert tags(LineageGraph((node,), ())._repr_svg_()).tags <= ALLOWED


def test_sizes_are_bounded() -> None:
    shown = table(([number] for number in range(MAX_ROWS + 1_234)), ["n"])
    assert shown.count("<tr>") == MAX_ROWS + 1
    assert "and 1,234 more" in shown
    assert len(text("x" * 10**6)) == MAX_TEXT
    assert len(text(list(range(10**6)))) == MAX_TEXT
    assert utc(10**18) == f"{10**18} ms"


def test_markup_is_escaped_by_nobody_twice() -> None:
    assert str(facts({"a": Markup("<i>b</i>")})).count("<i>b</i>") == 1


def test_definitions_load_neither_html_nor_ipython() -> None:
    program = (
        "import sys, paimon_features as pf\n"
        "pf.Entity('user', keys={'user': pf.Int64})\n"
        "heavy = 'IPython', 'paimon_features.core.notebook.markup'\n"
        "print([n for n in heavy if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
