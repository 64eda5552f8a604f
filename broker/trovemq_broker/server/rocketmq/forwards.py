"""Decides which broker a call of RocketMQ's protocol is meant for, and forwards it there: for clients that
came by an address that no broker advertises, and so send every call to this broker; and for RecallMessage,
which clients send to the address that they were given.

| call                                   | the broker                                                        |
|----------------------------------------|-------------------------------------------------------------------|
| SendMessage, topic here                | this one; of such a client, for a message group of a topic with a |
|                                        | placement, the one to which the group belongs; while the address  |
|                                        | of the client is not known, FIFO_SENDER_UNKNOWN for such a group  |
| SendMessage, topic elsewhere           | the one of those with the topic that the id of the first message  |
|                                        | (or its message group) selects: a resend goes there, too          |
| ReceiveMessage, PullMessage, offsets   | the one that the message queue names                              |
| AckMessage, ChangeInvisibleDuration, … | the one that made the receipt handle                              |
| EndTransaction                         | if the transaction is not open here, those with the topic, in the |
|                                        | order in which its id selects them, until one accepts it          |
| RecallMessage                          | the one that made the recall handle                               |
| calls of Admin                         | admin_forwards.py                                                 |

A call that was forwarded is handled by handlers without these rules: so it takes one hop at most.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import lru_cache
from typing import Any, Final, NamedTuple
from zlib import crc32

from trovemq_broker.security.creators import present_creator
from trovemq_broker.server.core.forwarding import ForwardCalls, ForwardedCall
from trovemq_broker.server.core.other_brokers import NO_PLACEMENT, OtherBrokers, no_placement
from trovemq_broker.server.rocketmq.mirrors import ClientKey, Mirrors
from trovemq_broker.server.wire.forwarded_messages import ForwardedClient
from trovemq_broker.server.wire.send_requests import broker_away
from trovemq_broker.server.wire.statuses import CLIENT_ID_KEY, REQUEST_ID_KEY, Context, metadata_value
from trovemq_broker.timers.recall_handle import decode_recall_handle
from trovemq_daemon.addresses import Address
from trovemq_daemon.peers import came_by_tls
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.records.hashes import group_queue

METADATA_KEYS: Final = (
    CLIENT_ID_KEY,
    REQUEST_ID_KEY,
    "x-mq-language",
    "x-mq-client-version",
    "x-mq-protocol",
    "traceparent",
)
"""The metadata that is passed on with a call."""
MIRRORED: Final = ("SendMessage", "ReceiveMessage")
"""With the first of these calls the client's telemetry stream is opened there, too."""
TRANSACTION_BROKERS_MAX: Final = 4
LISTS_KEPT: Final = 1_024
NAME_SHOWN_MAX: Final = 160
NOTED_MAX: Final = 32_768
"""Clients whose address is known; those that were not heard of for the longest time are forgotten first.
Official clients name it when they open a telemetry stream, and those of this address every 30 s, with the
question for routes."""


class _CameBy(NamedTuple):
    """The addresses that a client was given, canonical; none if it names none."""

    addresses: tuple[Address, ...]
    by_tls: bool


class Forwards:
    """`broker`: the name of this one. `calls` reaches the others; `placement_of`: the queues of a topic by
    broker. `own`: the addresses that this broker advertises, for plain connections and for TLS."""

    def __init__(
        self,
        broker: str,
        others: OtherBrokers,
        calls: ForwardCalls,
        placement_of: Callable[[str], Mapping[str, int]] = no_placement,
        own: tuple[Address, Address | None] | None = None,
    ) -> None:
        self._broker = broker
        self._others = others
        self._calls = calls
        self._placement_of = placement_of
        plain, tls = own or (None, None)
        self._own = {(one.canonical, by_tls) for one, by_tls in ((plain, False), (tls or plain, True)) if one}
        self._noted: dict[str, _CameBy] = {}
        self.mirrors: Final = Mirrors(calls)

    # --- the broker -----------------------------------------------------------------------------------
    @property
    def broker(self) -> str:
        """The name of this one."""
        return self._broker

    def queue_broker(self, name: str) -> str:
        """The other broker of a queue that a request names; empty for this one, and for a name that is not
        known."""
        return name if name and name != self._broker and self._others.knows(name) else ""

    def offsets_broker(self, name: str) -> str:
        """The same for a call about a queue's offsets, which count at that broker only. TroveError
        BROKER_NOT_FOUND for a name that is not known: after a start the routes come later than clients."""
        broker = self.queue_broker(name)
        if name and not broker and name != self._broker:
            text = f"broker {name[:NAME_SHOWN_MAX]!a} is away: it is not in the routes"
            raise TroveError(errors.BROKER_NOT_FOUND, text)
        return broker

    def recall_broker(self, topic: str, handle: str) -> str:
        """The other broker that made the recall handle; empty for this one, and for a handle that is not of
        the topic: this broker refuses it."""
        try:
            made = decode_recall_handle(handle)
        except TroveError:
            return ""
        return self.queue_broker(made.broker) if made.topic == topic else ""

    def reaches(self, tls_address: Address | None, *, by_tls: bool) -> bool:
        """Whether a call that came by TLS, or did not, can be forwarded to the broker with this address."""
        return not by_tls or (tls_address is not None and self._calls.has_tls)

    def note(self, context: Context, dialled: Sequence[Address]) -> None:
        """`dialled`: the addresses that the client of the call was given, by one of which it came."""
        client_id = metadata_value(context, CLIENT_ID_KEY).strip()
        self._noted.pop(client_id, None)
        self._noted[client_id] = _CameBy(tuple(one.canonical for one in dialled), came_by_tls(context))
        if len(self._noted) > NOTED_MAX:
            del self._noted[next(iter(self._noted))]

    def _is_direct(self, client: _CameBy) -> bool:
        """Whether it reaches all brokers, so that it has chosen one itself. It is decided at each send: after
        a start the routes of other brokers may come later than clients."""
        return not client.addresses or any(
            (one, client.by_tls) in self._own or self._others.advertised(one, by_tls=client.by_tls)
            for one in client.addresses
        )

    def group_broker(self, topic: str, group: str, client_id: str) -> str:
        """The other broker to which the message group of the topic belongs, for a client that came by an
        address that no broker advertises; empty for this one. TroveError FIFO_BROKER_AWAY;
        FIFO_SENDER_UNKNOWN for a client whose address is not known, as after a start of this broker."""
        placement = self._placement_of(topic) if group else NO_PLACEMENT
        owner = _owner(tuple(sorted(placement.items())), group) if len(placement) > 1 else self._broker
        if owner == self._broker:
            return ""
        client = self._noted.get(client_id)
        if client is None:
            raise _sender_unknown(topic)
        if self._is_direct(client):
            return ""
        if owner not in self._others.names():
            raise broker_away(topic)
        return owner

    def topic_broker(self, topic: str, group: str, message_id: str) -> str:
        """The other broker that stores messages of a topic which is not here; empty if no other has it, and
        for a message group that belongs here: the topic comes soon. TroveError FIFO_BROKER_AWAY."""
        placement = self._placement_of(topic) if group else NO_PLACEMENT
        if owner := _owner(tuple(sorted(placement.items())), group):
            if owner != self._broker and owner not in self._others.names():
                raise broker_away(topic)
            return "" if owner == self._broker else owner
        return next(iter(self._selected(topic, group or message_id)), "")

    def admin_send_broker(self, topic: str, group: str, message_id: str, *, is_here: bool) -> str:
        """The other broker that stores a message which an operator sends, by whatever address the call came;
        empty for this one. TroveError FIFO_BROKER_AWAY."""
        if is_here and not (group and len(self._placement_of(topic)) > 1):
            return ""
        return self.topic_broker(topic, group, message_id)

    def topic_brokers(self, topic: str) -> Sequence[str]:
        """The other brokers that have the topic, by name."""
        return [one.broker for one in self._others.holding(topic)]

    def placed_away(self, topic: str) -> Sequence[str]:
        """The names of the other brokers on which the topic lies, and that are away."""
        return sorted({*self._placement_of(topic)} - {self._broker, *self._others.names()})

    def transaction_brokers(self, topic: str, transaction_id: str) -> Sequence[str]:
        """The other brokers that may have the transaction."""
        return self._selected(topic, transaction_id)[:TRANSACTION_BROKERS_MAX]

    def _selected(self, topic: str, key: str) -> list[str]:
        """The other brokers that have the topic; those that take messages first, each of both in the order
        in which the key selects them. A broker that joins or leaves changes the first of few keys only."""
        holding = [one for one in self._others.holding(topic) if one.queue_count > 0]
        return [
            one.broker
            for one in sorted(holding, key=lambda one: (one.draining, crc32(f"{one.broker}\n{key}".encode())))
        ]

    # --- the calls ----------------------------------------------------------------------------------
    async def one(self, broker: str, method: str, request: bytes, context: Context) -> bytes:
        """The only reply. Raises the errors of ForwardCalls, BROKER_UNREACHABLE if there is none."""
        async with aclosing(self.replies(broker, method, request, context)) as replies:
            async for reply in replies:
                return reply
        raise TroveError(errors.BROKER_UNREACHABLE, f"broker {broker} sent no reply", broker=broker)

    def replies(
        self, broker: str, method: str, request: bytes, context: Context
    ) -> AsyncGenerator[bytes, None]:
        """Raises the errors of ForwardCalls."""
        client, by_tls = client_of(context), came_by_tls(context)
        if method in MIRRORED:
            client_id = metadata_value(context, CLIENT_ID_KEY).strip()
            self.mirrors.ensure(ClientKey(client.caller, client_id), broker)
        call = ForwardedCall(client, method, request, context.time_remaining(), by_tls)
        return self._calls.forward(broker, call)


def client_of(context: Any) -> ForwardedClient:
    """The client of a call, as the other broker gets it."""
    found = [(key, metadata_value(context, key)) for key in METADATA_KEYS]
    return ForwardedClient(
        present_creator().name, str(context.peer()), [(key, value) for key, value in found if value]
    )


def _sender_unknown(topic: str) -> TroveError:
    text = (
        f"this broker does not know yet by which address the client came, so not which broker stores the"
        f" message group of topic {topic}: send again after a telemetry stream or a route was opened"
    )
    return TroveError(errors.FIFO_SENDER_UNKNOWN, text, topic=topic)


@lru_cache(LISTS_KEPT)
def _queues(placement: tuple[tuple[str, int], ...]) -> list[str]:
    """The broker of each queue, in the order of a route."""
    places = [(number, broker) for broker, count in placement for number in range(count)]
    return [broker for _, broker in sorted(places)]


def _owner(placement: tuple[tuple[str, int], ...], group: str) -> str:
    """The broker of the message group; empty if the topic has no queues."""
    queues = _queues(placement)
    return queues[group_queue(group, len(queues))] if queues else ""
