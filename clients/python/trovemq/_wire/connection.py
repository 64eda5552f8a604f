"""One gRPC channel to one server, with a method for each call; every failure is a TroveError."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from trovemq.models.all_brokers import TopicDeletion
from trovemq.models.cluster import (
    BrokerStatistics,
    ClusterState,
    LostBroker,
    OffsetReset,
    QueueOffsets,
    ServerInfo,
    TopicDescription,
)
from trovemq.options import ClientOptions
from trovemq_proto import errors
from trovemq_proto.channels import ChannelSettings, Transport, open_channel, transport_of
from trovemq_proto.errors import TroveError
from trovemq_proto.forwarding import REDIRECTS_KEY
from trovemq_proto.v1 import admin_pb2, message_pb2, query_pb2, route_pb2

from . import convert
from .failures import error_of_call, unreachable
from .route_replies import RoutesJoiner, read_routes
from .session import SignedChannel

_SERVICE = "/trovemq.v1."
REDIRECTS = (REDIRECTS_KEY, "1")
"""The client goes to a leader itself: a node that does not lead refuses its calls, and forwards none."""


class Request(Protocol):
    """A protobuf message."""

    def SerializeToString(self) -> bytes: ...  # noqa: N802  protobuf's name


Metadata = Sequence[tuple[str, str]]

_Reply = TypeVar("_Reply")


class Stream:
    """An open bidirectional stream; one `write` and one `read` may wait at a time."""

    def __init__(
        self,
        call: Any,
        server: str,
        transport: Transport,
        failed: Callable[[TroveError], None] = lambda _error: None,
    ) -> None:
        self._call = call
        self._server = server
        self._failed = failed
        self._failures = transport.failures
        self._end_of_stream = transport.end_of_stream
        self._writes_at_once = hasattr(call, "writable")

    async def read(self) -> Any:
        """The next reply.

        Raises:
            TroveError: The stream ended: with the peer's error, or BROKER_UNREACHABLE.
        """
        try:
            reply = await self._call.read()
        except TroveError as error:  # of a signed call
            self._failed(error)
            raise
        except self._failures as failure:
            raise await self._error(failure) from failure
        if reply is self._end_of_stream:
            ended = unreachable(self._server, "the server closed the stream")
            self._failed(ended)
            raise ended
        return reply

    async def _error(self, failure: BaseException) -> TroveError:
        error = await error_of_call(self._call, failure, self._server)
        self._failed(error)
        return error

    def set_receiver(self, receiver: Callable[[Any], bool]) -> None:
        """On our own transport, `receiver` gets the replies that arrive while `read` waits; that needs no
        task. When it returns False, `read` returns them."""
        if hasattr(self._call, "set_receiver"):
            self._call.set_receiver(receiver)

    async def send(self, frame: bytes) -> None:
        """Writes one frame. Raises TroveError if the stream is broken."""
        try:
            await self._call.write(frame)
        except self._failures as failure:
            raise await self._error(failure) from failure

    @property
    def writable(self) -> bool:
        """Whether `send_now` may be called; never on grpcio's transport."""
        return self._writes_at_once and self._call.writable

    def send_now(self, frame: bytes, *, alone: bool) -> None:
        """Writes one frame from a callback. `alone`: no other waits for its answer. Raises TroveError if the
        stream is broken."""
        try:
            self._call.write_now(frame, alone=alone)
        except self._failures as failure:
            raise unreachable(self._server, str(failure)) from failure

    async def end(self) -> None:
        """Ends the sending side; later errors do not matter."""
        try:
            await self._call.done_writing()
        except self._failures as failure:
            if isinstance(failure, asyncio.CancelledError):
                raise

    def cancel(self) -> None:
        """Cancels the stream at once."""
        self._call.cancel()


class Connection:
    """The calls of one server. Connects when it is first used, and again after a break.

    Args:
        address: HOST:PORT or [IPV6]:PORT.
        options: Timeouts and sizes.
        settings: Settings of its channel; None for those of the options.
        failed: Called with the error of each call and stream that fails.
    """

    def __init__(
        self,
        address: str,
        options: ClientOptions,
        settings: ChannelSettings | None = None,
        failed: Callable[[TroveError], None] = lambda _error: None,
    ) -> None:
        self._address = address
        self._options = options
        self._failed = failed
        settings = settings or options.channel_settings()
        transport = transport_of(settings.transport)
        self._transport = transport
        self._failures = transport.failures
        self._channel: Any = open_channel(address, settings)
        credentials = options.credentials()
        if credentials is not None:
            self._channel = SignedChannel(
                self._channel, address, credentials, self._failures, options.connect_timeout_ms
            )
        self._unary: dict[str, Any] = {}

    @property
    def address(self) -> str:
        """HOST:PORT of the server."""
        return self._address

    @property
    def max_lag_ms(self) -> int:
        """The longest lag of a replica that reads bear; 0: any."""
        return self._options.max_lag_ms

    async def close(self) -> None:
        """Ends every call on it and closes the channel."""
        await self._channel.close()

    # --- streams --------------------------------------------------------------------------------------

    def open_append(self) -> Stream:
        """An Append stream: takes serialised frames, `read` gives AppendOutcome."""
        from .streams import append_outcome  # imports NumPy, which look-ups do not need

        return self.open(_SERVICE + "MessageService/Append", append_outcome)

    def open_fetch(self) -> Stream:
        """A Fetch stream: takes serialised requests, `read` gives streams.FetchAnswer."""
        from .streams import fetch_answer

        return self.open(_SERVICE + "MessageService/Fetch", fetch_answer)

    async def watch_routes(self) -> AsyncGenerator[ClusterState, None]:
        """The present routes, then new ones after each change. Raises TroveError when the stream ends."""
        request = route_pb2.WatchRoutesRequest(changes=True, removed_brokers=True, parts=True)
        state, joiner = ClusterState(()), RoutesJoiner()
        async for data in self.replies(_SERVICE + "RouteService/WatchRoutes", request, bytes):
            if (reply := joiner.add(data)) is None:
                continue
            state = convert.changed_state(state, reply) if reply.changes else convert.cluster_state(reply)
            yield state
        raise unreachable(self.address, "the server closed the stream")

    async def query_pages(
        self, topic: str, key: str, kind: str, *, begin: int, end: int, messages_max: int, cursor: str
    ) -> AsyncIterator[convert.QueryPageAnswer]:
        """The pages of one key query, the last one marked."""
        request = query_pb2.QueryByKeyRequest(
            topic=topic,
            key=key,
            type="UNIQUE" if kind == "message_id" else kind.upper(),
            begin=begin,
            end=end,
            messages_max=messages_max,
            cursor=cursor,
            max_lag_ms=self.max_lag_ms,
        )
        timeout_ms = self._options.call_timeout_ms
        method, decode = _SERVICE + "QueryService/QueryByKey", query_pb2.QueryPage.FromString
        async for page in self.replies(method, request, decode, timeout_ms=timeout_ms):
            yield convert.query_page(page)

    # --- routes ---------------------------------------------------------------------------------------

    async def server_info(self) -> ServerInfo:
        """The server at this address; waits at most `connect_timeout_ms`."""
        timeout_ms = self._options.connect_timeout_ms
        request, decode = route_pb2.GetServerInfoRequest(), route_pb2.ServerInfo.FromString
        return convert.server_info(await self._ask("RouteService/GetServerInfo", request, decode, timeout_ms))

    async def clock_ms(self) -> int:
        """The time by the broker's clock, epoch ms; by this machine's where an older broker has none."""
        return (await self.server_info()).now or time.time_ns() // 1_000_000

    async def cluster(self) -> ClusterState:
        """Every live broker with its topics: in one message, or in parts if that is too large for one."""
        try:
            data = await self._ask("RouteService/GetCluster", route_pb2.GetClusterRequest(), bytes)
        except TroveError as error:
            if error.spec is not errors.LIMIT_EXCEEDED:
                raise
            return await self._first_routes()
        return convert.cluster_state(read_routes(route_pb2.ClusterReply, data))

    async def _first_routes(self) -> ClusterState:
        """The first reply of a watcher, within `call_timeout_ms`."""
        try:
            async with asyncio.timeout(self._options.call_timeout_ms / 1_000):
                async with aclosing(self.watch_routes()) as states:
                    return await anext(states)
        except TimeoutError:
            text = f"{self.address} did not send all routes in time"
            raise TroveError(errors.REQUEST_TIMEOUT, text) from None

    async def lost_brokers_of(self, topic: str) -> tuple[LostBroker, ...]:
        """The lost brokers that had the topic, as a nameserver knows them; waits at most
        `connect_timeout_ms`."""
        timeout_ms = self._options.connect_timeout_ms
        request = route_pb2.GetRouteRequest(topic=topic)
        data = await self._ask("RouteService/GetRoute", request, bytes, timeout_ms)
        return convert.lost_brokers(read_routes(route_pb2.RouteReply, data))

    # --- queries --------------------------------------------------------------------------------------

    async def get_message(self, id: str, topic: str) -> convert.FoundRecords:  # noqa: A002  RocketMQ's word
        """The records with that offsetMsgId or message id."""
        return await self._get(query_pb2.GetMessageRequest(id=id, topic=topic, max_lag_ms=self.max_lag_ms))

    async def get_message_at(self, topic: str, queue_id: int, queue_offset: int) -> convert.FoundRecords:
        """The record at that place of a queue."""
        location = query_pb2.QueueLocation(topic=topic, queue_id=queue_id, queue_offset=queue_offset)
        request = query_pb2.GetMessageRequest(location=location, topic=topic, max_lag_ms=self.max_lag_ms)
        return await self._get(request)

    async def _get(self, request: query_pb2.GetMessageRequest) -> convert.FoundRecords:
        decode = query_pb2.GetMessageReply.FromString
        return convert.found_records(await self._ask("QueryService/GetMessage", request, decode))

    async def search_offset(self, topic: str, queue_id: int, timestamp: int, upper: bool) -> int:
        """The queue offset that belongs to a time."""
        request = query_pb2.SearchOffsetRequest(
            topic=topic, queue_id=queue_id, timestamp=timestamp, upper=upper, max_lag_ms=self.max_lag_ms
        )
        decode = query_pb2.SearchOffsetReply.FromString
        return (await self._ask("QueryService/SearchOffset", request, decode)).offset

    async def queue_offsets(self, topic: str, queue_ids: tuple[int, ...], broker: str) -> list[QueueOffsets]:
        """The valid offsets of these queues of the topic; of all queues if none is named."""
        request = query_pb2.QueueOffsetsRequest(topic=topic, queue_ids=queue_ids, max_lag_ms=self.max_lag_ms)
        decode = query_pb2.QueueOffsetsReply.FromString
        return convert.queue_offsets(await self._ask("QueryService/QueueOffsets", request, decode), broker)

    async def next_sequence(self, topic: str, producer_id: str) -> int:
        """The next number of a producer that numbers its messages."""
        request = message_pb2.GetProducerRequest(topic=topic, producer_id=producer_id)
        decode = message_pb2.GetProducerReply.FromString
        return (await self._ask("MessageService/GetProducer", request, decode)).next_sequence

    # --- admin ----------------------------------------------------------------------------------------

    async def create_topic(
        self,
        topic: str,
        queue_count: int,
        message_type: str,
        options: Mapping[str, str],
        brokers: Sequence[str] = (),
    ) -> TopicDescription:
        """Creates a topic; durable before the answer. `brokers`: where its configuration is the cluster's."""
        request = admin_pb2.CreateTopicRequest(
            topic=topic,
            queue_count=queue_count,
            message_type=message_type,
            options=options,
            brokers=brokers,
        )
        return await self._topic("CreateTopic", request)

    async def alter_topic(
        self,
        topic: str,
        queue_count: int,
        message_type: str,
        options: Mapping[str, str],
        placement: Mapping[str, int] = MappingProxyType({}),
    ) -> TopicDescription:
        """Changes a topic; 0 and empty values change nothing."""
        request = admin_pb2.AlterTopicRequest(
            topic=topic,
            queue_count=queue_count,
            message_type=message_type,
            options=options,
            placement=placement,
        )
        return await self._topic("AlterTopic", request)

    async def describe_topic(self, topic: str, with_sizes: bool = False) -> TopicDescription:
        """The topic with its queues."""
        request = admin_pb2.DescribeTopicRequest(topic=topic, with_sizes=with_sizes)
        return await self._topic("DescribeTopic", request)

    async def _topic(self, method: str, request: Request) -> TopicDescription:
        decode = admin_pb2.TopicDescription.FromString
        return convert.topic_description(await self._ask("AdminService/" + method, request, decode))

    async def list_topics(self, include_system: bool, *, elsewhere: bool = False) -> list[TopicDescription]:
        """Every topic, without its queues; `elsewhere`: also those that lie on other brokers alone, as its
        configuration says, without a broker's name."""
        request = admin_pb2.ListTopicsRequest(include_system=include_system, elsewhere=elsewhere)
        reply = await self._ask("AdminService/ListTopics", request, admin_pb2.ListTopicsReply.FromString)
        return [convert.topic_description(topic) for topic in reply.topics]

    async def delete_topic(self, topic: str, broker: str) -> TopicDeletion:
        """Deletes a topic. `broker`: the one that is asked."""
        request, decode = admin_pb2.DeleteTopicRequest(topic=topic), admin_pb2.DeleteTopicReply.FromString
        reply = await self._ask("AdminService/DeleteTopic", request, decode)
        return convert.topic_deletion(reply, broker)

    async def commit_offset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Stores a group's offset; durable before the answer."""
        request = admin_pb2.CommitOffsetRequest(group=group, topic=topic, queue_id=queue_id, offset=offset)
        await self._ask("AdminService/CommitOffset", request, admin_pb2.CommitOffsetReply.FromString)

    async def get_offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """A group's offset; None if it has none."""
        request = admin_pb2.GetOffsetRequest(group=group, topic=topic, queue_id=queue_id)
        reply = await self._ask("AdminService/GetOffset", request, admin_pb2.GetOffsetReply.FromString)
        return None if reply.offset < 0 else reply.offset

    async def reset_offset(
        self, group: str, topic: str, queue_id: int | None, target: dict[str, Any], broker: str
    ) -> list[OffsetReset]:
        """Sets a group's offsets; `target` is one of timestamp, offset, to_min, to_max."""
        request = admin_pb2.ResetOffsetRequest(group=group, topic=topic, queue_id=queue_id, **target)
        reply = await self._ask("AdminService/ResetOffset", request, admin_pb2.ResetOffsetReply.FromString)
        return convert.offset_resets(reply, broker)

    async def statistics(self, *, topics: bool = False) -> BrokerStatistics:
        """The broker's counters, and with `topics` the traffic of each topic."""
        request, decode = admin_pb2.GetStatisticsRequest(topics=topics), admin_pb2.Statistics.FromString
        return convert.statistics(await self._ask("AdminService/GetStatistics", request, decode))

    async def ask(
        self, method: str, request: Request, decode: Callable[[bytes], _Reply], timeout_ms: int | None = None
    ) -> _Reply:
        """One unary call of `Service/Method`, within `call_timeout_ms` unless another time is given."""
        return await self._ask(method, request, decode, timeout_ms)

    async def _ask(
        self, method: str, request: Request, decode: Callable[[bytes], _Reply], timeout_ms: int | None = None
    ) -> _Reply:
        return await self.call(_SERVICE + method, request, decode, timeout_ms=timeout_ms)

    # --- calls of any service; `method` is its whole path ---------------------------------------------

    async def call(
        self,
        method: str,
        request: Request,
        decode: Callable[[bytes], _Reply],
        *,
        timeout_ms: int | None = None,
        metadata: Metadata = (),
    ) -> _Reply:
        """One request, one answer, within `call_timeout_ms` unless another time is given. Raises
        TroveError."""
        multi_call = self._unary.get(method)
        if multi_call is None:
            multi_call = self._unary[method] = self._channel.unary_unary(method, response_deserializer=decode)
        timeout = (timeout_ms or self._options.call_timeout_ms) / 1000
        asked = multi_call(request.SerializeToString(), timeout=timeout, metadata=(*metadata, REDIRECTS))
        try:
            reply: _Reply = await asked
        except TroveError as error:  # of a signed call
            self._failed(error)
            raise
        except self._failures as failure:
            raise await self._error(asked, failure) from failure
        return reply

    async def upload(
        self,
        method: str,
        frames: Iterable[bytes],
        decode: Callable[[bytes], _Reply],
        *,
        timeout_ms: int,
    ) -> _Reply:
        """A stream of serialised requests, one answer. Raises TroveError."""

        async def requests() -> AsyncIterator[bytes]:
            for frame in frames:
                yield frame

        multi_call = self._channel.stream_unary(method, response_deserializer=decode)
        asked = multi_call(requests(), timeout=timeout_ms / 1000, metadata=(REDIRECTS,))
        try:
            reply: _Reply = await asked
        except self._failures as failure:
            raise await self._error(asked, failure) from failure
        return reply

    async def replies(
        self,
        method: str,
        request: Request,
        decode: Callable[[bytes], _Reply],
        *,
        timeout_ms: int | None = None,
        metadata: Metadata = (),
    ) -> AsyncGenerator[_Reply, None]:
        """One request, a stream of answers, without a time limit unless one is given."""
        multi_call = self._channel.unary_stream(method, response_deserializer=decode)
        timeout = None if timeout_ms is None else timeout_ms / 1000
        call = multi_call(request.SerializeToString(), timeout=timeout, metadata=(*metadata, REDIRECTS))
        try:
            async for reply in call:
                yield reply
        except TroveError as error:  # of a signed call
            self._failed(error)
            raise
        except self._failures as failure:
            raise await self._error(call, failure) from failure
        finally:
            call.cancel()

    def open(self, method: str, decode: Callable[[bytes], object], *, metadata: Metadata = ()) -> Stream:
        """A stream of serialised requests; `read` gives the decoded answers."""
        multi_call = self._channel.stream_stream(method, response_deserializer=decode)
        call = multi_call(metadata=(*metadata, REDIRECTS))
        return Stream(call, self.address, self._transport, self._failed)

    async def _error(self, call: Any, failure: BaseException) -> TroveError:
        error = await error_of_call(call, failure, self.address)
        self._failed(error)
        return error
