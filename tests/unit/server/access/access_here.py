"""Users, rules and a gate in memory."""

from __future__ import annotations

import hmac
import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import grpc

from trovemq_broker.security import changes
from trovemq_broker.security.changes import SecurityState
from trovemq_broker.security.sealing import SealingKey
from trovemq_broker.security.table import SecurityTable
from trovemq_broker.server.access.gate import Gate
from trovemq_daemon.peers import Peer
from trovemq_daemon.sessions import Sessions
from trovemq_daemon.users import UserKind, new_user
from trovemq_proto.authentication.calls import METADATA_KEY, SigningKey
from trovemq_proto.authentication.scram import ClientHandshake, client_first
from trovemq_proto.positions import EpochMs
from trovemq_store.files.memory import MemoryFileSystem

CLUSTER = "DefaultCluster"
LOOPBACK = Peer("127.0.0.1", True)
SECRET = "canary-secret-3"
DATE = "20261123T001500Z"


class AccessHere:
    """`now_ms` is its clock."""

    def __init__(self, *, authorization: bool = True) -> None:
        self.now_ms = EpochMs(0)
        numbers = itertools.count()

        def random_bytes(size: int) -> bytes:
            return next(numbers).to_bytes(size)

        self.table = SecurityTable.load(MemoryFileSystem(), SealingKey(bytes(32)), random_bytes)
        self.sessions = Sessions(self.table, bytes(32), random_bytes)
        self.gate = Gate(authorization=authorization, cluster=CLUSTER, clock_ms=lambda: self.now_ms)
        self.gate.open(self.table, self.sessions)

    def apply(self, after: SecurityState) -> None:
        change = self.table.begin(after)
        change.run()
        self.table.finish(change)

    def user(self, name: str, *, is_super: bool = False) -> None:
        kind = UserKind.SUPER if is_super else UserKind.NORMAL
        made = new_user(name, kind, SECRET.encode(), salt=bytes(16), now_ms=0)
        self.apply(changes.add_user(self.table.state, made))

    def rule(
        self, name: str, actions: str, resource: str, *, allow: bool = True, sources: Sequence[str] = ()
    ) -> int:
        after, made = changes.add_rule(
            self.table.state, name, allow=allow, actions=actions, resource=resource, sources=sources
        )
        self.apply(after)
        return made.number

    def without_rules(self, name: str) -> None:
        state = self.table.state
        for rule in self.table.state.rules_of(name):
            state = changes.delete_rule(state, rule.number)
        self.apply(state)

    def log_in(self, name: str) -> SigningKey:
        first = client_first(name, "client-nonce-0123456789")
        handshake = ClientHandshake(first, self.sessions.begin(first, self.now_ms), SECRET.encode())
        answer, session = self.sessions.finish(handshake.message, self.now_ms)
        return SigningKey(session.key.session_id, handshake.finish(answer))


class Context:
    """A call's, with the client's messages."""

    def __init__(self, metadata: Sequence[tuple[str, Any]] = (), messages: Sequence[bytes] = ()) -> None:
        self.metadata = metadata
        self.messages = list(messages)
        self.written: list[Any] = []
        self.remaining_s: float | None = None
        self.head = SimpleNamespace(note=None)

    def invocation_metadata(self) -> Sequence[tuple[str, Any]]:
        return self.metadata

    def time_remaining(self) -> float | None:
        return self.remaining_s

    def peer(self) -> str:
        return "ipv4:127.0.0.1:5000"

    def auth_context(self) -> dict[str, Any]:
        return {}

    async def read(self) -> Any:
        return self.messages.pop(0) if self.messages else grpc.aio.EOF

    async def write(self, message: Any) -> None:
        self.written.append(message)


def signed(key: SigningKey, number: int, path: str) -> tuple[tuple[str, Any], ...]:
    """Metadata of a session's call."""
    return ((METADATA_KEY, key.credential(number, path)),)


def rocketmq_metadata(name: str, secret: str = SECRET) -> tuple[tuple[str, str], ...]:
    """Metadata as RocketMQ's clients sign."""
    signature = hmac.new(secret.encode(), DATE.encode(), "sha1").hexdigest()
    text = f"MQv2-HMAC-SHA1 Credential={name}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return (("x-mq-client-id", "c"), ("x-mq-date-time", DATE), ("authorization", text))
