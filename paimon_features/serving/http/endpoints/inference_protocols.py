"""Predictions from ready-made inputs, by the Open Inference Protocol (version 2) and as MLflow's
scoring server takes them, and the list of models.

https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol,
https://mlflow.org/docs/latest/ml/deployment/deploy-model-locally/
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from paimon_features._version import __version__
from paimon_features.core.documents.redaction import redact
from paimon_features.core.errors import shortened, unknown_name
from paimon_features.core.times.clock import now_ms
from paimon_features.core.types.array_types import Array
from paimon_features.models import SHARES, ModelSignature
from paimon_features.serving.http.access.access import Rights
from paimon_features.serving.http.bodies.model_bodies import (
    DATATYPES,
    InferRequest,
    decode_infer,
    decode_invocation,
    infer_arrays,
    invocation_arrays,
)
from paimon_features.serving.http.definitions.health import StoreProbe
from paimon_features.serving.http.definitions.served_models import BoundVersion, LoadedModel
from paimon_features.serving.http.definitions.state import ServerState
from paimon_features.serving.http.endpoints.predictions import plain_output, version_headers
from paimon_features.serving.http.http_errors import RequestRejected, invalid_request, not_ready
from paimon_features.serving.http.messages import (
    Handler,
    Receive,
    Reply,
    Request,
    answer_of,
    json_reply,
    read_body,
)
from paimon_features.serving.prediction.batcher import Prediction
from paimon_features.serving.prediction.network import Outputs

V2 = "/v2"
INVOCATIONS = "/invocations"
_JSON = b"application/json"
_READY = {True: 200, False: 400}
"""Statuses by the protocol: 200 for yes, 4xx for no."""
_JSON_TYPES = (b"", b"application/json", b"application/x-www-form-urlencoded")
_PLATFORM = "onnxruntime_onnx"
_CODES = {
    401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "RESOURCE_DOES_NOT_EXIST",
    429: "REQUEST_LIMIT_EXCEEDED", 503: "TEMPORARILY_UNAVAILABLE",
}  # fmt: skip
"""Codes of MLflow (``mlflow.protos.databricks_pb2.ErrorCode``) by status; its scoring server
answers other requests that it cannot read with BAD_REQUEST."""


class ModelPages:
    """The endpoints of models other than ``/predict``."""

    def __init__(self, state: ServerState, probe: StoreProbe) -> None:
        self._state = state
        self._probe = probe
        self.routes: dict[str, tuple[str, Handler]] = {
            "/models": ("GET", self._models),
            INVOCATIONS: ("POST", self._invocations),
            V2: ("GET", self._server),
            f"{V2}/health/live": ("GET", self._live),
            f"{V2}/health/ready": ("GET", self._ready),
        }
        """Method and handler by path."""

    def route_of(self, path: str) -> tuple[str, str, Handler] | None:
        """Return the route, the method and the handler of a path of one model.

        None for other paths.
        """
        parts = path.split("/")
        if parts[:3] != ["", "v2", "models"] or len(parts) < 4 or not parts[3]:
            return None
        rest, version = parts[4:], ""
        route = f"{V2}/models/{{model}}"
        if len(rest) >= 2 and rest[0] == "versions":
            version, rest = rest[1], rest[2:]
            route += "/versions/{version}"
        if not rest:
            return route, "GET", self._of_model(parts[3], version, self._metadata)
        if rest == ["ready"]:
            return f"{route}/ready", "GET", self._of_model(parts[3], version, self._model_ready)
        if rest == ["infer"]:
            return f"{route}/infer", "POST", self._infer_of(parts[3], version)
        return None

    # -- the list --------------------------------------------------------------------------

    async def _models(self, request: Request, receive: Receive) -> Reply:
        state = self._state
        rights = state.authorize(request)
        definitions, models = state.definitions, state.models
        document = {
            "models": [
                _described(model, model.bound(definitions))
                for name, model in sorted(models.models.items())
                if models.may_use(name, rights, definitions)
            ]
        }
        return json_reply(document)

    # -- the Open Inference Protocol ---------------------------------------------------------

    async def _server(self, request: Request, receive: Receive) -> Reply:
        return json_reply({"name": "paimon-features", "version": __version__, "extensions": []})

    async def _live(self, request: Request, receive: Receive) -> Reply:
        return json_reply({"live": True})

    async def _ready(self, request: Request, receive: Receive) -> Reply:
        definitions = self._state.definitions
        store = await self._probe.check(definitions)
        limits = {view.name: view.max_staleness_ms for view in definitions.views}
        ready = not store.reasons(limits, now_ms())
        ready = ready and not self._state.models.unserved(definitions)
        return json_reply({"ready": ready}, _READY[ready])

    def _of_model(
        self,
        name: str,
        version: str,
        answer: Callable[[LoadedModel, str], Reply],
    ) -> Handler:
        async def handle(request: Request, receive: Receive) -> Reply:
            state = self._state
            rights = state.authorize(request)
            model = state.models.of(name, rights, state.definitions)
            return answer(model, version)

        return handle

    def _metadata(self, model: LoadedModel, version: str) -> Reply:
        bound = self._version(model, version)
        signature = bound.signature
        return json_reply(
            {
                "name": model.name,
                "versions": [str(number) for number in sorted(model.versions)],
                "platform": _PLATFORM,
                "inputs": [
                    {
                        "name": model_input.name,
                        "datatype": DATATYPES[model_input.dtype],
                        "shape": [-1, model_input.width],
                        "parameters": {"of": model_input.of, "type": model_input.type},
                    }
                    for model_input in signature.inputs
                ],
                "outputs": [
                    {"name": output.name, "datatype": "FP32", "shape": [-1, output.width]}
                    for output in signature.outputs
                ],
            }
        )

    def _model_ready(self, model: LoadedModel, version: str) -> Reply:
        try:
            self._version(model, version)
        except RequestRejected as rejection:
            if rejection.status == 404:
                raise
            return json_reply({"name": model.name, "ready": False}, _READY[False])
        return json_reply({"name": model.name, "ready": True}, _READY[True])

    def _infer_of(self, name: str, version: str) -> Handler:
        async def infer(request: Request, receive: Receive) -> Reply:
            async def answer(body: bytes | bytearray, rights: Rights) -> Reply:
                state = self._state
                model = state.models.of(name, rights, state.definitions)
                bound = self._version(model, version)

                def decoded() -> tuple[InferRequest, set[str], list[Array], int]:
                    infer_request = decode_infer(body, state.limits)
                    requested = _requested_outputs(infer_request, bound.signature)
                    inputs = infer_arrays(infer_request, bound.signature, state.limits)
                    return infer_request, requested, *inputs

                infer_request, requested, arrays, rows = await state.bodies.run(len(body), decoded)
                state.note_rows(rights, rows)
                outputs = await self._predict(bound, arrays, rows)
                document: dict[str, Any] = {
                    "model_name": model.name,
                    "model_version": str(bound.manifest.version),
                    "outputs": [
                        {
                            "name": output.name,
                            "datatype": "FP32",
                            "shape": [rows, output.width],
                            "data": plain_output(array.reshape(-1, 1)),
                        }
                        for output, array in zip(bound.signature.outputs, outputs, strict=True)
                        if output.name in requested
                    ],
                }
                if isinstance(infer_request.id, str):
                    document["id"] = infer_request.id
                return self._reply(bound, rows, document)

            return await self._with_body(request, receive, answer)

        return infer

    # -- MLflow ----------------------------------------------------------------------------

    async def _invocations(self, request: Request, receive: Receive) -> Reply:
        async def answer(body: bytes | bytearray, rights: Rights) -> Reply:
            state = self._state
            model = state.models.of(self._named(request, rights), rights, state.definitions)
            bound = self._version(model, "")

            def decoded() -> tuple[list[Array], int]:
                form, content = decode_invocation(body, state.limits)
                return invocation_arrays(form, content, bound.signature, state.limits)

            arrays, rows = await state.bodies.run(len(body), decoded)
            state.note_rows(rights, rows)
            outputs = await self._predict(bound, arrays, rows)
            return self._reply(bound, rows, {"predictions": plain_output(outputs[0])})

        return await self._with_body(request, receive, answer)

    def _named(self, request: Request, rights: Rights) -> str:
        """Return the model of an invocation: that of the query, or the only one."""
        state = self._state
        if request.query:
            try:
                fields = dict(
                    parse_qsl(request.query.decode(), strict_parsing=True, max_num_fields=2)
                )
            except ValueError:
                fields = {}
            if fields.keys() != {"model"}:
                query = shortened(request.query.decode("latin-1"))
                raise invalid_request(f"query {query!r}; expected model=NAME or nothing")
            return fields["model"]
        usable = [
            name
            for name in sorted(state.models.models)
            if state.models.may_use(name, rights, state.definitions)
        ]
        if not usable and state.models.problem is not None:
            raise not_ready("the models of this server could not be read, and are read again")
        if len(usable) != 1:
            raise RequestRejected(
                "invalid_request" if usable else "unknown_name",
                f"there are the models {', '.join(usable[:20])}: name one, as in "
                f"{INVOCATIONS}?model={usable[0]}"
                if usable
                else "no model here; 'paimon-features models promote' puts one into production",
            )
        return usable[0]

    # -- shared ----------------------------------------------------------------------------

    async def _with_body(
        self,
        request: Request,
        receive: Receive,
        answer: Callable[[bytes | bytearray, Rights], Awaitable[Reply]],
    ) -> Reply:
        """Read and admit a request with ready-made inputs, and answer it."""
        state, limits = self._state, self._state.limits
        rights = state.authorize(request)
        media = request.content_type.partition(b";")[0].strip().lower()
        if media not in _JSON_TYPES:
            raise RequestRejected(
                "unsupported_media_type",
                f"content-type {request.content_type[:80].decode('latin-1')!r}; expected "
                "application/json",
            )
        body = await read_body(
            request, receive, limits.max_body_bytes, state.buffers, limits.body_timeout_s
        )
        try:
            admitted = state.admission.enter(len(body), time.perf_counter())
            try:
                return await answer(body, rights)
            finally:
                state.admission.leave(admitted, time.perf_counter())
        finally:
            state.buffers.free(len(body))

    def _version(self, model: LoadedModel, version: str) -> BoundVersion:
        number = None
        if version:
            if not version.isascii() or not version.isdigit() or len(version) > 10:
                raise RequestRejected(
                    "unknown_name",
                    f"unknown version {version[:40]!r} of model {model.name!r}; versions are "
                    "numbers",
                )
            number = int(version)
        return model.version_for(self._state.definitions, None, version=number)

    async def _predict(self, bound: BoundVersion, arrays: Sequence[Array], rows: int) -> Outputs:
        state = self._state

        def begin(deliver: Callable[[Outputs | Exception], None]) -> Prediction:
            prediction = Prediction(
                bound.network, arrays, 0, rows, deliver,
                until_s=time.monotonic() + state.predict_timeout_s,
            )  # fmt: skip
            state.batcher.submit(prediction)
            return prediction

        return await answer_of(begin)

    def _reply(self, bound: BoundVersion, rows: int, document: object) -> Reply:
        self._state.counts.predict(str(bound.manifest), rows)
        body = msgspec.json.encode(document)
        return Reply(200, _JSON, body, version_headers(bound), rows, len(bound.inputs))


def model_error(request: Request, rejection: RequestRejected) -> bytes | None:
    """Return the body of an error as the protocol of the path has it; None for other paths."""
    detail = redact(rejection.detail)
    if request.path == V2 or request.path.startswith(f"{V2}/"):
        return msgspec.json.encode({"error": f"{detail} (request id {request.request_id})"})
    if request.path == INVOCATIONS:
        code = _CODES.get(rejection.status)
        if code is None:
            code = "INTERNAL_ERROR" if rejection.status >= 500 else "BAD_REQUEST"
        return msgspec.json.encode(
            {"error_code": code, "message": f"{detail} (request id {request.request_id})"}
        )
    return None


def _requested_outputs(infer_request: InferRequest, signature: ModelSignature) -> set[str]:
    """Return the names of the requested outputs; all by default."""
    names = [output.name for output in signature.outputs]
    if not infer_request.outputs:
        return set(names)
    requested = [output.name for output in infer_request.outputs]
    for name in requested:
        if name not in names:
            raise invalid_request(unknown_name("output", name, names))
    return set(requested)


def _described(model: LoadedModel, bound: Mapping[int, BoundVersion]) -> dict[str, Any]:
    versions = []
    for state in model.states.versions:
        version = bound.get(state.version)
        entry: dict[str, Any] = {
            "version": state.version,
            "state": state.state,
            "share": state.traffic / SHARES,
            "ready": version is not None and version.problem is None,
        }
        if version is not None:
            manifest, signature = version.manifest, version.signature
            entry |= {
                "kind": manifest.kind,
                "task": signature.task,
                "service": signature.service,
                "created_at_ms": manifest.created_at_ms,
                "entities": {key.name: key.type for key in signature.entities},
                "features": list(version.features),
                "outputs": [
                    {"name": output.name, "width": output.width, "classes": list(output.classes)}
                    for output in signature.outputs
                ],
                "metrics": {name: metric.value for name, metric in manifest.metrics.items()},
            }
            if version.changed:
                entry["changed_features"] = list(version.changed)
            if version.problem is not None:
                entry["problem"] = version.problem
        versions.append(entry)
    document: dict[str, Any] = {"name": model.name, "versions": versions}
    if model.problem is not None:
        document["problem"] = model.problem
    return document
