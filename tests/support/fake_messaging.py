"""A scripted broker of RocketMQ's v2 protocol in the test's own loop: one queue, leases, commands.

It keeps the requests, so that tests can check a client's bytes on the wire. A hook that returns a status
makes the call answer with it. An orderly fake holds messages after an unsettled message of its group.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from hashlib import md5
from typing import Any

import grpc

from trovemq_proto.rocketmq.v2 import definition_pb2 as v2
from trovemq_proto.rocketmq.v2 import service_pb2

SERVICE = "apache.rocketmq.v2.MessagingService"
POLL_SECONDS_MAX = 0.2  # nobody waits longer for an empty queue, whatever was asked for

Status = v2.Status
Hook = Callable[[Any], Status | None]


def ok() -> Status:
    return Status(code=v2.Code.OK, message="OK")


@dataclass
class Held:
    """One message of the fake: visible, leased or gone."""

    message: v2.Message
    offset: int
    attempt: int = 0
    handle: str = ""
    leased: bool = False
    client_id: str = ""


@dataclass
class Talk:
    """One Telemetry stream."""

    client_id: str
    context: Any
    settings: v2.Settings | None = None
    replies: asyncio.Queue[service_pb2.TelemetryCommand] = field(default_factory=asyncio.Queue)
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def command(self, **content: Any) -> service_pb2.TelemetryCommand:
        """Sends a command and returns the client's answer on the stream."""
        await self.tell(**content)
        return await asyncio.wait_for(self.replies.get(), 30)

    async def tell(self, **content: Any) -> None:
        """Sends a command."""
        await self.write(service_pb2.TelemetryCommand(**content))

    async def write(self, message: service_pb2.TelemetryCommand) -> None:
        """Sends it. grpcio takes the next one only when the one before is away."""
        async with self._writing:
            await self.context.write(message)


class FakeMessaging:
    """The service; hand `handlers()` to a grpc.aio server.

    Attributes:
        name: The broker's name.
        settings: The answer to clients; fifo makes the fake hold message groups.
        hooks: By method; a status that a hook returns is the call's answer.
        calls: By method, every request.
        talks: The Telemetry streams, oldest first.
        gone: Bodies that were acknowledged, in that order; `dead` those that were dead-lettered.
    """

    def __init__(self, name: str = "fake") -> None:
        self.name = name
        self.settings = v2.Settings(
            backoff_policy=v2.RetryPolicy(max_attempts=3, customized_backoff=v2.CustomizedBackoff()),
            subscription=v2.Subscription(fifo=False, receive_batch_size=32),
            publishing=v2.Publishing(max_body_size=4 << 20),
        )
        self.settings.backoff_policy.customized_backoff.next.add(nanos=1_000_000)
        self.settings.subscription.long_polling_timeout.seconds = 20
        self.first_status = ok()
        self.hooks: dict[str, Hook] = {}
        self.calls: dict[str, list[Any]] = {}
        self.talks: list[Talk] = []
        self.gone: list[bytes] = []
        self.dead: list[bytes] = []
        self.held: list[Held] = []
        self.terminated: list[str] = []
        self.waiting_polls = 0
        self.long_streams = False  # a stream that brought something stays open; its end takes that back
        self._offsets = 0
        self._leases = 0
        self._changed = asyncio.Condition()

    # --- for tests ------------------------------------------------------------------------------------

    async def offer(self, *bodies: bytes, topic: str = "orders", message_group: str | None = None) -> None:
        """Puts messages on the queue."""
        for body in bodies:
            message = message_of(body, topic=topic, message_group=message_group)
            message.system_properties.queue_offset = self._offsets
            self.held.append(Held(message, self._offsets))
            self._offsets += 1
        await self.notify()

    async def notify(self) -> None:
        """Something changed that waiting polls, or `until`, may wait for."""
        async with self._changed:
            self._changed.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits, 30 s at most, until it is so."""
        async with asyncio.timeout(240), self._changed:
            await self._changed.wait_for(condition)

    async def until_received(self) -> None:
        """Waits until all messages of the queue were leased, and the stream that brought them has ended: a
        client whose next poll waits here has the messages of its last one."""
        await self.until(lambda: not self.visible() and self.waiting_polls > 0)

    def bodies(self) -> list[bytes]:
        """The remaining messages."""
        return [held.message.body for held in self.held]

    def visible(self) -> list[bytes]:
        return [held.message.body for held in self.held if not held.leased]

    def requests(self, method: str) -> list[Any]:
        return self.calls.get(method, [])

    # --- the service ----------------------------------------------------------------------------------

    def handlers(self) -> grpc.GenericRpcHandler:
        unary: dict[str, tuple[Any, Any]] = {
            "Heartbeat": (service_pb2.HeartbeatRequest, self._heartbeat),
            "SendMessage": (service_pb2.SendMessageRequest, self._send),
            "AckMessage": (service_pb2.AckMessageRequest, self._ack),
            "ChangeInvisibleDuration": (service_pb2.ChangeInvisibleDurationRequest, self._change),
            "ForwardMessageToDeadLetterQueue": (
                service_pb2.ForwardMessageToDeadLetterQueueRequest,
                self._dead_letter,
            ),
            "EndTransaction": (service_pb2.EndTransactionRequest, self._end),
            "RecallMessage": (service_pb2.RecallMessageRequest, self._recall),
            "NotifyClientTermination": (service_pb2.NotifyClientTerminationRequest, self._terminate),
        }
        methods = {
            name: grpc.unary_unary_rpc_method_handler(
                self._recorded(name, answer),
                request_deserializer=request.FromString,
                response_serializer=lambda reply: reply.SerializeToString(),
            )
            for name, (request, answer) in unary.items()
        }
        methods["ReceiveMessage"] = grpc.unary_stream_rpc_method_handler(
            self._receive,
            request_deserializer=service_pb2.ReceiveMessageRequest.FromString,
            response_serializer=lambda reply: reply.SerializeToString(),
        )
        methods["Telemetry"] = grpc.stream_stream_rpc_method_handler(
            self._telemetry,
            request_deserializer=service_pb2.TelemetryCommand.FromString,
            response_serializer=lambda reply: reply.SerializeToString(),
        )
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def _recorded(self, name: str, answer: Callable[[Any, Status, str], Any]) -> Any:
        async def handle(request: Any, context: Any) -> Any:
            self.calls.setdefault(name, []).append(request)
            hook = self.hooks.get(name)
            status = (hook(request) if hook is not None else None) or ok()
            reply = answer(request, status, client_of(context))
            await self.notify()
            return reply

        return handle

    async def _telemetry(self, requests: AsyncIterator[service_pb2.TelemetryCommand], context: Any) -> None:
        talk = Talk(client_of(context), context)
        async for request in requests:
            if request.WhichOneof("command") != "settings":
                talk.replies.put_nowait(request)
                continue
            talk.settings = request.settings
            reply = service_pb2.TelemetryCommand(status=self.first_status)
            if self.first_status.code != v2.Code.OK:
                await talk.write(reply)
                return
            reply.settings.CopyFrom(self.settings)
            if request.settings.WhichOneof("pub_sub") == "publishing":
                reply.settings.publishing.SetInParent()
            else:
                reply.settings.subscription.CopyFrom(self.settings.subscription)
            self.talks.append(talk)  # before its client can know of it
            await talk.write(reply)
            await self.notify()

    def _heartbeat(self, request: Any, status: Status, client_id: str) -> Any:
        return service_pb2.HeartbeatResponse(status=status)

    # --- consuming ------------------------------------------------------------------------------------

    async def _receive(self, request: Any, context: Any) -> AsyncIterator[service_pb2.ReceiveMessageResponse]:
        self.calls.setdefault("ReceiveMessage", []).append(request)
        await self.notify()
        hook = self.hooks.get("ReceiveMessage")
        status = hook(request) if hook is not None else None
        if status is not None:
            yield service_pb2.ReceiveMessageResponse(status=status)
            return
        found = await self._wait_for_messages(request.batch_size, client_of(context))
        code = v2.Code.OK if found else v2.Code.MESSAGE_NOT_FOUND
        yield service_pb2.ReceiveMessageResponse(status=Status(code=code))
        for message in found:
            yield service_pb2.ReceiveMessageResponse(message=message)
        if found and self.long_streams:
            try:
                await asyncio.Event().wait()
            finally:
                self._take_back(found)

    def _take_back(self, messages: list[v2.Message]) -> None:
        """The handles of received messages are void, and they are delivered again."""
        for message in messages:
            held = self._of_handle(message.system_properties.receipt_handle)
            if held is not None:
                held.leased = False

    async def _wait_for_messages(self, count: int, client_id: str) -> list[v2.Message]:
        found: list[v2.Message] = []

        def some() -> bool:
            found.extend(self._lease(count, client_id))
            return bool(found)

        try:
            async with asyncio.timeout(POLL_SECONDS_MAX), self._changed:
                self.waiting_polls += 1
                self._changed.notify_all()
                try:
                    await self._changed.wait_for(some)
                finally:
                    self.waiting_polls -= 1
        except TimeoutError:
            pass
        return found

    def _lease(self, count: int, client_id: str) -> list[v2.Message]:
        found: list[v2.Message] = []
        busy = {self._lane(held) for held in self.held if held.leased}
        for held in self.held:
            if held.leased or len(found) == count:
                continue
            if self.settings.subscription.fifo and self._lane(held) in busy:
                continue
            self._leases += 1
            held.leased, held.client_id, held.attempt = True, client_id, held.attempt + 1
            held.handle = f"{held.offset}-{self._leases}"
            leased = v2.Message()
            leased.CopyFrom(held.message)
            leased.system_properties.receipt_handle = held.handle
            leased.system_properties.delivery_attempt = held.attempt
            found.append(leased)
        return found

    def _lane(self, held: Held) -> str:
        return held.message.system_properties.message_group

    def _of_handle(self, handle: str) -> Held | None:
        return next((held for held in self.held if held.leased and held.handle == handle), None)

    def _ack(self, request: Any, status: Status, client_id: str) -> Any:
        reply = service_pb2.AckMessageResponse(status=status)
        for entry in request.entries:
            held = self._of_handle(entry.receipt_handle)
            own = status
            if status.code == v2.Code.OK and held is None:
                own = Status(code=v2.Code.INVALID_RECEIPT_HANDLE)
            elif status.code == v2.Code.OK and held is not None:
                self.held.remove(held)
                self.gone.append(held.message.body)
            reply.entries.add(message_id=entry.message_id, receipt_handle=entry.receipt_handle, status=own)
        return reply

    def _change(self, request: Any, status: Status, client_id: str) -> Any:
        held = self._of_handle(request.receipt_handle)
        if status.code == v2.Code.OK and held is None:
            status = Status(code=v2.Code.INVALID_RECEIPT_HANDLE)
        if status.code != v2.Code.OK or held is None:
            return service_pb2.ChangeInvisibleDurationResponse(status=status)
        self._leases += 1
        held.handle = f"{held.offset}-{self._leases}"
        held.attempt -= request.suspend
        delay = request.invisible_duration.seconds + request.invisible_duration.nanos / 1e9
        if delay < 1:
            asyncio.get_running_loop().call_later(delay, self._show, held, held.handle)
        return service_pb2.ChangeInvisibleDurationResponse(status=status, receipt_handle=held.handle)

    def _show(self, held: Held, handle: str) -> None:
        if held.handle == handle:
            held.leased = False
            self._notifying = asyncio.get_running_loop().create_task(self.notify())

    def _dead_letter(self, request: Any, status: Status, client_id: str) -> Any:
        held = self._of_handle(request.receipt_handle)
        if status.code == v2.Code.OK and held is not None:
            self.held.remove(held)
            self.dead.append(held.message.body)
        return service_pb2.ForwardMessageToDeadLetterQueueResponse(status=status)

    def _terminate(self, request: Any, status: Status, client_id: str) -> Any:
        self.terminated.append(client_id)
        for held in self.held:
            held.leased = held.leased and held.client_id != client_id
        return service_pb2.NotifyClientTerminationResponse(status=status)

    # --- producing ------------------------------------------------------------------------------------

    def _send(self, request: Any, status: Status, client_id: str) -> Any:
        reply = service_pb2.SendMessageResponse(status=status)
        for message in request.messages if status.code == v2.Code.OK else ():
            message_id = message.system_properties.message_id
            reply.entries.add(
                status=status,
                message_id=message_id,
                transaction_id=f"t-{message_id}",
                recall_handle=f"handle-{message_id}"
                if message.system_properties.HasField("delivery_timestamp")
                else "",
            )
        return reply

    def _end(self, request: Any, status: Status, client_id: str) -> Any:
        return service_pb2.EndTransactionResponse(status=status)

    def _recall(self, request: Any, status: Status, client_id: str) -> Any:
        return service_pb2.RecallMessageResponse(status=status, message_id="recalled")


def client_of(context: Any) -> str:
    return str(dict(context.invocation_metadata()).get("x-mq-client-id", ""))


def message_of(body: bytes, *, topic: str = "orders", message_group: str | None = None) -> v2.Message:
    """A message as a broker delivers it, without a lease."""
    message = v2.Message(body=body, user_properties={"p": "v"})
    message.topic.name = topic
    system = message.system_properties
    system.message_id = f"id-{body.decode()}"
    system.body_digest.type = v2.MD5
    system.body_digest.checksum = md5(body, usedforsecurity=False).hexdigest().upper()
    system.body_encoding = v2.IDENTITY
    system.tag = "tag"
    system.keys.append("key")
    system.born_timestamp.seconds = 1_700_000_000
    if message_group is not None:
        system.message_group = message_group
    return message
