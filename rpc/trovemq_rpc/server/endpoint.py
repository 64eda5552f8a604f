"""A connection of the server. Requests become calls; calls that are complete in one iteration of the loop go
to their callback handler together.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from typing import Any, Final, Protocol

from trovemq_rpc.credentials import SharedPort
from trovemq_rpc.endpoint import DRAIN_PAYLOAD
from trovemq_rpc.http2 import events as ev
from trovemq_rpc.http2.connection import Connection
from trovemq_rpc.http2.constants import STREAM_ID_LIMIT, ErrorCode
from trovemq_rpc.http2.headers import RequestHead
from trovemq_rpc.http2.streams import CLOSED, Stream
from trovemq_rpc.intake import NOTHING
from trovemq_rpc.loop_parts import LoopParts
from trovemq_rpc.metrics import Metrics
from trovemq_rpc.options import Options
from trovemq_rpc.rest import WORK_MAX, Share
from trovemq_rpc.server.call import ServerCall
from trovemq_rpc.server.call_endpoint import CallEndpoint
from trovemq_rpc.server.guest import MakeGuest
from trovemq_rpc.server.head import read_head
from trovemq_rpc.server.hosting import Hosting
from trovemq_rpc.server.method import BATCH, ON_HEADERS, Method
from trovemq_rpc.server.refusals import (
    HTTP_1,
    HTTP_1_ANSWER,
    TLS_HANDSHAKE,
    NotGrpc,
    Refused,
    refusal_fields,
)
from trovemq_rpc.server.running import log, run
from trovemq_rpc.tls import Tls
from trovemq_rpc.wire.status import StatusCode

IN_BUFFERS_S: Final = 5.0
"""How long our bytes may take to a client, through the kernel's buffers and a slow network."""


class EndpointServer(Protocol):
    """The part of a server that a connection needs."""

    parts: LoopParts
    endpoint_options: Options
    metrics: Metrics
    compression: Any
    thread_pool: Executor | None
    calls_max: int | None
    endpoints: set[ServerEndpoint]
    guests: dict[int, MakeGuest]
    explanations: dict[int, str]
    stopping: bool

    def method(self, path: bytes) -> Method | None: ...
    def batch_ready(self, method: Method) -> None: ...
    def endpoint_lost(self, endpoint: ServerEndpoint) -> None: ...


class ServerEndpoint(Hosting, CallEndpoint):
    """A client's connection."""

    counts_output = True

    server: EndpointServer

    def __init__(self, server: EndpointServer, tls: Tls | None, shared: SharedPort | None = None) -> None:
        options = server.endpoint_options
        assert options.budget is not None
        super().__init__(
            server.parts, Connection(False, options.limits), options, options.budget, server.metrics, tls
        )
        self.server = server
        self._shared = shared
        self.share, self.reads = Share(self.parts), Share(self.parts)
        self.compression = server.compression
        self.thread_pool = server.thread_pool
        self.calls: set[ServerCall] = set()
        self._draining = False
        self._is_counted = False
        self._last_ping = self._sent_at = float("-inf")
        self._ping_strikes = 0
        self._sent_before = (0, 0)
        self._idle_since = 0.0
        self._auth_context: Mapping[str, Iterable[bytes]] | None = None
        jitter = random.uniform(0.9, 1.1)  # noqa: S311 - spreads reconnections, guards nothing
        self._age_max = options.connection_age_s * jitter
        self._drain_at = 0.0

    # --- life -------------------------------------------------------------------------------------------
    def on_connected(self) -> None:
        self.server.endpoints.add(self)
        self._idle_since = self._started
        count = self.options.connections
        if self.server.stopping:
            self.abort()
        elif count is not None:
            self._is_counted = count.opened(self.peer())
            if not self._is_counted:
                self.refuse("it has as many connections as it may have")

    def on_lost(self, exc: Exception | None) -> None:
        if self._is_counted and self.options.connections is not None:
            self.options.connections.closed(self.peer())
        for call in tuple(self.calls):
            call.on_reset()
        self.lose_guest()
        self.server.endpoint_lost(self)

    def on_first_bytes(self, data: memoryview) -> bool:
        """Our SETTINGS waited for these bytes, so that a client of another protocol gets an answer it can
        read.
        """
        if self.pass_to_guest(data):
            return False
        begin = bytes(data[:4])
        if (shared := self._shared) is not None:
            self._shared = None  # what TLS brings is another first byte
            if begin[0] == TLS_HANDSHAKE[0]:
                self.tls = Tls(shared.credentials.context, True)
                self.tls.feed(data)
                self._receive_sealed(WORK_MAX)
                return False
            if shared.tls_only:
                self.refuse("a connection without TLS, on a port where tls_mode is enforcing")
                return False
        if begin[:2] == TLS_HANDSHAKE and self.tls is None:
            self.refuse("TLS on a port without it")
        elif begin in HTTP_1:
            self._write(HTTP_1_ANSWER if self.tls is None else self.tls.seal((HTTP_1_ANSWER,)))
            self.refuse("HTTP/1.1")
        elif begin[0] in self.server.guests:
            self.begin_guest(self.server.guests[begin[0]], data)
        elif begin[0] in self.server.explanations:
            self.refuse(self.server.explanations[begin[0]])
        elif self.tls is not None and self.tls.protocol != "h2":
            self.refuse("the peer did not choose h2 by ALPN")
        else:
            self.may_write = True
        return self.may_write

    # --- events -----------------------------------------------------------------------------------------
    def on_events(self, events: list[ev.Event]) -> None:
        for kind, stream, value, ended in events:
            owner = stream.owner if stream is not None else None
            if kind == ev.HEADERS:
                if stream.state != CLOSED:  # else it was reset by the same read
                    self._begin(stream, value, ended)
            elif kind == ev.DATA:
                if owner is None:
                    self.to_acknowledge += len(value)
                elif ended or owner.receiver is None or not owner.pass_on(value):
                    owner.on_data(value, ended)
            elif kind == ev.TRAILERS:
                if owner is not None:
                    owner.on_data(NOTHING, True)
            else:
                self._on_other(kind, stream, value)

    def _on_other(self, kind: int, stream: Any, value: Any) -> None:
        if kind == ev.RESET:
            name = ErrorCode(value).name if value in ErrorCode._value2member_map_ else str(value)
            self.metrics.count(self.metrics.resets_received, name)
            if stream.owner is not None:
                stream.owner.on_reset()
        elif kind == ev.WRITABLE:
            if stream.owner is not None:
                stream.owner.on_writable()
        elif kind == ev.TOO_LARGE:
            stream.owner = Refused(self)
            self._refuse_stream(stream, StatusCode.RESOURCE_EXHAUSTED, "the metadata is too large")
        elif kind == ev.PONG:
            if value == DRAIN_PAYLOAD:
                self._second_goaway()
        elif kind == ev.FAULT:
            self.options.log_refusal(self.peer(), f"the connection was ended: {value}")
            self.fault(value)

    def _begin(self, stream: Stream, head: RequestHead, ended: bool) -> None:
        known = head.cache
        if known is None:
            known = head.cache = read_head(
                head, self.server.method(head.path), self.options.accepted_encodings
            )
        if known.not_grpc:
            stream.owner = NotGrpc(self, stream)
            if ended:
                stream.owner.on_data(NOTHING, True)
            return
        refusal = known.refusal
        calls_max = self.server.calls_max
        if refusal is None and calls_max is not None and self.metrics.calls_active >= calls_max:
            self.metrics.calls_refused += 1
            refusal = (StatusCode.RESOURCE_EXHAUSTED, "Concurrent RPC limit exceeded!")
        if refusal is not None:
            stream.owner = Refused(self)
            self._refuse_stream(stream, *refusal)
            return
        call = stream.owner = ServerCall(self, stream, known)
        self.calls.add(call)
        metrics = self.metrics
        metrics.calls_started += 1
        metrics.calls_active += 1
        if known.timeout >= 0:
            call.deadline = deadline = self.loop.time() + known.timeout
            call.wheel_key = self.parts.wheel.add(deadline, call)
        if known.encoding != b"identity":
            call.encoding = known.encoding
        if call.method.begins == ON_HEADERS:
            self.start(call)
        if ended:
            call.on_data(NOTHING, True)

    def _refuse_stream(self, stream: Stream, code: StatusCode, details: str) -> None:
        """A status without a call."""
        if stream.state != CLOSED:
            fields = refusal_fields(code, details, self.options.accepted_encodings)
            self.connection.send_headers(stream, Connection.encode(fields), True)
        self.metrics.count(self.metrics.calls_ended, code.name)

    # --- handlers ---------------------------------------------------------------------------------------
    def request_complete(self, call: Any) -> None:
        """The one request of a unary call is there."""
        method = call.method
        if method.begins == BATCH:
            if not method.waiting:
                self.server.batch_ready(method)
            method.waiting.append(call)
            self.answers_soon = True
        else:
            message = call.message
            if not isinstance(message, bytes):
                call.message = bytes(message)
            self.start(call)

    def start(self, call: ServerCall) -> None:
        call.task = self.loop.create_task(run(call))

    @staticmethod
    def callback_failed(call: ServerCall, error: Exception) -> None:
        """Only the calls that a callback left unanswered fail."""
        log.exception("unexpected exception in %s", call.head.path, exc_info=error)
        call.finish(StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")

    def call_ended(self, call: ServerCall, status: str) -> None:
        self.calls.discard(call)
        metrics = self.metrics
        metrics.calls_active -= 1
        metrics.calls_ended[status] = metrics.calls_ended.get(status, 0) + 1
        if status != "CANCELLED":
            resets = self.connection.allowances.resets
            if resets.left < resets.capacity:
                resets.left += 1
        self._ping_strikes = 0
        if not self.calls:
            self._idle_since = self.quiet_until = 0.0
            if self._draining:
                self.loop.call_soon(self._close_if_drained)

    def flush_answer(self) -> None:
        """Writes at the end of the iteration if other calls are open: one of them may be answered in it."""
        if self.gathering:
            return
        if self.calls:
            self.flush_soon()
        else:
            self.flush()

    def linger_until_done(self, task: asyncio.Task[None]) -> None:
        """Counts the cancelled handler's task as a stream of the connection until it ends."""
        self.connection.lingering += 1
        task.add_done_callback(self._lingered)

    def _lingered(self, _task: asyncio.Task[None]) -> None:
        self.connection.lingering -= 1

    # --- keepalive of the client's ----------------------------------------------------------------------
    def on_pings(self, count: int) -> None:
        """Sends a client away that pings too often (gRPC's keepalive). A client also pings to measure its
        network while bytes of ours arrive there; so PINGs up to IN_BUFFERS_S after such bytes are free.
        """
        now = self.loop.time()
        connection = self.connection
        sent = (connection.streams_opened, connection.send_window)
        if sent != self._sent_before or not connection.can_write:
            self._sent_before = sent
            self._sent_at = now
        if now - self._sent_at < IN_BUFFERS_S:
            self._ping_strikes = 0
        elif count > 1 or now - self._last_ping < self.options.ping_interval_min_s:
            self._ping_strikes += count
            if self._ping_strikes > self.options.ping_strikes_max > 0:
                self.metrics.too_many_pings += 1
                self.goaway(ErrorCode.ENHANCE_YOUR_CALM, "too_many_pings")
        self._last_ping = now

    # --- drain (RFC 9113 section 6.8) -------------------------------------------------------------------
    def drain(self) -> None:
        """GOAWAY in two steps. The first asks for no new calls; the second, a round trip later, names the
        last call that is served. So a call that had left its client is served, too.
        """
        if self._draining or self.closing:
            return
        self._draining = True
        if self.drain_guest():
            return
        self.quiet_until = 0.0
        self._drain_at = self.loop.time()
        if not self.may_write:
            self.close()
            return
        self.connection.goaway(ErrorCode.NO_ERROR, b"draining", STREAM_ID_LIMIT)
        self.connection.ping(DRAIN_PAYLOAD)
        self.flush()
        self.loop.call_later(1.0, self._second_goaway)

    def _second_goaway(self) -> None:
        if self.connection.goaway_sent == STREAM_ID_LIMIT and not self.closing:
            self.connection.goaway(ErrorCode.NO_ERROR, b"draining")
            self.flush_soon()
            self._close_if_drained()

    def _close_if_drained(self) -> None:
        connection = self.connection
        if not self.calls and not connection.streams and connection.goaway_sent != STREAM_ID_LIMIT:
            self.flush()
            self.linger()

    # --- once a second ----------------------------------------------------------------------------------
    def on_tick(self, now: float) -> None:
        options = self.options
        if self._draining:
            self._close_if_drained()
            if now - self._drain_at > options.connection_age_grace_s:
                self.abort()
        elif now - self._started > self._age_max:
            self.drain()
        elif not self.calls:
            self._idle_since = self._idle_since or now
            if now - self._idle_since > options.connection_idle_s:
                self.drain()

    def until_next_look(self) -> float:
        if self._draining:
            return 0.0
        until = self._started + self._age_max
        return until if self.calls else min(until, self._idle_since + self.options.connection_idle_s)

    # --- names ------------------------------------------------------------------------------------------
    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """The client's certificate under grpc's names. It stays the same for the connection."""
        if self._auth_context is None:
            self._auth_context = self._read_auth_context()
        return self._auth_context

    def _read_auth_context(self) -> Mapping[str, Iterable[bytes]]:
        if self.tls is None:
            return {}
        context: dict[str, list[bytes]] = {"transport_security_type": [b"ssl"]}
        certificate: Any = self.tls.peer_certificate()
        if certificate:
            context["x509_subject_alternative_name"] = [
                value.encode() for _, value in certificate.get("subjectAltName", ())
            ]
            names = [
                value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"
            ]
            context["x509_common_name"] = [name.encode() for name in names]
        return {key: values for key, values in context.items() if values}
