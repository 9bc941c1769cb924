"""``check audit``: who changed what, and when."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paimon_features.cli._options import moment_ms, time_text
from paimon_features.cli._tables import table_lines
from paimon_features.core.configuration.project_config import TOKEN_USE_FILES
from paimon_features.core.times.clock import now_ms
from paimon_features.project import Project

if TYPE_CHECKING:
    from paimon_features.lake.side_folder.audit_log import AuditEntry

TOKEN_USE = "token_use"
_HEADINGS = ("TIME", "KIND", "NAME", "WHO", "COMMIT", "WHAT")
_LONGEST_LINE = 4_096


def check_audit(
    names: Sequence[str], since: str | None, kinds: Sequence[str], path: str, as_json: bool
) -> None:
    """Show who changed what, when, and from which commit: all, or only ``names``."""
    from paimon_features.lake.side_folder import audit_log

    project = Project.open(path)
    since_ms = 0 if since is None else moment_ms(since, now_ms())
    rows: list[dict[str, Any]] = []
    if not kinds or set(kinds) != {TOKEN_USE}:
        for entry in audit_log.entries(project.lake, since_ms):
            if not kinds or entry.kind in kinds or entry.kind == audit_log.DAMAGED:
                rows.append({**asdict(entry), "what": _what(entry)})
    folder = project.config.serve.audit
    if folder is not None and (not kinds or TOKEN_USE in kinds):
        rows += _token_use(folder, since_ms, project.name)
    elif TOKEN_USE in kinds:
        raise click.UsageError("[serve] audit sets no folder, so no use of tokens is recorded")
    rows = [row for row in rows if not names or row["name"] in names]
    rows.sort(key=lambda row: row["time_ms"])
    if as_json:
        click.echo(
            json.dumps([{k: v for k, v in row.items() if k != "what"} for row in rows], indent=2)
        )
    elif not rows:
        click.echo("no records" + ("" if since is None else f" since {time_text(since_ms)}"))
    else:
        click.echo("\n".join(table_lines([_HEADINGS, *map(_cells, rows)])))


def _what(entry: AuditEntry) -> str:
    details = entry.details
    if entry.error is not None:
        return f"FAILED: {entry.error}"
    if entry.kind == "apply":
        changes = details.get("changes") or ["no changes"]
        more = f" and {len(changes) - 3} more" if len(changes) > 3 else ""
        digest = str(details.get("digest", ""))[:12]
        return f"{', '.join(map(str, changes[:3]))}{more} (plan {digest})"
    return ", ".join(f"{k} {v}" for k, v in details.items() if v not in (None, [], ""))


def _token_use(folder: Path, since_ms: int, project: str) -> Iterator[dict[str, Any]]:
    """Yield the lines of all workers; one that is cut short, or of something else, is left out."""
    for path in sorted(folder.glob(TOKEN_USE_FILES)):
        with path.open("rb") as file:
            while line := file.readline(_LONGEST_LINE):
                try:
                    row = json.loads(line)
                    counts = {k: int(row[k]) for k in ("requests", "rows", "refused")}
                    if row["project"] != project or int(row["time_ms"]) < since_ms:
                        continue
                    yield {
                        "time_ms": int(row["time_ms"]), "kind": TOKEN_USE, "name": str(row["name"]),
                        "user": "", "host": str(row["host"]), "commit": None, "modified": False,
                        "since_ms": int(row["since_ms"]), **counts,
                        "what": ", ".join(f"{k} {v:,}" for k, v in counts.items()),
                    }  # fmt: skip
                except (ValueError, KeyError, TypeError, RecursionError):
                    continue


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    who = f"{row['user']}@{row['host']}" if row["user"] else row["host"]
    commit = (row["commit"] or "")[:10] + ("*" if row["modified"] else "")
    cells = (time_text(row["time_ms"]), row["kind"], row["name"], who, commit, row["what"])
    return tuple("".join(c if c.isprintable() else "?" for c in cell) for cell in cells)
