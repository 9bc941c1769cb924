"""What the endpoints of one worker share, and what a reload replaces."""

from __future__ import annotations

from dataclasses import dataclass, field

from paimon_features.serving.http.access.access import ANYBODY, Rights
from paimon_features.serving.http.access.admission import Admission
from paimon_features.serving.http.access.quotas import Quotas
from paimon_features.serving.http.access.tokens import Tokens
from paimon_features.serving.http.bodies.body_thread import BodyThread
from paimon_features.serving.http.bodies.buffered_bytes import BufferedBytes
from paimon_features.serving.http.definitions.definition_set import DefinitionSet
from paimon_features.serving.http.definitions.served_models import ModelSet
from paimon_features.serving.http.http_errors import RequestRejected
from paimon_features.serving.http.limits import Limits
from paimon_features.serving.http.messages import Request
from paimon_features.serving.http.metrics import Counts
from paimon_features.serving.prediction.batcher import Batcher
from paimon_features.serving.reading.coalesce import Coalescer


@dataclass(slots=True, eq=False)
class ServerState:
    """One worker's state, used from its event loop only.

    A reload replaces ``definitions`` and ``tokens``, a promotion ``models``; a request keeps the
    definitions and models that it started with. ``reload_error`` says why the last reload failed,
    None if it succeeded; ``waiting_for`` are the views that newer definitions wait for. A
    prediction is made within ``predict_timeout_s``, or not at all.
    """

    definitions: DefinitionSet
    tokens: Tokens | None
    limits: Limits
    coalescer: Coalescer
    admission: Admission
    buffers: BufferedBytes
    counts: Counts
    batcher: Batcher
    predict_timeout_s: float
    quotas: Quotas
    bodies: BodyThread = field(default_factory=BodyThread)
    reload_error: str | None = field(default=None)
    waiting_for: tuple[str, ...] = ()
    models: ModelSet = field(default_factory=ModelSet)

    def knows_names(self, request: Request) -> bool:
        """Return True if the client may know the names of all views: anybody's on an open
        server."""
        if self.tokens is None:
            return True
        try:
            grants = self.tokens.rights(request.authorization).grants
        except RequestRejected:
            return False
        return grants.admin or grants.reads_everything

    def is_operator(self, request: Request) -> bool:
        """Return True if the client's token lets it read details of the host."""
        if self.tokens is None or not request.authorization:
            return False
        try:
            return self.tokens.rights(request.authorization).grants.admin
        except RequestRejected:
            return False

    def authorize(self, request: Request) -> Rights:
        """Return the rights of the client, whose name is noted in ``request`` for the access log.

        Raises
        ------
        RequestRejected
            401 without a known token, on a server with tokens; 429 over the client's quota.
        """
        if self.tokens is None:
            return ANYBODY
        rights = self.tokens.rights(request.authorization)
        request.client = rights.client
        rights.usage.requests += 1
        if rights.quota is not None:
            self.quotas.take_request(rights)
        return rights

    def note_rows(self, rights: Rights, rows: int) -> None:
        """Count the rows of a request that is about to be answered.

        Raises
        ------
        RequestRejected
            429 if the client is over its quota of rows.
        """
        rights.usage.rows += rows
        if rights.quota is not None:
            self.quotas.take_rows(rights, rows)
