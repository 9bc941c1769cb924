"""``POST /predict/{model}``: entity keys in, predictions out.

A request passes: token, format, body, admission, decoding, model, rights, version, names, limits,
one read of the online store, one run of the network, reply. Reads and runs are shared with the
requests that arrive at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import msgspec
import numpy as np

from paimon_features.core.errors import OverloadedError
from paimon_features.core.types.array_types import Array
from paimon_features.core.types.statuses import STATUS_NAMES
from paimon_features.definitions.aggregates.fold import NEVER_MS
from paimon_features.definitions.selection import Codes
from paimon_features.serving.http.bodies.formats import (
    MEDIA_TYPES,
    Format,
    format_of_body,
    format_of_reply,
)
from paimon_features.serving.http.bodies.model_bodies import PredictRequest, decode_predict
from paimon_features.serving.http.bodies.rendered_reply import freshness_headers, statuses_once
from paimon_features.serving.http.definitions.served_models import BoundVersion
from paimon_features.serving.http.definitions.state import ServerState
from paimon_features.serving.http.endpoints.entity_requests import EntityRequests, EntityWork, Head
from paimon_features.serving.http.http_errors import Headers, RequestRejected, invalid_request
from paimon_features.serving.http.logs import StoreLog
from paimon_features.serving.http.messages import (
    ClientGoneError,
    Exchange,
    Finish,
    PendingWork,
    Reply,
    Request,
)
from paimon_features.serving.prediction.batcher import Prediction
from paimon_features.serving.prediction.network import Outputs, null_rows
from paimon_features.serving.replies.plain_values import plain_column
from paimon_features.serving.replies.response import OnlineResponse
from paimon_features.serving.request_log.log import RequestLog
from paimon_features.serving.request_log.prediction_log import PredictionId, PredictionLog
from paimon_features.serving.request_log.prediction_rows import Role

PREFIX = "/predict/"
ROUTE = "/predict/{model}"
MAX_EXPLAIN_ROWS = 1_024
"""Rows that the explanations of one request add to its run, with its own."""
_json = msgspec.json.Encoder().encode
_pack = msgspec.msgpack.Encoder().encode
_NAMES = np.array(STATUS_NAMES, np.object_)


class Predictions(EntityRequests):
    """Answers requests for predictions of entities.

    A sample of the reads is logged, and ``prediction_log`` gets the predictions.
    """

    def __init__(
        self,
        state: ServerState,
        store_log: StoreLog,
        request_log: RequestLog | None = None,
        prediction_log: PredictionLog | None = None,
        *,
        traced: bool = False,
    ) -> None:
        super().__init__(state, store_log, request_log, traced=traced)
        self.prediction_log = prediction_log

    def head(self, request: Request) -> Head:
        """Return rights and formats; predictions have no Arrow."""
        rights = self.state.authorize(request)
        body_format = format_of_body(request.content_type)
        if body_format is Format.ARROW:
            raise RequestRejected(
                "unsupported_media_type",
                "predictions take and return JSON and MessagePack; send the entity keys as lists",
            )
        reply_format = format_of_reply(request.accept, body_format)
        if reply_format is Format.ARROW:
            raise RequestRejected(
                "not_acceptable",
                f"predictions are written as {Format.JSON.value} or {Format.MESSAGE_PACK.value}",
            )
        return Head(rights, body_format, reply_format)

    def decode(self, request: Request, body: bytes | bytearray, head: Head) -> PredictRequest:
        """Return what the body says."""
        if request.query:
            raise invalid_request("the fields of a prediction belong in its body")
        return decode_predict(body, head.body_format)

    def submit(
        self,
        request: Request,
        decoded: PredictRequest,
        size: int,
        head: Head,
        admitted: int,
        finish: Finish,
        client: Exchange | None,
    ) -> _Work:
        """Submit what a body requests to the coalescer's queue."""
        state = self.state
        # nothing is awaited from here to the coalescer's queue: one set of definitions and of
        # models
        definitions = state.definitions
        model = state.models.of(request.path[len(PREFIX) :], head.rights, definitions)
        parsed = decoded.parsed()
        bound = model.version_for(
            definitions,
            parsed.columns,
            event=parsed.event,
            version=decoded.version or None,
            unit=decoded.unit or None,
        )
        plan = bound.plan
        assert plan is not None
        query, rows = definitions.query(parsed, plan, state.limits)
        if decoded.explain is True and rows * (1 + len(bound.inputs)) > MAX_EXPLAIN_ROWS:
            raise RequestRejected(
                "too_large",
                f"explanations of {rows:,} entities; expected at most "
                f"{MAX_EXPLAIN_ROWS // (1 + len(bound.inputs)):,} for this model: each input of an "
                "entity is one more row",
            )
        if decoded.full is True or decoded.explain is True:
            state.models.check_shown(
                bound, head.rights, definitions, explain=decoded.explain is True
            )
        state.note_rows(head.rights, rows)
        work = _Work(
            self, request, size, admitted, decoded, bound, rows, head.reply_format,
            finish, client,
        )  # fmt: skip
        work.pending = state.coalescer.submit(
            query, None, work.take, work.note_store_read if self.traced else None
        )
        return work

    def reply(self, work: _Work, response: OnlineResponse, outputs: Outputs) -> Reply:
        """Count an answered request; its reply."""
        self.note_answered()
        statuses = statuses_once(response)
        counts = self.state.counts
        features = len(work.bound.inputs)
        counts.answer(work.rows, work.rows * features, statuses or {})
        counts.predict(str(work.bound.manifest), work.rows)
        document = work.document(response, outputs)
        body = _json(document) if work.reply_format is Format.JSON else _pack(document)
        return Reply(
            200,
            MEDIA_TYPES[work.reply_format],
            body,
            (*freshness_headers(response.freshness), *version_headers(work.bound)),
            work.rows,
            features,
        )

    def log(
        self,
        work: _Work,
        bound: BoundVersion,
        role: Role,
        response: OnlineResponse,
        outputs: Outputs,
        of: PredictionId | None = None,
    ) -> PredictionId | None:
        """Log the predictions of a version for a request, if there is a log."""
        if self.prediction_log is None:
            return None
        return self.prediction_log.note(
            work.request.request_id, response, bound.manifest, bound.version.state.manifest, role,
            bound.features, outputs, of,
        )  # fmt: skip

    def run_shadows(
        self, work: _Work, response: OnlineResponse, outputs: Outputs, logged: PredictionId | None
    ) -> None:
        """Let shadow versions predict the same, for comparison; the client does not get it."""
        for shadow in work.bound.shadows:
            arrays, start, stop = shadow.inputs_of(response)
            deliver = partial(self._take_shadow, work, shadow, response, outputs[0], logged)
            self.state.batcher.submit_shadow(
                Prediction(shadow.network, arrays, start, stop, deliver)
            )

    def _take_shadow(
        self,
        work: _Work,
        shadow: BoundVersion,
        response: OnlineResponse,
        served: Array,
        logged: PredictionId | None,
        outputs: Outputs | Exception,
    ) -> None:
        """Count how far a shadow version is from the one that answered, and log it."""
        name = str(shadow.manifest)
        if not isinstance(outputs, Exception) and logged is not None:
            self.log(work, shadow, "shadow", response, outputs, logged)
        if isinstance(outputs, Exception):
            self.state.counts.shadow(name, 0, 0.0, failed=len(served))
            return
        if outputs[0].shape != served.shape:
            self.state.counts.shadow(name, len(served), 0.0)
            return
        difference = float(np.abs(outputs[0] - served).max(axis=1).sum())
        self.state.counts.shadow(name, len(served), difference if np.isfinite(difference) else 0.0)


class _Work(EntityWork):
    """A request from its admission to its reply."""

    __slots__ = (
        "_client",
        "_finish",
        "_of",
        "bound",
        "pending",
        "predict_request",
        "reply_format",
        "rows",
    )

    pending: PendingWork
    """The step that is waited for: the read, then the network."""

    def __init__(
        self,
        of: Predictions,
        request: Request,
        size: int,
        admitted: int,
        predict_request: PredictRequest,
        bound: BoundVersion,
        rows: int,
        reply_format: Format,
        finish: Finish,
        client: Exchange | None,
    ) -> None:
        super().__init__(request, size, admitted)
        self._of = of
        self.predict_request, self.bound, self.rows = predict_request, bound, rows
        self.reply_format = reply_format
        self._finish, self._client = finish, client

    def give_up(self) -> None:
        """Stop waiting for the reply, which nobody needs any more."""
        self.pending.give_up()

    def take(self, response: Any) -> None:
        """Take the features, or an error; the next step is the network."""
        if isinstance(response, BaseException):
            self._end(response)
            return
        try:
            log = self._of.request_log
            if log is not None:
                log.note(self.request.request_id, "", response)
            arrays, start, stop = self.bound.inputs_of(response)
            if self.predict_request.explain is True:
                arrays = ablated(self.bound, [array[start:stop] for array in arrays])
                start, stop = 0, len(arrays[0])
            client = self._client
            state = self._of.state
            prediction = Prediction(
                self.bound.network,
                arrays,
                start,
                stop,
                partial(self._answer, response),
                until_s=time.monotonic() + state.predict_timeout_s,
                is_wanted=None if client is None else lambda: not client.is_gone,
            )
            state.batcher.submit(prediction)
            self.pending = prediction
        except Exception as error:
            self._end(error)

    def _answer(self, response: OnlineResponse, outputs: Outputs | Exception) -> None:
        if isinstance(outputs, Exception):
            gone = self._client is not None and self._client.is_gone
            self._end(ClientGoneError() if gone else outputs)
            return
        try:
            reply: Reply | Exception = self._of.reply(self, response, outputs)
        except Exception as error:
            reply = error
        self._end(reply)
        if isinstance(reply, Exception):
            return
        row_outputs = [array[: self.rows] for array in outputs]
        logged = self._of.log(self, self.bound, self._role(), response, row_outputs)
        if self.bound.shadows:
            try:
                self._of.run_shadows(self, response, row_outputs, logged)
            except OverloadedError:
                return  # the server ends

    def _role(self) -> Role:
        """Return why the version answers."""
        if self.predict_request.version:
            return "requested"
        state = self.bound.version.state.state
        return "challenger" if state == "challenger" else "production"

    def _end(self, result: Reply | BaseException) -> None:
        self._of.leave(self)
        if isinstance(result, Reply | Exception):
            self._finish(result)

    # -- the reply -------------------------------------------------------------------------

    def document(self, response: OnlineResponse, outputs: Outputs) -> dict[str, Any]:
        """Return the reply's content."""
        manifest, signature = self.bound.manifest, self.bound.signature
        rows, first = self.rows, signature.outputs[0]
        numbers = self._numbers(response)
        out: dict[str, Any] = {
            "model": manifest.name,
            "version": manifest.version,
            "as_of_ms": response.as_of_ms,
            "predictions": plain_output(outputs[0][:rows]),
            "statuses": _statuses(response, numbers),
            "freshness": {view: asdict(of) for view, of in response.freshness.items()},
        }
        if response.own_event is not None:
            out["own_event"] = response.own_event
        if first.classes:
            out["classes"] = first.classes
        if len(outputs) > 1:
            out["outputs"] = {
                output.name: plain_output(array[:rows])
                for output, array in zip(signature.outputs[1:], outputs[1:], strict=True)
            }
        if self.predict_request.full is True or self.predict_request.explain is True:
            features = _features(response, numbers, binary=self.reply_format is not Format.JSON)
            if self.predict_request.full is True:
                out["features"] = features
            if self.predict_request.explain is True:
                out["explanations"] = self._explanations(features, response, outputs[0])
        return out

    def _numbers(self, response: OnlineResponse) -> dict[str, int]:
        """Return the version's own features, and which output of the read each is."""
        places = response.selection.places
        return {name: places[name] for name in self.bound.features}

    def _explanations(
        self, features: Mapping[str, Any], response: OnlineResponse, output: Array
    ) -> list[list[dict[str, Any]]]:
        """Return the inputs of each entity, those that contribute most first."""
        rows, inputs = self.rows, self.bound.inputs
        width = output.shape[1]
        # axes: (1 + inputs, rows, width)
        predicted = output.astype(np.float64).reshape(1 + len(inputs), rows, width)
        contributions = predicted[:1] - predicted[1:]
        order = np.argsort(-np.abs(contributions).max(axis=2), axis=0, kind="stable")
        out: list[list[dict[str, Any]]] = []
        for row in range(rows):
            entries = []
            for number in order[:, row].tolist():
                of = inputs[number]
                contribution = contributions[number, row]
                entry: dict[str, Any] = {
                    "input": of.name,
                    "of": of.of,
                    "contribution": _finite(
                        contribution.tolist()[0] if width == 1 else contribution.tolist()
                    ),
                }
                if of.source == "feature":
                    feature = features[of.of]
                    entry |= {
                        "value": feature["values"][row],
                        "status": feature["statuses"][row],
                        "event_time_ms": feature["event_times_ms"][row],
                    }
                else:
                    entry["value"] = response.keys[of.of][row]
                entries.append(entry)
            out.append(entries)
        return out


def ablated(bound: BoundVersion, arrays: Sequence[Array]) -> list[Array]:
    """Return the rows, and for each input all rows again with null in its place.

    Shape (rows * (1 + inputs), width): one block of rows for each input, in order.
    """
    rows = len(arrays[0])
    out = []
    for number, (of, array) in enumerate(zip(bound.inputs, arrays, strict=True)):
        blocks = np.concatenate([array] * (1 + len(arrays)))
        at = rows * (1 + number)
        blocks[at : at + rows] = null_rows(of, rows)
        out.append(blocks)
    return out


def plain_output(array: Array) -> list[Any]:
    """Return an output as JSON values: a number or a list for each row.

    Null for what is not finite.
    """
    values: list[Any] = (array[:, 0] if array.shape[1] == 1 else array).tolist()
    return values if np.isfinite(array).all() else [_finite(row) for row in values]


def _finite(values: Any) -> Any:
    """Return null for a number that is not finite, in a list, too."""
    if isinstance(values, list):
        return [_finite(value) for value in values]
    return values if np.isfinite(values) else None


def version_headers(bound: BoundVersion) -> Headers:
    """Return ``X-Model-Version``: the version that has answered."""
    return ((b"x-model-version", str(bound.manifest).encode()),)


def _statuses(response: OnlineResponse, numbers: Mapping[str, int]) -> list[str]:
    """Return the worst status of each row's features."""
    batch = response.batch
    key = "statuses", *numbers.values()
    worst: Codes | None = batch.rendered.get(key)
    if worst is None:
        arrays = {id(batch.codes[n]): batch.codes[n] for n in numbers.values()}
        worst = batch.rendered[key] = np.maximum.reduce(list(arrays.values()))
    names: list[str] = _NAMES[worst[response.start : response.stop]].tolist()
    return names


def _features(
    response: OnlineResponse, numbers: Mapping[str, int], *, binary: bool
) -> dict[str, Any]:
    """Return the values, statuses and event times of each feature."""
    batch, part = response.batch, slice(response.start, response.stop)
    return {
        name: {
            "values": plain_column(
                batch.types[number], batch.columns[number].part(part), binary=binary
            ),
            "statuses": _NAMES[batch.codes[number][part]].tolist(),
            "event_times_ms": [
                None if time_ms == NEVER_MS else time_ms
                for time_ms in batch.times[number][part].tolist()
            ],
        }
        for name, number in numbers.items()
    }
