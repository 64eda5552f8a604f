"""`server()`: methods, ports, start and stop, with grpc.aio's names.

| state | leads to |
| --- | --- |
| made | started: `start`, once. Ports are added before it |
| started | stopping: `stop(grace)`. No new calls; open ones have `grace` seconds, then they are cancelled |
| stopping | terminated: all connections are closed, 2 seconds later at most |
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, Final, NamedTuple

from trovemq_rpc.credentials import ServerCredentials, SharedPort
from trovemq_rpc.errors import UsageError, register_as_grpcs
from trovemq_rpc.listening import listen
from trovemq_rpc.loop_parts import LoopParts, loop_parts
from trovemq_rpc.metrics import Metrics
from trovemq_rpc.options import ChannelArguments, options_of
from trovemq_rpc.refused_names import refuse_interceptors
from trovemq_rpc.server.accepting import Listener, Refusal
from trovemq_rpc.server.call import ServerCall
from trovemq_rpc.server.call_endpoint import CallEndpoint
from trovemq_rpc.server.endpoint import ServerEndpoint
from trovemq_rpc.server.guest import MakeGuest
from trovemq_rpc.server.method import Method
from trovemq_rpc.server.methods import CallbackUnary, method_of
from trovemq_rpc.tls import Tls
from trovemq_rpc.wire.compression import Compression
from trovemq_rpc.wire.metadata import MetadataLike
from trovemq_rpc.wire.status import StatusCode

METHODS_FOUND_MAX: Final = 10_000
"""Remembered paths that generic handlers were asked for: more than servers have methods. Clients choose them.
"""
CLOSE_TIMEOUT_S: Final = 2.0  # for clients to read their last answers at a stop
STOP_LOOK_S: Final = 0.05  # between two looks whether the last call is over: hardly later than it is


class HandlerCallDetails(NamedTuple):
    """The part of a call by which a generic handler decides whether it has the method."""

    method: str
    invocation_metadata: MetadataLike


class Server:
    """Serves calls. Made by `server()`."""

    parts: LoopParts

    def __init__(
        self,
        thread_pool: Executor | None,
        handlers: Sequence[Any],
        options: ChannelArguments | None,
        maximum_concurrent_rpcs: int | None,
        compression: Any,
    ) -> None:
        self.thread_pool = thread_pool
        self.endpoint_options = options_of(options, server=True)
        if compression is None and self.endpoint_options.compression:
            compression = Compression(self.endpoint_options.compression)
        self.compression = None if compression is Compression.NoCompression else compression
        self.metrics = Metrics()
        self.endpoints: set[ServerEndpoint] = set()
        self.guests: dict[int, MakeGuest] = {}
        self.explanations: dict[int, str] = {}
        self.stopping = False
        self.calls_max = maximum_concurrent_rpcs
        self._generic = list(handlers)
        self._methods: dict[bytes, Method] = {}
        self._found: dict[bytes, Method | None] = {}
        self._sockets: list[tuple[socket.socket, ServerCredentials | SharedPort | None]] = []
        self._listeners: list[Listener] = []
        self._refusals: list[Refusal] = []  # of the first sockets, until `start`
        self._started = False
        self._terminated: asyncio.Event | None = None
        self._no_endpoints: asyncio.Event | None = None
        self._batches: list[Method] = []

    # --- methods ----------------------------------------------------------------------------------------
    def add_generic_rpc_handlers(self, generic_rpc_handlers: Iterable[Any]) -> None:
        self._generic.extend(generic_rpc_handlers)

    def add_registered_method_handlers(self, service_name: str, method_handlers: Mapping[str, Any]) -> None:
        for name, handler in method_handlers.items():
            path = f"/{service_name}/{name}"
            self._methods[path.encode()] = method_of(path, handler)

    def add_callback_handlers(self, service_name: str, handlers: Mapping[str, CallbackUnary]) -> None:
        """Callbacks for methods of a service. The last handler that is added for a method counts."""
        self.add_registered_method_handlers(service_name, handlers)

    def method(self, path: bytes) -> Method | None:
        found = self._methods.get(path)
        if found is not None or not self._generic:
            return found
        if path not in self._found:
            if len(self._found) >= METHODS_FOUND_MAX:
                self._found.clear()
            self._found[path] = self._look_up(path.decode("utf-8", "replace"))
        return self._found[path]

    def _look_up(self, path: str) -> Method | None:
        details = HandlerCallDetails(path, ())
        for generic in self._generic:
            handler = generic.service(details)
            if handler is not None:
                return method_of(path, handler)
        return None

    # --- ports ------------------------------------------------------------------------------------------
    def add_insecure_port(self, address: str) -> int:
        """Listens on the address; clients are served from `start` on. Returns the port. RuntimeError:
        another socket has the address, or it is not of this machine.
        """
        return self._add_port(address, None)

    def add_secure_port(self, address: str, server_credentials: ServerCredentials) -> int:
        if not isinstance(server_credentials, ServerCredentials):
            raise TypeError(
                "credentials must be trovemq_rpc's (ssl_server_credentials): grpcio's cannot be read"
            )
        return self._add_port(address, server_credentials)

    def share_port(self, port: int, server_credentials: ServerCredentials, *, tls_only: bool) -> None:
        """The plain port takes TLS, too, by the first byte of a connection. `tls_only`: and nothing else."""
        if self._started:
            raise UsageError("ports are shared before start")
        shared = SharedPort(server_credentials, tls_only)
        self._sockets = [
            (bound, shared if made is None and bound.getsockname()[1] == port else made)
            for bound, made in self._sockets
        ]

    def _add_port(self, address: str, credentials: ServerCredentials | None) -> int:
        if self._started:
            raise UsageError("ports are added before start")
        sockets, port = listen(address)
        self._sockets += [(bound, credentials) for bound in sockets]
        return port

    def add_guest(self, first_byte: int, make_guest: MakeGuest) -> None:
        """Connections that begin with that byte are of another protocol (guest.py), on every port."""
        if self._started:
            raise UsageError("guests are added before start")
        self.guests[first_byte] = make_guest

    def explain(self, first_byte: int, reason: str) -> None:
        """Connections that begin with that byte are refused, and the log has this reason."""
        self.explanations[first_byte] = reason

    def refuse_until_start(self) -> None:
        """Resets connections to the ports until `start`, so that clients try another server at once. Without
        it they wait for `start`, as with grpcio: for one that comes late, such as after a recovery, they
        would wait until their time to connect is over. Call it in the event loop.
        """
        loop = asyncio.get_running_loop()
        for bound, _ in self._sockets[len(self._refusals) :]:
            refusal = Refusal(loop, bound)
            refusal.start()
            self._refusals.append(refusal)

    # --- life -------------------------------------------------------------------------------------------
    async def start(self) -> None:
        if self._started:
            raise UsageError("the server was started already")
        self._started = True
        self._end_refusals()
        loop = asyncio.get_running_loop()
        self.parts = loop_parts(loop)
        self._terminated = asyncio.Event()
        self._no_endpoints = asyncio.Event()
        for bound, credentials in self._sockets:
            listener = Listener(loop, bound, partial(self.accept, credentials), self.metrics)
            listener.start()
            self._listeners.append(listener)

    def _end_refusals(self) -> None:
        for refusal in self._refusals:
            refusal.close()
        self._refusals.clear()

    def accept(self, credentials: ServerCredentials | SharedPort | None = None) -> ServerEndpoint:
        """The protocol of a new connection, for any transport of asyncio's."""
        if isinstance(credentials, SharedPort):
            return ServerEndpoint(self, None, credentials)
        tls = Tls(credentials.context, True) if credentials is not None else None
        return ServerEndpoint(self, tls)

    async def stop(self, grace: float | None) -> None:
        """Takes no new calls. Open ones have `grace` seconds; with None they are cancelled now. A second
        `stop` may shorten the time.
        """
        first = not self.stopping
        self.stopping = True
        self._end_refusals()
        for bound, _ in self._sockets:
            if not self._started:
                bound.close()
        if self._terminated is None:
            return
        if first:
            for listener in self._listeners:
                listener.close()
            for endpoint in tuple(self.endpoints):
                endpoint.drain()
        if grace and (self.metrics.calls_active or self.guests):
            await self._wait_for_calls(grace)
        self._cancel_calls()
        await self._close_connections()
        self._terminated.set()

    async def _wait_for_calls(self, grace: float) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + grace
        while self._is_working and loop.time() < end:
            assert self._no_endpoints is not None
            try:
                await asyncio.wait_for(
                    self._no_endpoints.wait(), min(STOP_LOOK_S, max(0.0, end - loop.time()))
                )
            except TimeoutError:
                continue
            break

    @property
    def _is_working(self) -> bool:
        """Whether calls are open, or requests of guests, which close when theirs are answered."""
        return bool(self.metrics.calls_active) or any(one.has_guest for one in self.endpoints)

    def _cancel_calls(self) -> None:
        for endpoint in tuple(self.endpoints):
            for call in tuple(endpoint.calls):
                call.finish(StatusCode.UNAVAILABLE, "the server stops")
                call.stop_work()

    async def _close_connections(self) -> None:
        """Each gets a moment to read its last answers."""
        for endpoint in tuple(self.endpoints):
            endpoint.flush()
            endpoint.linger()
        if self.endpoints:
            assert self._no_endpoints is not None
            self._no_endpoints.clear()
            try:
                await asyncio.wait_for(self._no_endpoints.wait(), CLOSE_TIMEOUT_S)
            except TimeoutError:
                for endpoint in tuple(self.endpoints):
                    endpoint.abort()

    async def wait_for_termination(self, timeout: float | None = None) -> bool:
        """True if the time passed first, as in grpc.aio."""
        assert self._terminated is not None, "the server was not started"
        try:
            await asyncio.wait_for(self._terminated.wait(), timeout)
        except TimeoutError:
            return True
        return False

    def endpoint_lost(self, endpoint: ServerEndpoint) -> None:
        self.endpoints.discard(endpoint)
        if not self.endpoints and self._no_endpoints is not None:
            self._no_endpoints.set()

    # --- calls ------------------------------------------------------------------------------------------
    def batch_ready(self, method: Method) -> None:
        """The method has its first call of this iteration of the loop."""
        if not self._batches:
            self.parts.loop.call_soon(self._run_batches)
        self._batches.append(method)

    def _run_batches(self) -> None:
        """Runs the callbacks. All answers that they give at once are one write a connection, with the output
        that the read of their calls left."""
        batches, self._batches = self._batches, []
        endpoints: set[CallEndpoint] = set()
        try:
            for method in batches:
                calls: list[ServerCall]
                calls, method.waiting = method.waiting, []
                for call in calls:
                    call.endpoint.gathering = True
                    endpoints.add(call.endpoint)
                calls = [call for call in calls if not call.over]
                if calls:
                    _run_batch(method, calls)
        finally:
            for endpoint in endpoints:
                endpoint.gathering = endpoint.answers_soon = False
            for endpoint in endpoints:
                endpoint.end_iteration()


def server(
    migration_thread_pool: Executor | None = None,
    handlers: Sequence[Any] | None = None,
    interceptors: Any = None,
    options: ChannelArguments | None = None,
    maximum_concurrent_rpcs: int | None = None,
    compression: Any = None,
) -> Server:
    """A server, as grpc.aio.server makes one. NotImplementedError: interceptors were given."""
    refuse_interceptors(interceptors)
    register_as_grpcs(Server=Server, ServicerContext=ServerCall)
    return Server(
        migration_thread_pool,
        handlers or (),
        options,
        maximum_concurrent_rpcs,
        compression,
    )


def _run_batch(method: Method, calls: list[ServerCall]) -> None:
    try:
        method.function(calls)
    except Exception as error:
        for call in calls:
            if not call.over:
                call.endpoint.callback_failed(call, error)
