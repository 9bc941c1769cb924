"""Paimon's own server of REST catalogs, from the tests of its core, in a JVM of its own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paimon_features.core.installation.jars import class_path
from paimon_features.core.installation.java import find_java_home
from paimon_features.lake.storage.rest_catalog import RestCatalog

TOKEN = "token-of-the-tests"
JAR_GROUPS = ("rest-catalog", "flink")
"""In this order: Hadoop has an older okio."""


@dataclass(frozen=True)
class CatalogServer:
    """``settings`` are how to reach it; ``java`` is Paimon's server, ``jvm`` the JVM's classes."""

    settings: RestCatalog
    java: Any
    jvm: Any

    def lose_replies(self, lose: bool) -> None:
        """Let the server answer with an error after it has made a commit."""
        self._static("commitSuccessThrowException").set(None, lose)

    def requests(self) -> int:
        """The number of requests since the last call."""
        number = len(self.java.getReceivedHeaders())
        self.java.clearReceivedHeaders()
        return number

    def tables(self, database: str) -> list[str]:
        """The names of the tables that the server knows, sorted."""
        from pypaimon import CatalogFactory

        return sorted(CatalogFactory.create(self.settings.options()).list_tables(database))

    def _static(self, name: str) -> Any:
        return self.java.getClass().getField(name)


@contextmanager
def catalog_server(folder: Path) -> Iterator[CatalogServer]:
    """Serve the catalog ``shop``, whose files are in ``folder``."""
    import pyflink
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    jars = [class_path([group]) for group in JAR_GROUPS]
    jars.append(str(Path(pyflink.__file__).parent / "lib" / "*"))
    port = launch_gateway(
        classpath=os.pathsep.join(jars),
        java_path=str(find_java_home() / "bin" / "java"),
        javaopts=["-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"],
        die_on_exit=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    try:
        jvm = gateway.jvm
        # its own lines of a log, one for each request
        jvm.java.util.logging.LogManager.getLogManager().reset()
        defaults = jvm.java.util.HashMap()
        defaults.put("prefix", "paimon")
        # not empty: Paimon's client expects both, and its server omits an empty one
        overrides = jvm.java.util.HashMap()
        overrides.put("owner", "tests")
        config = jvm.org.apache.paimon.rest.responses.ConfigResponse(defaults, overrides)
        auth = jvm.org.apache.paimon.rest.auth.BearTokenAuthProvider(TOKEN)
        server = jvm.org.apache.paimon.rest.RESTCatalogServer(folder.as_uri(), auth, config, "shop")
        server.start()
        yield CatalogServer(RestCatalog(server.getUrl(), "shop", TOKEN), server, jvm)
        server.shutdown()
    finally:
        gateway.shutdown()
