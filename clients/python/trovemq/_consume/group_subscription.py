"""The subscription of a group, and its form in RocketMQ's settings."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from trovemq._rocketmq.identity import new_client_id
from trovemq._rocketmq.messages import duration
from trovemq._rocketmq.session import Role, Session
from trovemq.received import Handler
from trovemq_proto.errors import TroveError
from trovemq_proto.rocketmq.v2 import definition_pb2 as v2

POLL_MS_DEFAULT: Final = 20_000


class MessageFilter(NamedTuple):
    """The filter of a subscription: an expression of tags, or of SQL."""

    kind: Literal["tag", "sql"]
    text: str

    def as_expression(self) -> v2.FilterExpression:
        """As a request has it."""
        return v2.FilterExpression(type=v2.SQL if self.kind == "sql" else v2.TAG, expression=self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSubscription:
    """The subscription: one topic for one group.

    Attributes:
        topic: The topic.
        group: The consumer group.
        filter: The filter of its messages.
        invisible_ms: How long a message is leased to this client; None: while the client lives.
        handler: Consumes a message that an operator sends directly.
        client_id: The id by which the brokers know the subscriber.
    """

    topic: str
    group: str
    filter: MessageFilter
    invisible_ms: int | None = None
    handler: Handler | None = None
    client_id: str = field(default_factory=new_client_id)

    def role(
        self, work: Callable[[Session], Awaitable[None]], missing: Callable[[str, TroveError], None]
    ) -> Role:
        """The role in the settings for the brokers."""
        topic, expression = v2.Resource(name=self.topic), self.filter.as_expression()
        subscription = v2.Subscription(
            group=v2.Resource(name=self.group),
            subscriptions=[v2.SubscriptionEntry(topic=topic, expression=expression)],
        )
        if self.invisible_ms is not None:
            subscription.long_polling_timeout.CopyFrom(duration(POLL_MS_DEFAULT))
        return Role(
            client_id=self.client_id,
            client_type=v2.PUSH_CONSUMER if self.invisible_ms is None else v2.SIMPLE_CONSUMER,
            group=self.group,
            subscription=subscription,
            handler=self.handler,
            work=work,
            missing=missing,
        )
