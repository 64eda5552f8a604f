"""A scripted server in the test's own loop: routes, appends, fetches and queries as the test wants them.

It keeps the requests, so that tests can check the client's bytes on the wire. Hooks answer in its stead;
without hooks every frame is acknowledged at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Self

import grpc
import grpc.aio

from tests.support.fake_consuming import CONSUMER, FakeConsuming
from tests.support.fake_producers import FakeProducers
from tests.support.stubs import ADMIN, CONFIG, MESSAGES, PRODUCERS, QUERIES, ROUTES, add_fake
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.forwarding import BROKER_KEY
from trovemq_proto.records import Message, RecordBatch, pack_host
from trovemq_proto.v1 import (
    admin_pb2,
    common_pb2,
    message_pb2,
    query_pb2,
    route_pb2,
)

FrameHook = Callable[[message_pb2.AppendFrame], Awaitable[message_pb2.AppendReply | None]]
FetchHook = Callable[[message_pb2.FetchRequest], Awaitable[message_pb2.FetchReply | None]]
QueryHook = Callable[[query_pb2.QueryByKeyRequest], list[query_pb2.QueryPage]]


def wire_error(error: TroveError) -> common_pb2.Error:
    """As the servers write it."""
    spec = error.spec
    return common_pb2.Error(symbol=spec.symbol, code=spec.code, message=error.message, fields=error.fields)


async def abort(context: Any, error: TroveError) -> None:
    """Ends a call as the servers do."""
    status = grpc.StatusCode[error.spec.grpc_status]
    trailer = (("trovemq-error-bin", wire_error(error).SerializeToString()),)
    await context.abort(status, error.message, trailer)


class FakeServer:
    """One server; `role` is BROKER or NAMESERVER. With `tls` it listens by TLS alone.

    Attributes:
        routes: The routes of RouteService; change them with `set_routes`.
        frames: Every AppendFrame that came.
        streams: Append streams opened so far.
        consuming: Its groups.
        deferred: The service for delayed and half messages.
        config: The methods of ClusterConfigService that it has; None: it is older.
    """

    def __init__(
        self,
        name: str = "fake",
        *,
        role: str = "BROKER",
        address: str | None = None,
        tls: grpc.ServerCredentials | None = None,
    ) -> None:
        self.name = name
        self.role = role
        self.address = address or ""
        self.routes: list[common_pb2.BrokerRoute] = []
        self.lost: dict[str, route_pb2.LostBroker] = {}  # by topic
        self.routes_asked: list[str] = []  # topics
        self.version = 1
        self.now_ms = 1_700_000_000_000  # not the clock of the machine, which a client must not ask
        self.frames: list[message_pb2.AppendFrame] = []
        self.fetches: list[message_pb2.FetchRequest] = []
        self.queries: list[query_pb2.QueryByKeyRequest] = []
        self.gets: list[query_pb2.GetMessageRequest] = []
        self.streams = 0
        self.on_frame: FrameHook | None = None
        self.next_sequence: int | TroveError = 0
        """The answer for producers that number their messages."""
        self.producers: list[str] = []
        """The ids of those that asked."""
        self.on_fetch: FetchHook | None = None
        self.on_query: QueryHook | None = None
        self.on_get: Callable[[query_pb2.GetMessageRequest], query_pb2.GetMessageReply] | None = None
        self.on_queue_offsets: Callable[[], query_pb2.QueueOffsetsReply] | None = None
        self.next_offsets: dict[int, int] = {}
        self.physical_offset = 0
        self.consuming = FakeConsuming()
        self.deferred = FakeProducers(abort)
        self.config: object = None
        self.node = ""
        """Of a node of a replica group; `leader`: the one that leads."""
        self.leader: common_pb2.GroupLeader | None = None
        self.infos_asked = 0
        self.others_count = 0
        self.others: list[str] = []
        """Of its cluster: how many are live, and those to which it forwards look-ups."""
        self.others_watched = True
        """Whether its routes have that number; an earlier version has it in ServerInfo alone."""
        self.relayed: dict[str, FakeServer | None] = {}
        """The brokers that it reaches by name; None: not now."""
        self.on_info: Callable[[], Awaitable[object]] | None = None
        self.on_describe: Callable[[str], admin_pb2.TopicDescription] | None = None
        self._changed: list[asyncio.Event] = []
        self._server: Any = None
        self._stopping: asyncio.Future[None] | None = None
        self._tls = tls

    # --- life -----------------------------------------------------------------------------------------

    async def start(self) -> Self:
        """Listens; on the address it had before, if it had one. The server before has given it back."""
        if self._stopping is not None:
            await self._stopping
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        add_fake(self._server, ROUTES, _Routes(self))
        add_fake(self._server, MESSAGES, _Messages(self))
        add_fake(self._server, QUERIES, _Queries(self))
        add_fake(self._server, CONSUMER, self.consuming)
        add_fake(self._server, PRODUCERS, self.deferred)
        add_fake(self._server, CONFIG, self.config)
        add_fake(self._server, ADMIN, _Admin(self))
        address = self.address or "127.0.0.1:0"
        if self._tls is None:
            port = self._server.add_insecure_port(address)
        else:
            port = self._server.add_secure_port(address, self._tls)
        self.address = f"127.0.0.1:{port}"
        await self._server.start()
        return self

    async def stop(self) -> None:
        """Breaks every connection off."""
        if self._server is not None:
            server, self._server = self._server, None
            self._stopping = asyncio.ensure_future(server.stop(None))
            await asyncio.shield(self._stopping)  # it may be a call of this server that stops it

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    # --- routes ---------------------------------------------------------------------------------------

    def info(self, **changes: Any) -> common_pb2.BrokerInfo:
        """This broker's own."""
        values: dict[str, Any] = {
            "cluster": "c", "name": self.name, "address": self.address,
            "body_size_max": 4 << 20, "batch_size_max": 4 << 20,
        }  # fmt: skip
        return common_pb2.BrokerInfo(**{**values, **changes})

    def route(
        self,
        topics: dict[str, int],
        *,
        message_type: str = "NORMAL",
        placement: dict[str, int] | None = None,
        **changes: Any,
    ) -> common_pb2.BrokerRoute:
        """This broker with topics (name -> queue count)."""
        entries = [
            common_pb2.TopicRoute(
                topic=topic, queue_count=count, message_type=message_type, placement=placement
            )
            for topic, count in topics.items()
        ]
        return common_pb2.BrokerRoute(broker=self.info(**changes), topics=entries)

    def serve_topics(self, **topics: int) -> Self:
        """Routes to itself alone."""
        self.set_routes(self.route(topics))
        return self

    def set_routes(self, *routes: common_pb2.BrokerRoute) -> None:
        """Sets new routes and notifies the watchers."""
        self.routes = list(routes)
        self.version += 1
        for changed in self._changed:
            changed.set()

    def cluster(self) -> route_pb2.ClusterReply:
        """Of a node of a replica group that has no routes: that it does not lead."""
        refusal = wire_error(TroveError(errors.NOT_LEADER, "it follows"))
        follows = bool(self.node) and not self.routes
        return route_pb2.ClusterReply(
            brokers=self.routes,
            version=self.version,
            refusal=refusal if follows else None,
            other_brokers=self.others_count if self.others_watched and self.role == "BROKER" else None,
        )

    # --- appends --------------------------------------------------------------------------------------

    def acknowledgement(self, frame: message_pb2.AppendFrame) -> message_pb2.AppendReply:
        """Stores nothing and says PUT_OK."""
        count = len(RecordBatch.split(frame.records))
        first = self.next_offsets.get(frame.queue_id, 0)
        self.next_offsets[frame.queue_id] = first + count
        physical_offset = self.physical_offset
        self.physical_offset += len(frame.records)
        return message_pb2.AppendReply(
            frame_id=frame.frame_id,
            status=common_pb2.PUT_OK,
            first_queue_offset=first,
            physical_offset=physical_offset,
            record_count=count,
            store_timestamp=1_700_000_000_000,
            durability=common_pb2.DISK,
            store_host=pack_host(self.address),
            broker=self.name,
        )

    async def acknowledge(self, frame: message_pb2.AppendFrame) -> message_pb2.AppendReply | None:
        """The FrameHook that stores everything."""
        return self.acknowledgement(frame)

    def refusal(self, frame: message_pb2.AppendFrame, error: TroveError) -> message_pb2.AppendReply:
        """Says that the frame was not stored."""
        return message_pb2.AppendReply(
            frame_id=frame.frame_id,
            status=common_pb2.UNKNOWN_ERROR,
            error=wire_error(error),
            broker=self.name,
        )

    def messages(self) -> list[Message]:
        """Every message of every frame, in the order they came."""
        return [message for frame in self.frames for message in RecordBatch.split(frame.records).messages()]


class _Routes:
    def __init__(self, fake: FakeServer) -> None:
        self._fake = fake

    async def get_server_info(self, request: Any, context: Any) -> route_pb2.ServerInfo:
        fake = self._fake
        fake.infos_asked += 1
        if fake.on_info is not None:
            await fake.on_info()
        return route_pb2.ServerInfo(
            role=fake.role,
            version="0",
            name=fake.name,
            now=fake.now_ms,
            node=fake.node,
            leader=fake.leader,
            other_brokers=fake.others_count,
            other_names=fake.others,
        )

    async def get_route(self, request: Any, context: Any) -> route_pb2.RouteReply:
        self._fake.routes_asked.append(request.topic)
        lost = self._fake.lost.get(request.topic)
        return route_pb2.RouteReply(lost=[] if lost is None else [lost])

    async def get_cluster(self, request: Any, context: Any) -> route_pb2.ClusterReply:
        return self._fake.cluster()

    async def watch_routes(self, request: Any, context: Any) -> AsyncIterator[route_pb2.ClusterReply]:
        changed = asyncio.Event()
        self._fake._changed.append(changed)
        try:
            while True:
                changed.clear()
                yield self._fake.cluster()
                await changed.wait()
        finally:
            self._fake._changed.remove(changed)


class _Admin:
    def __init__(self, fake: FakeServer) -> None:
        self._fake = fake

    async def describe_topic(self, request: Any, context: Any) -> admin_pb2.TopicDescription:
        if self._fake.on_describe is None:
            await abort(context, TroveError(errors.TOPIC_NOT_FOUND, f"topic {request.topic} is not here"))
            raise AssertionError("abort raises")
        return self._fake.on_describe(request.topic)


class _Messages:
    def __init__(self, fake: FakeServer) -> None:
        self._fake = fake

    async def append(self, frames: Any, context: Any) -> None:
        self._fake.streams += 1
        async for frame in frames:
            self._fake.frames.append(frame)
            reply = await (self._fake.on_frame or self._fake.acknowledge)(frame)
            if reply is not None and not frame.one_way:
                await context.write(reply)

    async def get_producer(
        self, request: message_pb2.GetProducerRequest, context: Any
    ) -> message_pb2.GetProducerReply:
        self._fake.producers.append(request.producer_id)
        if isinstance(self._fake.next_sequence, TroveError):
            await abort(context, self._fake.next_sequence)
            raise AssertionError
        return message_pb2.GetProducerReply(next_sequence=self._fake.next_sequence)

    async def fetch(self, requests: Any, context: Any) -> None:
        async for request in requests:
            self._fake.fetches.append(request)
            assert self._fake.on_fetch is not None
            reply = await self._fake.on_fetch(request)
            if reply is None:
                return
            await context.write(reply)


class _Queries:
    def __init__(self, fake: FakeServer) -> None:
        self._fake = fake

    def _answering(self, context: Any) -> FakeServer:
        """The broker that the call names. TroveError BROKER_UNREACHABLE."""
        name = dict(context.invocation_metadata()).get(BROKER_KEY)
        if name is None:
            return self._fake
        found = self._fake.relayed[name]
        if found is None:
            raise TroveError(errors.BROKER_UNREACHABLE, f"broker {name} is away")
        return found

    async def query_by_key(self, request: Any, context: Any) -> AsyncIterator[query_pb2.QueryPage]:
        try:
            fake = self._answering(context)
            fake.queries.append(request)
            assert fake.on_query is not None
            pages = fake.on_query(request)
        except TroveError as error:
            await abort(context, error)
            return
        for page in pages:
            yield page

    async def get_message(self, request: Any, context: Any) -> query_pb2.GetMessageReply:
        try:
            fake = self._answering(context)
            fake.gets.append(request)
            assert fake.on_get is not None
            return fake.on_get(request)
        except TroveError as error:
            await abort(context, error)
            raise AssertionError("abort raises") from error

    async def queue_offsets(self, request: Any, context: Any) -> query_pb2.QueueOffsetsReply:
        assert self._fake.on_queue_offsets is not None
        return self._fake.on_queue_offsets()
