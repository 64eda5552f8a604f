"""The handlers of methods with one request, whose calls are forwarded to other brokers where they belong
there (forwards.py has the rules)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, TypeAlias

from trovemq_broker.server.rocketmq.forwards import Forwards
from trovemq_broker.server.wire.forwarded_messages import (
    acknowledge_part,
    acknowledged_elsewhere,
    is_accepted,
    named_broker,
)
from trovemq_broker.server.wire.resources import topic_to_send
from trovemq_broker.server.wire.statuses import Context, request_of
from trovemq_daemon.calls import Call
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

Method: TypeAlias = Callable[[Any, Context], Awaitable[Any]]
Stream: TypeAlias = Callable[[Any, Context], AsyncGenerator[Any, None]]

OFFSETS: Final = ("UpdateOffset", "GetOffset", "QueryOffset")
HANDLES: Final = ("ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue")


class ForwardingCalls:
    """Wraps the methods of this broker."""

    def __init__(self, forwards: Forwards) -> None:
        self._forwards = forwards

    def around(self, methods: Mapping[str, Any]) -> dict[str, Any]:
        """The methods that forward, by name."""
        made: dict[str, Any] = {name: self.by_queue(name, methods[name]) for name in OFFSETS}
        made |= {name: self.by_handle(name, methods[name]) for name in HANDLES}
        made["PullMessage"] = self.stream_by_queue("PullMessage", methods["PullMessage"])
        made["RecallMessage"] = self.by_recall_handle("RecallMessage", methods["RecallMessage"])
        made["EndTransaction"] = self.by_transaction("EndTransaction", methods["EndTransaction"])
        return made

    def by_queue(self, name: str, method: Method) -> Method:
        """A method whose request names a message queue, which may be one of another broker."""

        async def call(request: Any, context: Context) -> Any:
            broker = self._forwards.offsets_broker(named_broker(request))
            if not broker:
                return await method(request, context)
            return await self._forwards.one(broker, name, request.SerializeToString(), context)

        return call

    def stream_by_queue(self, name: str, method: Stream) -> Stream:
        """The same of a method with a stream of replies."""

        async def call(request: Any, context: Context) -> AsyncGenerator[Any, None]:
            broker = self._forwards.offsets_broker(named_broker(request))
            replies = (
                self._forwards.replies(broker, name, request.SerializeToString(), context)
                if broker
                else method(request, context)
            )
            async with aclosing(replies):
                async for reply in replies:
                    yield reply

        return call

    def by_handle(self, name: str, method: Method) -> Method:
        """A method with a receipt handle: the refusal of one that another broker made names that broker."""

        async def call(request: Any, context: Context) -> Any:
            try:
                return await method(request, context)
            except TroveError as error:
                broker = error.fields.get("broker")
                if error.spec is not errors.RECEIPT_HANDLE_ILLEGAL or not broker:
                    raise
            return await self._forwards.one(str(broker), name, request.SerializeToString(), context)

        return call

    def by_recall_handle(self, name: str, method: Method) -> Method:
        """A method with a recall handle: the broker that made it has the delayed message."""

        async def call(request: Any, context: Context) -> Any:
            broker = self._forwards.recall_broker(topic_to_send(request.topic), request.recall_handle)
            if not broker:
                return await method(request, context)
            return await self._forwards.one(broker, name, request.SerializeToString(), context)

        return call

    def by_transaction(self, name: str, method: Method) -> Method:
        """A method with a transaction id: if no such transaction is open here, brokers that have the topic
        are asked; one that does not have it refuses, and nothing changes there."""

        async def call(request: Any, context: Context) -> Any:
            try:
                return await method(request, context)
            except TroveError as error:
                if error.spec is not errors.TRANSACTION_ILLEGAL or not request.transaction_id.strip():
                    raise
                refusal = error
            brokers = self._forwards.transaction_brokers(topic_to_send(request.topic), request.transaction_id)
            unreached: TroveError | None = None
            for broker in brokers:
                try:
                    reply = await self._forwards.one(broker, name, request.SerializeToString(), context)
                except TroveError as error:
                    unreached = error
                    continue
                if is_accepted(reply):
                    return reply
            raise unreached or refusal

        return call

    async def acknowledge(
        self, broker: str, call: Call, places: Sequence[int], count: int
    ) -> Mapping[int, TroveError]:
        """core.acknowledger.Elsewhere."""
        whole = len(places) == count
        request = bytes(call.keep()) if whole else acknowledge_part(request_of(call), places)
        reply = await self._forwards.one(broker, "AckMessage", request, call.context)
        return acknowledged_elsewhere(reply, sorted(places))
