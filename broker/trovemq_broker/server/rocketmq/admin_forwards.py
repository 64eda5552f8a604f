"""The calls of RocketMQ's Admin service that concern the topic's other brokers, too.

| call                          | handled by                                                            |
|-------------------------------|-----------------------------------------------------------------------|
| ResetGroupOffset              | every broker that has the topic; an error names one that did not do it |
| AdminSendMessage              | this broker, or one with the topic; with a message group and a        |
|                               | placement the broker to which the group belongs                       |
| DescribeTopicStatus           | this broker, or one with the topic                                    |
| QueryMessage by id,           | this broker; if it lacks the topic or the message, those with the     |
| VerifyMessage                 | topic, until one has it                                               |
| QueryMessage by key           | every broker that has the topic (key_queries.py)                      |
| QueryMessage of a broker      | the one that it names                                                 |

All others are about the process, the clients or the queues of the broker that is called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

from trovemq_broker.server.rocketmq.forwards import Forwards
from trovemq_broker.server.rocketmq.key_queries import KeyQueries, Limits
from trovemq_broker.server.wire.forwarded_messages import is_missing, refusal_of
from trovemq_broker.server.wire.resources import topic_to_read, topic_to_send
from trovemq_broker.server.wire.statuses import Context
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

Method: TypeAlias = Callable[[Any, Context], Awaitable[Any]]

RESET: Final = "ResetGroupOffset"
SEND: Final = "AdminSendMessage"
STATUS: Final = "DescribeTopicStatus"
QUERY: Final = "QueryMessage"
VERIFY: Final = "VerifyMessage"
FORWARDED: Final = frozenset({RESET, SEND, STATUS, QUERY, VERIFY})
MISSING: Final = (errors.TOPIC_NOT_FOUND, errors.MESSAGE_NOT_FOUND)


class AdminForwards:
    """Wraps the methods of this broker. `has_topic`: whether this broker has the topic. `limits`: of a query
    by key."""

    def __init__(self, forwards: Forwards, has_topic: Callable[[str], bool], limits: Limits) -> None:
        self._forwards = forwards
        self._has_topic = has_topic
        self._limits = limits

    def around(self, methods: Mapping[str, Method]) -> dict[str, Method]:
        """The methods that forward, by name."""
        return {
            RESET: self._everywhere(methods[RESET]),
            SEND: self._at_topic(methods[SEND]),
            STATUS: self._until_found(STATUS, methods[STATUS]),
            QUERY: self._query(methods[QUERY]),
            VERIFY: self._until_found(VERIFY, methods[VERIFY]),
        }

    async def _ask(self, broker: str, name: str, request: Any, context: Context) -> bytes:
        return await self._forwards.one(broker, name, request.SerializeToString(), context)

    def _query(self, method: Method) -> Method:
        by_id, by_key = (
            self._until_found(QUERY, method),
            KeyQueries(self._forwards, self._limits, method).call,
        )

        async def call(request: Any, context: Context) -> Any:
            if broker := self._forwards.offsets_broker(request.broker_name):
                return await self._ask(broker, QUERY, request, context)
            if request.broker_name:
                return await method(request, context)
            asked = by_key if request.WhichOneof("search_key") == "message_key" else by_id
            return await asked(request, context)

        return call

    def _at_topic(self, method: Method) -> Method:
        async def call(request: Any, context: Context) -> Any:
            topic, system = topic_to_send(request.topic), request.system_properties
            broker = self._forwards.admin_send_broker(
                topic, system.message_group, system.message_id, is_here=self._has_topic(topic)
            )
            return await (self._ask(broker, SEND, request, context) if broker else method(request, context))

        return call

    def _until_found(self, name: str, method: Method) -> Method:
        async def call(request: Any, context: Context) -> Any:
            try:
                return await method(request, context)
            except TroveError as error:
                if error.spec not in MISSING:
                    raise
                refusal = error
            unreached: TroveError | None = None
            for broker in self._forwards.topic_brokers(topic_to_read(request.topic)):
                try:
                    reply = await self._ask(broker, name, request, context)
                except TroveError as error:
                    unreached = error
                    continue
                if not is_missing(reply):
                    return reply
            raise unreached or refusal

        return call

    def _everywhere(self, method: Method) -> Method:
        async def call(request: Any, context: Context) -> Any:
            topic = topic_to_read(request.topic)
            others = self._forwards.topic_brokers(topic)
            reply: Any = None
            if self._has_topic(topic) or not others:
                reply = await method(request, context)
            asked = (self._ask(broker, RESET, request, context) for broker in others)
            for broker, outcome in zip(
                others, await asyncio.gather(*asked, return_exceptions=True), strict=True
            ):
                if isinstance(outcome, BaseException):
                    raise outcome
                if refusal := refusal_of(outcome, broker):
                    raise refusal
                reply = reply or outcome
            if away := ", ".join(self._forwards.placed_away(topic)):
                text = f"topic {topic} lies on {away}, too, which is away; all others have reset the group:"
                raise TroveError(errors.BROKER_NOT_FOUND, f"{text} call again when it is back", broker=away)
            return reply

        return call
