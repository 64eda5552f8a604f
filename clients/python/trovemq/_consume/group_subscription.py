"""The subscription of a group."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from trovemq._common.identity import new_client_id
from trovemq.received import Handler


class MessageFilter(NamedTuple):
    """The filter of a subscription: an expression of tags, or of SQL."""

    kind: Literal["tag", "sql"]
    text: str


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
