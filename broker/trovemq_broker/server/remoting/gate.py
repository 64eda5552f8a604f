"""The check of access before the handlers of remoting requests: by the same users, rules, quotas and
counters as for gRPC.

Each request is signed separately (security/remoting.py), and admitted by the needs of its code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from trovemq_broker.security.actions import Action, Kind
from trovemq_broker.security.creators import reset_creator, set_creator
from trovemq_broker.security.remoting import ACCESS_KEY, user_of_fields
from trovemq_broker.server.access.gate import Caller, Gate
from trovemq_broker.server.access.needs import EVERY, KNOW, PUB, SUB, Level, Need, Row
from trovemq_broker.server.access.serving_gate import ServingGate
from trovemq_broker.server.remoting.members import Member, consumers_of
from trovemq_broker.server.remoting.queue_locks import read_locks
from trovemq_daemon.peers import Peer, peer_of
from trovemq_daemon.remoting.request import Connection, Request
from trovemq_daemon.remoting.server import Handler
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.remoting.codes import RequestCode, request_name
from trovemq_store.topics.names import RETRY_PREFIX

TLS_SECURITY: Final[Mapping[str, tuple[bytes, ...]]] = {"transport_security_type": (b"ssl",)}


def _topic(request: Request, names: tuple[str, ...], actions: Action) -> Need:
    fields = request.header.fields
    topic = next((fields[name] for name in names if name in fields), "")
    if topic.startswith(RETRY_PREFIX):
        return Need(Kind.GROUP, topic.removeprefix(RETRY_PREFIX), SUB)
    return Need(Kind.TOPIC, topic, actions)


def _group(request: Request, names: tuple[str, ...], actions: Action) -> Need:
    fields = request.header.fields
    return Need(Kind.GROUP, next((fields[name] for name in names if name in fields), ""), actions)


def _send(request: Request) -> Iterator[Need]:
    """By the same field as the handler: a request may have both, with different topics."""
    yield _topic(request, ("topic",), PUB)


def _send_short(request: Request) -> Iterator[Need]:
    yield _topic(request, ("b",), PUB)


def _send_batch(request: Request) -> Iterator[Need]:
    yield _topic(request, ("b", "topic"), PUB)


def _pull(request: Request) -> Iterator[Need]:
    yield _group(request, ("consumerGroup",), SUB)
    yield _topic(request, ("topic",), SUB)


def _update(request: Request) -> Iterator[Need]:
    yield _group(request, ("consumerGroup",), SUB | Action.UPDATE)
    yield _topic(request, ("topic",), SUB | Action.UPDATE)


def _see(request: Request) -> Iterator[Need]:
    yield _group(request, ("consumerGroup",), SUB | Action.GET)
    if "topic" in request.header.fields:
        yield _topic(request, ("topic",), SUB | Action.GET)


def _send_back(request: Request) -> Iterator[Need]:
    """Of any message of the log: without the topic a rule for all is needed."""
    yield _group(request, ("group",), SUB)
    if request.header.fields.get("originTopic"):
        yield _topic(request, ("originTopic",), SUB)
    else:
        yield Need(Kind.TOPIC, EVERY, SUB)


def _end(request: Request) -> Iterator[Need]:
    """A client of 4.x names no topic: then a rule for all is needed."""
    yield Need(Kind.TOPIC, request.header.fields.get("topic") or EVERY, PUB)


def _know(request: Request) -> Iterator[Need]:
    yield _topic(request, ("topic",), KNOW)


def _heartbeat(request: Request) -> Iterator[Need]:
    for group, topics in consumers_of(request):
        yield Need(Kind.GROUP, group, SUB)
        for topic in topics:
            if not topic.startswith(RETRY_PREFIX):
                yield Need(Kind.TOPIC, topic, SUB)


def _locks(request: Request) -> Iterator[Need]:
    """The group is in the body, which the handler reads; a lock of another group keeps its members out."""
    yield Need(Kind.GROUP, read_locks(request).consumer_group, SUB)


ROWS: Final[Mapping[int, Row]] = {
    RequestCode.SEND_MESSAGE: Row(_send),
    RequestCode.SEND_MESSAGE_V2: Row(_send_short),
    RequestCode.SEND_BATCH_MESSAGE: Row(_send_batch),
    RequestCode.PULL_MESSAGE: Row(_pull),
    RequestCode.LITE_PULL_MESSAGE: Row(_pull),
    RequestCode.QUERY_CONSUMER_OFFSET: Row(_see),
    RequestCode.UPDATE_CONSUMER_OFFSET: Row(_update),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: Row(_know),
    RequestCode.GET_MAX_OFFSET: Row(_know),
    RequestCode.GET_MIN_OFFSET: Row(_know),
    RequestCode.GET_EARLIEST_MSG_STORETIME: Row(_know),
    RequestCode.HEART_BEAT: Row(_heartbeat),
    RequestCode.UNREGISTER_CLIENT: Row(Level.USER),
    RequestCode.CONSUMER_SEND_MSG_BACK: Row(_send_back),
    RequestCode.END_TRANSACTION: Row(_end),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: Row(_see),
    RequestCode.CHECK_CLIENT_CONFIG: Row(Level.USER),
    RequestCode.LOCK_BATCH_MQ: Row(_locks),
    RequestCode.UNLOCK_BATCH_MQ: Row(_locks),
    RequestCode.GET_ROUTEINFO_BY_TOPIC: Row(_know),
    RequestCode.GET_BROKER_CLUSTER_INFO: Row(Level.USER),
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: Row(Level.SUPER),
}


class RemotingGate:
    """`gate`: None: callers are not authenticated. `serving`: refuses messages while the broker has no
    configuration of its cluster."""

    def __init__(self, gate: Gate | None, serving: ServingGate) -> None:
        self._gate = gate
        self._serving = serving

    def around(self, request: Request, handler: Handler) -> None:
        """Runs the handler for a caller who may make the request. TroveError."""
        refusal = self._serving.refusal
        if refusal is not None and (error := refusal()) is not None:
            raise error
        if self._gate is None:
            handler(request)
            return
        self._admitted(self._gate, request, handler)

    def _admitted(self, gate: Gate, request: Request, handler: Handler) -> None:
        path = f"/remoting/{request_name(request.header.code)}"
        peer = _peer(request.connection)
        try:
            caller = self._caller(gate, request, peer)
            gate.admit(caller, ROWS[request.header.code], request, path)
        except TroveError as error:
            gate.refused(path, error, peer.source, request.header.fields.get(ACCESS_KEY, "")[:80])
            raise
        if gate.has_quotas:
            request.run(self._within_quotas(gate, caller, request, handler))
        else:
            self._run(gate, caller, request, handler)

    def may_send(self, producer: Member, topic: str) -> bool:
        """Whether the user of a producer may send to the topic now."""
        if self._gate is None:
            return True
        caller = Caller(producer.user, _peer(producer.connection).source, None)
        row = Row(lambda _request: (Need(Kind.TOPIC, topic, PUB),))
        try:
            self._gate.admit(caller, row, None)
        except TroveError:
            return False
        return True

    @staticmethod
    def _caller(gate: Gate, request: Request, peer: Peer) -> Caller:
        table = gate.users()
        if not peer.is_private:
            text = "signatures of remoting clients are accepted over TLS, or on loopback"
            raise TroveError(errors.AUTHENTICATION_FAILED, text)
        user = user_of_fields(table, request.header.fields, request.body)
        return Caller(user.access_key, peer.source, None)

    @staticmethod
    def _run(gate: Gate, caller: Caller, request: Request, handler: Callable[[Request], None]) -> None:
        token = set_creator(gate.creator(caller))
        try:
            handler(request)
        finally:
            reset_creator(token)

    async def _within_quotas(self, gate: Gate, caller: Caller, request: Request, handler: Handler) -> None:
        quota = gate.quota_of(caller, "", request.connection.peer)
        try:
            if quota is not None and (error := await quota.request(request.size)) is not None:
                raise error
            self._run(gate, caller, request, handler)
        finally:
            if quota is not None:
                quota.end()


def _peer(connection: Connection) -> Peer:
    return peer_of(connection.peer, TLS_SECURITY if connection.is_secure else {})
