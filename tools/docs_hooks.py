"""Hooks of the documentation site: pages and parts of pages that are generated from the code.

A comment in a page is replaced when the site is built:

- ``<!-- api: PACKAGE -->``: every public name of the package (its ``__all__``), by mkdocstrings;
- ``<!-- api: PACKAGE NAME NAME -->``: these names of it;
- ``<!-- commands -->``: every command with its help text, by the headings of ``--help``;
- ``<!-- http -->``: the operations and schemas of the feature server's OpenAPI document;
- ``<!-- configuration -->``: the keys of ``paimon-features.toml`` with types and defaults.

A line that is only a link to a CSV file becomes the file's table, or a chart where the file's
columns are ``figure``, ``aim`` and ``better``. Elsewhere, as on GitHub, it stays a link.
"""

from __future__ import annotations

import ast
import csv
import dataclasses
import html
import math
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).parent))

from notebooks import executed

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def on_config(config: Any) -> Any:
    """List the pages of internals/ in the navigation; decisions are listed by their index only."""
    for section in config.nav:
        if "Internals" in section:
            section["Internals"] = _internals()
    return config


def on_files(files: Any, config: Any) -> Any:
    """Show notebooks with their outputs, where ``make notebooks`` has run them as they are."""
    for file in files:
        if file.src_uri.endswith(".ipynb"):
            made = executed(DOCS / file.src_uri)
            if made is None:
                print(f"docs: {file.src_uri} has no outputs; 'make notebooks' runs it")
            else:
                file.abs_src_path = str(made)
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace the comments and links that stand for generated parts."""
    folder = (DOCS / page.file.src_uri).parent
    markdown = re.sub(
        r"^\[[^\]]+\]\(([\w./-]+\.csv)\)$",
        lambda link: "\n".join(_csv(folder / link[1])),
        markdown,
        flags=re.MULTILINE,
    )
    markdown = re.sub(r"<!-- api: ([\w.]+)((?: \w+)*) -->", _api, markdown)
    markdown = re.sub(r"<!-- http -->", lambda _: "\n".join(_http()), markdown)
    markdown = re.sub(r"<!-- commands -->", lambda _: "\n".join(_commands()), markdown)
    return re.sub(r"<!-- configuration -->", lambda _: "\n".join(_configuration()), markdown)


def _internals() -> list[str]:
    folder = DOCS / "internals"
    pages = sorted(path.name for path in folder.glob("*.md") if path.name != "index.md")
    return [
        "internals/index.md",
        *(f"internals/{name}" for name in pages),
        "internals/decisions/index.md",
    ]


def _csv(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    if header[1:] == ["figure", "aim", "better"]:
        yield _aims_chart(rows)
        return
    numeric = any(re.match(r"\*{0,2}[\d.]", row[1]) for row in rows)
    yield f"| {' | '.join(header)} |"
    yield "|---" + ("|---:" if numeric else "|---") * (len(header) - 1) + "|"
    yield from (f"| {' | '.join(row)} |" for row in rows)


def _aims_chart(rows: list[list[str]]) -> str:
    """Return a chart of bars: by what factor each figure is better or worse than its aim."""
    middle, scale, height = 560, 90, 22
    bars = []
    for number, (part, figure, aim, better) in enumerate(rows):
        factor = float(figure) / float(aim)
        factor = 1 / factor if better == "less" else factor
        width = scale * math.log2(factor)
        y = number * height
        fill = "#2e7d32" if factor >= 1 else "#c62828"
        bars.append(
            f'<text x="{middle - 220}" y="{y + 15}" text-anchor="end">{html.escape(part)}</text>'
            f'<rect x="{middle + min(width, 0):.0f}" y="{y + 4}" width="{abs(width):.0f}" '
            f'height="{height - 8}" fill="{fill}"/>'
            f'<text x="{middle + max(width, 0) + 6:.0f}" y="{y + 15}">{factor:.2f}</text>'
        )
    total = len(rows) * height
    return (
        f'<svg viewBox="0 0 860 {total}" role="img" aria-label="Figures as shares of their aims" '
        f'font-size="13" fill="currentColor">{"".join(bars)}'
        f'<path d="M{middle} 0V{total}" stroke="currentColor"/></svg>'
    )


def _api(found: re.Match[str]) -> str:
    package = found[1]
    names = found[2].split() or public_names(package)
    return "\n\n".join(f"::: {package}.{name}" for name in names)


def public_names(package: str) -> list[str]:
    """The classes and functions that a package exports: its stub, or else its ``__all__``."""
    path = ROOT.joinpath(*package.split("."))
    stub = path / "__init__.pyi" if path.is_dir() else path.with_suffix(".pyi")
    if stub.is_file():
        nodes = ast.parse(stub.read_text(encoding="utf-8")).body
        imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
        return sorted(alias.asname for node in imports for alias in node.names if alias.asname)
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return [name for name in names if not name.isupper()]
    raise LookupError(f"{source} has no __all__")


def _commands() -> Iterator[str]:
    from paimon_features.cli import COMMANDS, cli

    for heading, section in COMMANDS.items():
        yield f"## {heading}\n"
        for name in section:
            command = cli.get_command(click.Context(cli), name)
            assert command is not None, name
            yield from _command(command, f"paimon-features {name}", "###")


def _command(command: click.Command, name: str, level: str) -> Iterator[str]:
    # the width of the page's text in characters
    context = click.Context(
        command, info_name=name, help_option_names=["-h", "--help"], max_content_width=88
    )
    context.terminal_width = 88
    yield f"{level} {name.removeprefix('paimon-features ')}\n"
    yield f"```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for part in command.list_commands(context):
            if inner := command.get_command(context, part):
                yield from _command(inner, f"{name} {part}", level + "#")


def _http() -> Iterator[str]:
    from paimon_features.core.configuration.project_config import ServeConfig
    from paimon_features.serving.http.endpoints.openapi import document
    from paimon_features.serving.http.limits import Limits

    api = document(None, Limits.of(ServeConfig()), with_tokens=True)
    for path, operations in api["paths"].items():
        for method, operation in operations.items():
            yield f"## `{method.upper()} {path}` {{ #{_slug(method, path)} }}\n"
            yield f"{operation.get('description') or operation.get('summary', '')}\n"
            if parameters := operation.get("parameters"):
                yield "| parameter | in | required | type | meaning |\n|---|---|---|---|---|"
                for item in parameters:
                    required = "yes" if item.get("required") else "no"
                    text = _cell(item.get("description", ""))
                    kind = _type(item["schema"])
                    yield f"| `{item['name']}` | {item['in']} | {required} | {kind} | {text} |"
                yield ""
            if body := operation.get("requestBody"):
                bodies = (
                    f"`{media}`, {_type(each['schema'])}" for media, each in body["content"].items()
                )
                yield f"Request body: {', '.join(bodies)}.\n"
            yield "| status | meaning |\n|---|---|"
            for status, reply in operation["responses"].items():
                yield f"| {status} | {_cell(reply.get('description', ''))} |"
            yield ""
    yield "## Schemas\n"
    for name, schema in api["components"]["schemas"].items():
        yield f"### `{name}`\n"
        if text := schema.get("description"):
            yield f"{text}\n"
        needed = set(schema.get("required", ()))
        yield "| field | type | required | meaning |\n|---|---|---|---|"
        for field, item in schema.get("properties", {}).items():
            always = "yes" if field in needed else "no"
            yield f"| `{field}` | {_type(item)} | {always} | {_cell(item.get('description', ''))} |"
        yield ""


def _slug(method: str, path: str) -> str:
    return f"{method}-{re.sub(r'[^a-z0-9]+', '-', path.lower()).strip('-')}"


def _cell(text: str) -> str:
    return html.escape(text, quote=False).replace("|", "\\|").replace("\n", " ")


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[`{name}`](#{name.lower()})"
    for key in ("oneOf", "anyOf"):
        if key in schema:
            return " or ".join(_type(item) for item in schema[key])
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    kind = schema.get("type", "any")
    if kind == "array":
        return f"array of {_type(schema.get('items', {}))}"
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _configuration() -> Iterator[str]:
    from paimon_features.core.configuration import project_config as config

    general = {
        field.name: field.default
        for table in (config.ServeConfig, config.FlinkConfig)
        for field in dataclasses.fields(table)
    }
    oidc = {field.name: field.default for field in dataclasses.fields(config.OidcConfig)}
    nested = {"lake.catalog": config._CATALOG, "serve.oidc": config._OIDC}
    for table, keys in {**config._KNOWN, **nested}.items():
        defaults = oidc if table == "serve.oidc" else general
        yield f"## `[{table}]`\n"
        yield "| key | type | default |\n|---|---|---|"
        for key, kind in keys.items():
            known = defaults.get(key, defaults.get(f"{key}_ms", _DEFAULTS.get((table, key), "")))
            known = "" if known is dataclasses.MISSING else known
            named = "str or list" if kind is object else kind.__name__
            text = f"`{known}` ms" if f"{key}_ms" in defaults else f"`{known}`"
            yield f"| `{key}` | {named} | {'' if known in ('', None) else text} |"
        yield ""
        yield f"{_MEANING[table]}\n"


_DEFAULTS: Mapping[tuple[str, str], str] = {
    ("project", "definitions"): "features.py",
    ("project", "name"): "the folder's name",
    ("project", "state"): ".paimon-features",
    ("lake", "warehouse"): "lake",
    ("lake", "database"): "features",
    ("lake.catalog", "type"): "rest",
    ("online", "url"): "redis://127.0.0.1:6379/0",
    ("kafka", "mechanism"): "SCRAM-SHA-512",
    ("kafka", "partition_discovery"): "1min",
    ("kafka", "tls"): "false",
}
_MEANING: Mapping[str, str] = {
    "project": "The name becomes part of every key in the online store. `state` contains "
    "checkpoints, logs and leases of the project's jobs.",
    "models": "`mlflow` is the address of a server that gets a copy of model versions; "
    "`MLFLOW_TRACKING_URI` in the environment wins.",
    "lake": "`warehouse` is a folder or an address (`s3:`, `oss:`, `hdfs:`); `options` are the "
    "options of a [remote warehouse](../how-to/training/loading-remote.md).",
    "lake.catalog": "The token is `PAIMON_FEATURES_CATALOG_TOKEN` of the environment. See "
    "[a REST catalog](../how-to/data/object-stores.md#a-rest-catalog).",
    "online": "The environment variables `PAIMON_FEATURES_ONLINE_URL` and "
    "`PAIMON_FEATURES_ONLINE_PASSWORD` take precedence. Timeouts are durations (`500ms`). "
    "See [the online store](../how-to/serving/online-store.md).",
    "kafka": "The environment variable `PAIMON_FEATURES_KAFKA_PASSWORD` takes precedence over "
    "`password_file`. See [Kafka topics](../how-to/data/kafka.md#security).",
    "lineage": "An address (`http://marquez:5000`) or a file for events of OpenLineage. See "
    "[OpenLineage](../how-to/integrations/openlineage.md).",
    "flink": "`checkpoint_interval` is a duration. It is also the interval at which tiles are "
    "committed, and so a lower bound of freshness.",
    "serve": "See [the feature server](../how-to/serving/feature-server.md). `max_wait` and "
    "`cache` are durations.",
    "serve.oidc": "Needs the extra `oidc`. `clock_skew` and `refresh` are durations. See "
    "[tokens, roles and quotas](../how-to/serving/access.md#jwts-of-an-identity-provider).",
}
