"""Every RPC of a broker and of a nameserver in process: real services over a real engine, no sockets, a clock
of their own.

`BrokerServices` wires the parts of the broker's composition root, over any file system; `NameserverServices`
those of the nameserver's. `call(method, requests)` takes bytes and gives an `Outcome`, through the real
deserializer, error interceptor and serializer. For use inside of `tests.support.fake_loop.run`, whose time is
the services' clock.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self
from unittest.mock import patch

import grpc
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

from tests.support.call_forms import grpc_form
from tests.support.engine import NOW_MS
from trovemq_broker.admin.security_changes import SecurityChanges
from trovemq_broker.cluster_config.shared import SharedConfig
from trovemq_broker.daemon.broker_services import BrokerServices as AllServices
from trovemq_broker.daemon.opening import open_consumer_state
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.produce.sync_thread import Done, SyncThread
from trovemq_broker.security.sealing import KEY_SIZE, SealingKey, key_file_content
from trovemq_broker.security.table import SecurityTable
from trovemq_broker.server.access.audit import AuditLog
from trovemq_broker.server.access.broker_security import BrokerSecurity
from trovemq_broker.server.monitoring.traffic import Traffic
from trovemq_daemon.addresses import Address
from trovemq_daemon.calls import calls_of, for_batches, takes_one_request
from trovemq_daemon.handler_guard import ERROR_METADATA_KEY, HandlerGuard
from trovemq_daemon.metrics import RpcMetrics, new_registry
from trovemq_daemon.sessions import Sessions
from trovemq_nameserver.registration import RegistrationService
from trovemq_nameserver.routes import RouteLimits
from trovemq_nameserver.service import Registry, RouteService
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_proto.rocketmq.v2 import admin_pb2 as v2_admin_pb2
from trovemq_proto.rocketmq.v2 import service_pb2 as v2_service_pb2
from trovemq_proto.v1 import (
    admin_pb2,
    biography_pb2,
    broker_pb2,
    cluster_config_pb2,
    common_pb2,
    consumer_pb2,
    forwarding_pb2,
    group_pb2,
    message_pb2,
    producer_pb2,
    query_pb2,
    replica_pb2,
    route_pb2,
    search_pb2,
    security_pb2,
    store_pb2,
    transaction_pb2,
)
from trovemq_store.engine.message_store import MessageStore
from trovemq_store.files.files import FileSystem

ADVERTISED = Address("10.0.0.1", 8_081)
REPLIES_MAX = 10_000  # of one call: more means that it never ends
UNEXPECTED = frozenset({"UNKNOWN", "INTERNAL"})


def services_of(*modules: Any) -> list[ServiceDescriptor]:
    return [service for module in modules for service in module.DESCRIPTOR.services_by_name.values()]


NATIVE = tuple(
    service
    for service in services_of(
        admin_pb2,
        biography_pb2,
        broker_pb2,
        cluster_config_pb2,
        consumer_pb2,
        forwarding_pb2,
        group_pb2,
        message_pb2,
        producer_pb2,
        query_pb2,
        replica_pb2,
        route_pb2,
        search_pb2,
        security_pb2,
        store_pb2,
        transaction_pb2,
    )
    if service.name != "RegistrationService"
)
ROCKETMQ = tuple(services_of(v2_service_pb2, v2_admin_pb2))
NAMESERVER = tuple(services_of(route_pb2))


def methods_of(services: Sequence[ServiceDescriptor]) -> dict[str, MethodDescriptor]:
    """By full name."""
    return {method.full_name: method for service in services for method in service.methods}


def path_of(method: MethodDescriptor) -> str:
    """As it stands on the wire: RocketMQ's services go by RocketMQ's names there."""
    service = method.containing_service.full_name.replace("trovemq.rocketmq.v2", "apache.rocketmq.v2")
    return f"/{service}/{method.name}"


class InlineExecutor(ThreadPoolExecutor):
    """Does its work in the caller's thread: the same order in each run."""

    def submit(self, fn: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*arguments, **named))
        except BaseException as error:  # the waiter gets it, as from a thread
            future.set_exception(error)
        return future


class InlineSync(SyncThread):
    """Syncs in the caller's thread, and lets other tasks run."""

    def start(self, call: Callable[[], None], done: Done) -> None:
        failure: BaseException | None = None
        try:
            call()
        except BaseException as error:  # as the thread does
            failure = error
        asyncio.get_running_loop().call_soon(done, failure)


def clock_ms() -> EpochMs:
    """The loop's own time as epoch ms."""
    return NOW_MS + int(asyncio.get_running_loop().time() * 1_000)


class Ended(grpc.aio.AbortError):  # type: ignore[misc]  # grpc has no types
    """Raised by ServicerContext.abort."""


class _Asked:
    """The requests of a stream. No generator: one that a handler does not read to its end is left to the
    garbage collector, with all that its call had, and closed by a task later."""

    def __init__(self, asked: Iterator[Any]) -> None:
        self._asked = asked

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        for request in self._asked:
            await asyncio.sleep(0)
            return request
        raise StopAsyncIteration


class CallContext:
    """The server's side of one call. `requests` are the client's messages; then its side ends."""

    task: asyncio.Task[None] | None = None

    def __init__(self, requests: Sequence[Any] = (), metadata: Sequence[tuple[str, Any]] = ()) -> None:
        self.asked = iter(requests)
        self._metadata = tuple(metadata)
        self._done_callbacks: list[Callable[[Any], None]] = []
        self.written: list[Any] = []
        self.code = "OK"
        self.details = ""
        self.error: common_pb2.Error | None = None
        self.deadline_s = 30.0
        self.over = False

    def invocation_metadata(self) -> tuple[tuple[str, Any], ...]:
        return self._metadata

    def first_metadata(self, key: str) -> str | None:
        found = dict(self._metadata).get(key)
        return None if found is None else str(found)

    def peer(self) -> str:
        return "ipv4:127.0.0.1:5000"

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}  # a plain connection

    def time_remaining(self) -> float | None:
        return self.deadline_s

    def done(self) -> bool:
        return self.over

    def cancelled(self) -> bool:
        return False

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._done_callbacks.append(callback)

    def ended(self) -> None:
        """gRPC calls it when the reply is written."""
        self.over = True
        for callback in self._done_callbacks:
            callback(self)

    async def read(self) -> Any:
        await asyncio.sleep(0)
        request = next(self.asked, grpc.aio.EOF)
        if isinstance(request, TroveError):
            raise request  # as the door of a broker does
        return request

    def requests(self) -> AsyncIterator[Any]:
        return _Asked(self.asked)

    async def write(self, message: Any) -> None:
        self.written.append(message)

    async def abort(
        self, code: grpc.StatusCode, details: str = "", metadata: Sequence[tuple[str, Any]] = ()
    ) -> None:
        self.code, self.details = code.name, details
        self.set_error(metadata)
        raise Ended(details)

    def set_error(self, metadata: Sequence[tuple[str, Any]]) -> None:
        for name, value in metadata:
            if name == ERROR_METADATA_KEY:
                self.error = common_pb2.Error.FromString(value)


@dataclass(slots=True)
class Outcome:
    """The result for the client of one call."""

    code: str
    """gRPC's status; UNPARSED: the request's bytes were no message and gRPC refused them."""
    symbol: str = ""
    details: str = ""
    replies: list[bytes] = field(default_factory=list)
    sent: Sequence[bytes] = ()
    """The requests."""
    read: Callable[[bytes], Any] = bytes
    """The method's reader of requests."""

    @property
    def requests(self) -> list[Any]:
        """The requests as the service read them. Read when they are asked for: a copy that exists during the
        call would count as the service's memory."""
        return [self.read(request) for request in self.sent]


async def _called_back(callbacks: Any, request: bytes, context: CallContext) -> None:
    """One call on our own transport."""
    answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(code: grpc.StatusCode, details: str = "") -> None:
        context.code, context.details, context.over = code.name, details, True
        answered.set_result(None)

    def reply(message: Any) -> None:
        reply_all([message])

    def reply_all(messages: Sequence[Any]) -> None:
        context.written += messages
        context.over = True
        answered.set_result(None)

    vars(context).update(
        keep=lambda: request,
        reply=reply,
        reply_all=reply_all,
        fail=fail,
        set_trailing_metadata=context.set_error,
    )
    callbacks.on_calls([context])
    await answered


class Faults:
    """Unexpected exceptions that the services log, with their tracebacks."""

    def __init__(self) -> None:
        self.found: list[BaseException] = []

    def error(self, event: str, **fields: Any) -> None:
        found = fields.get("exc_info")
        self.found.append(found if isinstance(found, BaseException) else AssertionError(event, fields))

    def warning(self, _event: str, **_fields: Any) -> None:
        pass

    info = debug = warning

    def check(self) -> None:
        if self.found:
            raise AssertionError(f"an unexpected exception: {self.found[0]!r}") from self.found[0]


class Calls:
    """The handlers of some services, called as gRPC would."""

    def __init__(self, services: Sequence[ServiceDescriptor]) -> None:
        self.methods = methods_of(services)
        self.faults = Faults()
        self._guard = HandlerGuard(RpcMetrics(new_registry("1.2.3"), cluster="c", node_type="t", node_id="n"))
        self._handlers: dict[str, Any] = {}
        self._callbacks: dict[str, Any] = {}
        self._readers: dict[str, Any] = {}
        self._number = 0

    # --- for services ---------------------------------------------------------------------------------
    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        for name, one in handlers.items():
            path = f"/{service}/{name}"
            if not takes_one_request(one):
                self._handlers[path] = self._guard.streams(name, one)
                continue
            guarded = self._guard.calls(name, calls_of(one))
            self._handlers[path] = grpc_form(guarded)
            self._readers[path] = guarded.read
            if name != "WatchRoutes":  # it never ends
                self._callbacks[path] = for_batches(guarded)

    # --- for tests ------------------------------------------------------------------------------------
    def handler(self, name: str) -> Any:
        """The method's handler behind its guard; None where no service has it."""
        return self._handlers.get(path_of(self.methods[name]))

    def reader(self, name: str) -> Any:
        """The function that makes the method's request of its bytes."""
        path = path_of(self.methods[name])
        return self._readers.get(path) or self._handlers[path].request_deserializer or bytes

    async def call(
        self, name: str, requests: Sequence[bytes], metadata: Sequence[tuple[str, Any]] = ()
    ) -> Outcome:
        """One call of the method (full name); `requests` are one, or those of a stream."""
        handler = self.handler(name)
        if handler is None:
            return Outcome("UNIMPLEMENTED")
        context = CallContext((), metadata)
        self._number += 1
        callbacks = self._callbacks.get(path_of(self.methods[name])) if self._number % 2 else None
        read = self.reader(name)
        reads_itself = path_of(self.methods[name]) in self._readers
        try:
            given = list(requests) if reads_itself else [read(request) for request in requests]
        except Exception as error:  # gRPC refuses the call
            return Outcome("UNPARSED", details=str(error))
        context.asked = iter(given)
        replies: list[Any] = []
        try:
            if callbacks is not None:
                await _called_back(callbacks, requests[0], context)
            else:
                await self._serve(name, handler, given, context, replies)
        except grpc.aio.AbortError:
            pass
        context.ended()
        replies += context.written
        self.faults.check()
        symbol = context.error.symbol if context.error is not None else ""
        write = handler.response_serializer or bytes
        sent: list[bytes] = []
        for reply in replies:
            if sent:
                await asyncio.sleep(0)  # gRPC writes each reply in a separate step
            sent.append(reply if isinstance(reply, bytes) else write(reply))
        return Outcome(context.code, symbol, context.details, sent, requests, read)

    async def _serve(
        self, name: str, handler: Any, asked: list[Any], context: CallContext, replies: list[Any]
    ) -> None:
        some: Any = context
        if handler.stream_stream is not None:
            await handler.stream_stream(context.requests(), some)
        elif handler.unary_unary is not None:
            replies.append(await handler.unary_unary(asked[0], some))
        elif handler.stream_unary is not None:
            replies.append(await handler.stream_unary(context.requests(), some))
        else:
            async with aclosing(handler.unary_stream(asked[0], some)) as stream:
                async for reply in stream:
                    replies.append(reply)
                    assert len(replies) < REPLIES_MAX, "the stream of replies never ends"
                    if name.endswith(".WatchRoutes"):
                        return  # it continues for ever

    def parse(self, name: str, reply: bytes) -> Any:
        return GetMessageClass(self.methods[name].output_type).FromString(reply)


def security_on(files: FileSystem) -> BrokerSecurity:
    """Users and rules that can be administered; the doors do not ask who calls."""
    source = random.Random("security")
    key = SealingKey.parse(key_file_content(source.randbytes(KEY_SIZE)))
    table = SecurityTable.load(files, key, source.randbytes)
    sessions = Sessions(table, key.derive(b"salts"), source.randbytes)
    return BrokerSecurity(SecurityChanges(table), sessions, AuditLog(clock_ms), _admit_all)


def _admit_all(*_call: object) -> None:
    """As the doors do."""


class BrokerServices(Calls):
    """All services of one broker."""

    def __init__(
        self, files: FileSystem, settings: BrokerSettings, shared: SharedConfig | None = None
    ) -> None:
        super().__init__((*NATIVE, *ROCKETMQ))
        self.files = files
        self.settings = settings
        self.store = MessageStore.open(files, settings.store_settings(ADVERTISED), clock_ms(), process_id=42)
        self.model = open_consumer_state(self.store, settings)
        self.all = AllServices(
            *(self.store, self.model, settings, ADVERTISED, "1.2.3"),
            traffic=Traffic(),
            security=security_on(files),
            shared=shared,
        )
        self.core = self.all.core
        server: Any = self
        self.all.add_to(server)

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """For the time of the block its background work runs. An error that ends a task of it is raised."""
        tasks = {"group-commit": asyncio.create_task(self.core.group_commit.run())}
        tasks |= {name: asyncio.create_task(work) for name, work in self.all.background().items()}
        try:
            yield
            for name, task in tasks.items():
                if task.done():
                    raise AssertionError(f"the task {name} ended: {task.exception()!r}")
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)


class NameserverServices(Calls):
    def __init__(self, limits: RouteLimits | None = None) -> None:
        super().__init__(NAMESERVER)
        self.registry = Registry(limits or RouteLimits(), 64, clock_ms)
        server: Any = self
        RouteService(self.registry, name=lambda: "10.0.0.9:9876", version="1.2.3").add_to(server)
        RegistrationService(self.registry).add_to(server)


@contextmanager
def in_process() -> Iterator[None]:
    """Clock, threads and loggers of the daemons' modules, for services that live in the test's process."""
    with ExitStack() as stack:
        for module in ("trovemq_broker.daemon.opening", "trovemq_broker.daemon.broker_services"):
            stack.enter_context(patch(f"{module}.clock_ms", clock_ms))
        stack.enter_context(patch("trovemq_broker.produce.group_commit.SyncThread", InlineSync))
        stack.enter_context(
            patch("trovemq_broker.server.core.pace.time", SimpleNamespace(monotonic=_loop_time))
        )
        stack.enter_context(patch("trovemq_broker.daemon.broker_services.set_log_level", lambda _level: None))
        asyncio.get_running_loop().set_default_executor(InlineExecutor())
        yield


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


@contextmanager
def faults_seen(calls: Calls) -> Iterator[None]:
    """Unexpected errors of these calls are kept with their tracebacks, instead of logged."""
    modules = (
        "trovemq_daemon.handler_guard",
        "trovemq_broker.server.wire.statuses",
        "trovemq_broker.server.native.store_service",
        "trovemq_nameserver.registration",
        "trovemq_nameserver.service",
    )
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(patch(f"{module}.get_logger", lambda: calls.faults))
        yield


def small_broker_settings(path: Path = Path("/nowhere"), **values: Any) -> BrokerSettings:
    small: dict[str, Any] = {
        "commit_log_file_size": 98_304,
        "consume_queue_file_size": 4_000,
        "index_slot_count": 500,
        "index_item_count": 1_000,
        "body_size_max": 8_192,
        "batch_size_max": 32_768,
        "timer_log_file_size": 65_536,
        "projection_flush_interval_ms": 2_000,
        "event_interval_ms": 1_000,
        "long_poll_wait_max_ms": 1_000,
        "disk_warning_percent": 100,  # the machine's own disk decides nothing
        "disk_forcible_percent": 100,
        "disk_used_percent_max": 100,
        "store": str(path),
    }
    return BrokerSettings(**{**small, **values})
