"""The check of access before the handlers of remoting requests: by the same users, rules, quotas and
counters as for gRPC.

Each request is signed separately (security/remoting.py), and admitted by the needs of its code. A connection
that a node of the replica group passes on begins with that node's request (relayed): its other requests are
those of the client, whose address it names, and whose signatures are checked as on any connection.
"""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from functools import partial
from typing import Final

from trovemq_broker.security.actions import Kind
from trovemq_broker.security.creators import present_creator, reset_creator, set_creator
from trovemq_broker.security.remoting import ACCESS_KEY, user_of_fields
from trovemq_broker.server.access.audit import CANCELLED, OK, outcome_of_error
from trovemq_broker.server.access.gate import Caller, Gate
from trovemq_broker.server.access.needs import PUB, Need, Row
from trovemq_broker.server.access.needs import ROWS as NATIVE_ROWS
from trovemq_broker.server.access.serving_gate import ServingGate
from trovemq_broker.server.remoting.members import Member
from trovemq_broker.server.remoting.native_calls import CallContext
from trovemq_broker.server.remoting.rights import ROWS
from trovemq_broker.server.wire.shown_replies import MaySee
from trovemq_broker.server.wire.tool_calls import NativeCall
from trovemq_daemon.peers import Peer, peer_of, peer_of_call
from trovemq_daemon.remoting.request import Connection, Request
from trovemq_daemon.remoting.server import Handler
from trovemq_daemon.turns import count_work
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_proto.remoting.codes import request_name
from trovemq_proto.remoting.relayed import PURPOSE, RELAYED

PEER_SIZE_MAX: Final = 100


class RemotingGate:
    """`gate`: None: callers are not authenticated. `serving`: refuses messages while the broker has no
    configuration of its cluster."""

    def __init__(self, gate: Gate | None, serving: ServingGate) -> None:
        self._gate = gate
        self._serving = serving
        self._nodes: dict[Connection, tuple[str, str]] = {}
        """Of connections that a node passes on: its user and address."""

    def around(self, request: Request, handler: Handler) -> None:
        """Runs the handler for a caller who may make the request. TroveError."""
        if request.header.code == RELAYED:
            handler(request)
            return
        refusal = self._serving.refusal
        if refusal is not None and (error := refusal()) is not None:
            raise error
        if self._gate is None:
            handler(request)
            return
        self._admitted(self._gate, request, handler)

    def relayed(self, request: Request) -> None:
        """RELAYED: a node of the group passes on this connection. TroveError."""
        gate, connection, fields = self._gate, request.connection, request.header.fields
        if gate is None:
            text = "this node does not authenticate callers: the node that passes on connections does"
            raise TroveError(errors.AUTHENTICATION_DISABLED, text)
        path, at = "/remoting/RELAYED", _peer(connection).source
        try:
            node = self._caller(gate, request).access_key
            client, purpose = fields.get("peer", ""), fields.get("purpose")
            if purpose != PURPOSE or not peer_of(client[:PEER_SIZE_MAX], {}).source:
                raise TroveError(errors.REQUEST_ILLEGAL, "it names no client")
            self._check_node(gate, node)
            connection.relayed(client, is_secure=fields.get("secure") == "true")
        except TroveError as error:
            gate.refused(path, error, at, fields.get(ACCESS_KEY, "")[:80])
            raise
        self._nodes[connection] = node, at
        connection.on_lost.append(partial(self._forget, connection))
        request.answer()

    def _forget(self, connection: Connection) -> None:
        del self._nodes[connection]

    @staticmethod
    def _check_node(gate: Gate, access_key: str) -> None:
        user = gate.users().user(access_key)
        if user is None or not user.enabled or not user.is_super:
            raise TroveError(errors.ACCESS_DENIED, f"{access_key} may not pass on connections")

    def _admitted(self, gate: Gate, request: Request, handler: Handler) -> None:
        path = f"/remoting/{request_name(request.header.code)}"
        try:
            caller = self._caller(gate, request)
            gate.admit(caller, ROWS[request.header.code], request, path)
        except TroveError as error:
            source = self._caller_of(request.connection, "").audited_source
            gate.refused(path, error, source, request.header.fields.get(ACCESS_KEY, "")[:80])
            raise
        if gate.has_quotas:
            request.run(self._within_quotas(gate, caller, request, handler))
        else:
            self._run(gate, caller, request, handler)

    def may_send(self, producer: Member, topic: str) -> bool:
        """Whether the user of a producer may send to the topic now."""
        if self._gate is None:
            return True
        caller = self._caller_of(producer.connection, producer.user)
        row = Row(lambda _request: (Need(Kind.TOPIC, topic, PUB),))
        try:
            self._gate.admit(caller, row, None)
        except TroveError:
            return False
        return True

    @asynccontextmanager
    async def admitted(self, request: Request, call: NativeCall) -> AsyncIterator[None]:
        """The block makes a call of TroveMQ's services for the request, whose signature was checked: it is
        admitted and audited by the call's own row. TroveError."""
        gate = self._gate
        if gate is None:
            yield
            return
        path, message = call
        row = NATIVE_ROWS[path]
        caller = self._caller_of(request.connection, present_creator().name)
        source = caller.audited_source
        try:
            gate.admit(caller, row, message, path)
        except TroveError as error:
            gate.refused(path, error, source, caller.access_key)
            if row.audit is not None:
                gate.audit.called(row, path, caller.access_key, source, message, error.symbol)
            raise
        async with self.query(request) if row.is_query else nullcontext():
            begun = await gate.audit.begin(row, path, caller.access_key, source, message)
            outcome = CANCELLED
            try:
                yield
                outcome = OK
            except BaseException as error:
                outcome = outcome_of_error(error)
                raise
            finally:
                if row.audit is not None:
                    gate.audit.called(row, path, caller.access_key, source, message, outcome, begun)

    @asynccontextmanager
    async def query(self, request: Request) -> AsyncIterator[None]:
        """The block is a query of the request's user: an open call until its end, and the time of its steps
        counts for the quotas. TroveError LIMIT_EXCEEDED, AUTHENTICATION_FAILED."""
        gate = self._gate
        if gate is None or not gate.has_quotas:
            yield
            return
        caller = self._caller_of(request.connection, present_creator().name)
        quota = None
        try:
            try:
                quota = gate.quota_of(caller, "", request.connection.peer)
                if quota is not None:
                    await quota.query()
                    count_work(quota.worked)
            except TroveError as error:
                path = f"/remoting/{request_name(request.header.code)}"
                gate.refused(path, error, caller.audited_source, caller.access_key)
                raise
            yield
        finally:
            if quota is not None:
                quota.end()

    def may_see(self, request: Request) -> MaySee | None:
        """A test whether the caller may know that a resource exists; None: it may know all. TroveError
        AUTHENTICATION_FAILED."""
        if self._gate is None:
            return None
        caller = self._caller_of(request.connection, present_creator().name)
        return self._gate.may_see(caller)

    def has_secret(self, name: str, secret: str) -> bool:
        """Whether a user has this secret now, for a caller who may create the user."""
        user = self._gate.users().user(name) if self._gate is not None else None
        return user is not None and any(
            hmac.compare_digest(one.value, secret.encode()) for one in user.secrets
        )

    def _caller_of(self, connection: Connection, access_key: str) -> Caller:
        node, at = self._nodes.get(connection, ("", "")) if self._nodes else ("", "")
        return Caller(access_key, _peer(connection).source, None, f"{node} at {at}" if node else "")

    def _caller(self, gate: Gate, request: Request) -> Caller:
        table, connection = gate.users(), request.connection
        if (passed_on := self._nodes.get(connection)) is not None:
            self._check_node(gate, passed_on[0])
        if not _peer(connection).is_private:
            text = "signatures of remoting clients are accepted over TLS, or on loopback"
            raise TroveError(errors.AUTHENTICATION_FAILED, text)
        user = user_of_fields(table, request.header.fields, request.body)
        return self._caller_of(connection, user.access_key)

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
    return peer_of_call(CallContext(connection))
