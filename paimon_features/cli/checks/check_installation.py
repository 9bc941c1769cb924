"""``check installation``: what this machine and project lack, and what to do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from paimon_features.core.configuration.project_config import (
    FILE_NAME,
    ProjectConfig,
    find_root,
    read_config,
)
from paimon_features.core.errors import ConfigurationError, OnlineStoreError
from paimon_features.core.extras import installed
from paimon_features.core.installation.cache import cache_root
from paimon_features.core.installation.jars import DEFAULT_GROUPS
from paimon_features.project.doctor import (
    EXTRAS,
    Check,
    check_extra,
    check_folder,
    check_jars,
    check_java,
    check_native,
    check_online_store,
    check_python,
    check_redis_server,
    has_extra,
)

_LABELS = {"ok": ("OK", "green"), "missing": ("MISSING", "red"), "optional": ("-", "yellow")}


def check_installation(path: str, as_json: bool) -> None:
    """Check the requirements of machine and project; exit with 1 if anything is missing."""
    checks = [*_machine(), *_project(Path(path))]
    healthy = all(check.state != "missing" for check in checks)
    if as_json:
        document = {"healthy": healthy, "checks": [asdict(check) for check in checks]}
        click.echo(json.dumps(document, indent=2))
    else:
        for check in checks:
            label, colour = _LABELS[check.state]
            click.echo(f"{click.style(f'{label:8}', fg=colour)} {check.name}: {check.found}")
            if check.remedy:
                click.echo(f"{'':8}   {check.remedy}")
    raise SystemExit(0 if healthy else 1)


def _machine() -> Iterator[Check]:
    yield check_python()
    yield check_native()
    yield from map(check_extra, EXTRAS)
    # a serving or training host runs no jobs, and so needs no Java
    runs_jobs = has_extra("flink")
    yield check_java(needed=runs_jobs)
    for group in DEFAULT_GROUPS:
        yield check_jars(group, needed=runs_jobs)
    yield check_redis_server()
    yield check_folder("cache", cache_root())


def _project(folder: Path) -> Iterator[Check]:
    try:
        root = find_root(folder)
    except ConfigurationError:
        yield Check(
            "project", "optional", f"no {FILE_NAME} here", "create one: paimon-features init"
        )
        return
    if not installed("numpy"):
        remedy = "to check it: pip install 'paimon-features[lake]', or [serve]"
        yield Check("project", "optional", f"{root} was not read", remedy)
        return
    try:
        config = read_config(root)
    except ConfigurationError as error:
        yield Check("project", "missing", str(error), f"correct {root / FILE_NAME}")
        return
    yield Check("project", "ok", f"{config.name} in {root}")
    if "://" in config.warehouse:
        yield Check("warehouse", "ok", f"{config.warehouse} is not on this machine: not tried")
    else:
        yield check_folder("warehouse", Path(config.warehouse))
    yield check_folder("state", config.state_dir)
    yield _online(config)


def _online(config: ProjectConfig) -> Check:
    """Check that the project's online store responds, with the settings used for reads."""
    from paimon_features.online.store import OnlineSettings, open_store

    name, needed = "online store", has_extra("serve")
    try:
        settings = OnlineSettings.of(config.online, root=config.root)
    except ConfigurationError as error:
        return Check(name, "missing", str(error), "correct it there, or in the environment")
    if settings.mode == "memory":
        return Check(name, "ok", "memory://: each process has its own, gone with it")
    if settings.mode == "server" and not settings.tls:
        return check_online_store(settings.plain_url, needed)
    if not needed:
        remedy = "to reach it: pip install 'paimon-features[serve]'"
        return Check(name, "optional", f"{settings.where} was not checked", remedy)
    store = open_store(settings)
    try:
        store.check()
    except OnlineStoreError as error:
        return Check(name, "missing", str(error), "see docs/how-to/serving/online-store.md")
    finally:
        store.close()
    return Check(name, "ok", f"{settings.where} answers, and can be written to")
