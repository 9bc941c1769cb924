"""``GET /docs``: the OpenAPI document as one page, without scripts and without the internet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

from paimon_features.serving.http.http_errors import CODES, Headers

HEADERS: Headers = (
    (b"content-security-policy", b"default-src 'none'; style-src 'unsafe-inline'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)
_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
code,pre{font:14px/1.4 ui-monospace,monospace;background:#f4f4f4;border-radius:4px}
code{padding:0 .2em}pre{padding:.8rem;overflow-x:auto}
h2{border-top:1px solid #ddd;padding-top:1rem}
table{border-collapse:collapse;width:100%}td,th{text-align:left;vertical-align:top;
padding:.3rem .8rem .3rem 0;border-bottom:1px solid #eee}
.method{font-weight:600;color:#fff;background:#3565a5;border-radius:4px;padding:.1rem .5rem}
"""


def render(document: Mapping[str, Any]) -> bytes:
    """Return the HTML page of our OpenAPI document."""
    info = document["info"]
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width,initial-scale=1'>"
        f"<title>{escape(info['title'])}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(info['title'])}</h1><p>{escape(info['description'])} "
        "The complete interface for programs: <a href='openapi.json'>openapi.json</a>.</p>"
    ]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            parts.append(_operation(document, path, method, operation))
    rows = "".join(
        f"<tr><td><code>{escape(code)}</code></td><td>{escape(text)}</td></tr>"
        for code, (_, text) in CODES.items()
    )
    parts.append(
        "<h2>Errors</h2><p>An error is a JSON document with <code>status</code>, "
        "<code>title</code>, <code>code</code>, <code>detail</code> and <code>request_id</code>."
        f"</p><table><tr><th>code</th><th>meaning</th></tr>{rows}</table></body></html>"
    )
    return "".join(parts).encode()


def _operation(
    document: Mapping[str, Any], path: str, method: str, operation: Mapping[str, Any]
) -> str:
    out = (
        f"<h2><span class='method'>{escape(method.upper())}</span> <code>{escape(path)}</code></h2>"
        f"<p>{escape(operation['summary'])} {escape(operation.get('description', ''))}</p>"
    )
    body = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if body is not None:
        schema = body["schema"]
        if "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        properties = schema["properties"]
        rows = "".join(
            f"<tr><td><code>{escape(name)}</code></td><td>{escape(_kind(schema))}</td>"
            f"<td>{escape(schema.get('description', ''))}</td></tr>"
            for name, schema in properties.items()
        )
        out += f"<table><tr><th>field</th><th>type</th><th></th></tr>{rows}</table>"
        for name, example in body.get("examples", {}).items():
            text = json.dumps(example["value"], indent=2)
            out += f"<p>For example <code>{escape(name)}</code>:</p><pre>{escape(text)}</pre>"
    rows = "".join(
        f"<tr><td>{escape(status)}</td><td>{escape(response['description'])}</td></tr>"
        for status, response in operation["responses"].items()
    )
    return f"{out}<table><tr><th>status</th><th></th></tr>{rows}</table>"


def _kind(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)
