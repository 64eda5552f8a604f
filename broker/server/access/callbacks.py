"""Calls that are answered by callbacks, without a task, after the check of access.

They are those of RocketMQ's clients, whose credentials can be looked at twice. Every other call is left to
the coroutine: one of a session, whose number is taken once; one under a quota; one that is refused.

Invariants
- A call begins here only if it is admitted; one that is left to the coroutine has changed nothing. (A receive
  may have messages already: its coroutine gets them, or they come back when the call ends.)
- Who signed is remembered for its connection, and the names for which a method's calls were admitted, until
  users or rules change. Who showed a certificate is not: another connection may come from the same address
  and port. Requests that name the audit records are not, because each of them is recorded.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from broker.security.changes import SecurityState
from broker.security.creators import reset_creator, set_creator
from broker.server.access.gate import AUTHORIZATION_KEY, DATE_KEY, Caller, Gate
from broker.server.access.needs import Row
from broker.server.access.refusals import is_rocketmq
from broker.server.rocketmq.status import Malformed
from trovemq_daemon.callback_handlers import Answer, Begin
from trovemq_daemon.handler_guard import bounded_reader
from trovemq_daemon.peers import peer_of_call
from trovemq_proto.audit import AUDIT_TOPIC
from trovemq_proto.authentication.calls import METADATA_KEY
from trovemq_proto.errors import TroveError
from trovemq_store.topics.creators import Creator

KNOWN_MAX: Final = 4_096
ADMITTED_MAX: Final = 256  # of one caller
_CREDENTIALS: Final = frozenset({METADATA_KEY, AUTHORIZATION_KEY, DATE_KEY})


class _Known(NamedTuple):
    """A caller, by the users and rules of this state. `admitted`: paths, each with a request's names."""

    state: SecurityState
    caller: Caller
    creator: Creator
    admitted: set[tuple[str, ...]]


class KnownCallers:
    """Callers by their signature and connection, of all methods of a gate."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._known: dict[tuple[Any, ...], _Known] = {}

    def caller(self, path: str, context: Any) -> _Known | None:
        """None: a session's call. TroveError AUTHENTICATION_FAILED, SERVICE_NOT_AVAILABLE."""
        gate, metadata = self._gate, context.invocation_metadata() or ()
        shown = [pair for pair in metadata if pair[0] in _CREDENTIALS]
        if any(name == METADATA_KEY for name, _ in shown):
            return None
        key = (context.peer(), bool(context.auth_context()), *shown)
        known = self._known.get(key)
        if known is not None and known.state is gate.state:
            return known
        caller = gate.caller(gate.credentials(path, metadata), peer_of_call(context))
        known = _Known(gate.state, caller, gate.creator(caller), set())
        if any(name == AUTHORIZATION_KEY and value for name, value in shown):
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[key] = known
        return known


def guarded_begin(gate: Gate, known: KnownCallers, path: str, row: Row, begin: Begin, read: Any) -> Begin:
    """`begin` with the gate before it, for the bytes of the request. `read`: the method's own reader."""
    assert callable(row.needs), "who may call depends on the request"
    assert row.audit is None, "acts and look-ups are recorded by the coroutine's guard"
    assert row.show is None, "replies are shown whole"
    assert row.narrow is None, "requests are read whole"
    of_rocketmq, bounded, needs = is_rocketmq(path), bounded_reader(read), row.needs
    assert not of_rocketmq or (row.producers is None and row.creates is None), "names say all that is checked"

    def admit(who: _Known, request: Any) -> None:
        """A row asks for the same actions each time, so names say whether it was admitted. TroveError."""
        names = (path, *[need.name for need in needs(request)])
        if names in who.admitted:
            return
        gate.admit(who.caller, row, request, path)
        if AUDIT_TOPIC not in names:
            if len(who.admitted) >= ADMITTED_MAX:
                who.admitted.clear()
            who.admitted.add(names)

    def guarded(data: bytes, context: Any, answer: Answer) -> bool:
        if not of_rocketmq or gate.has_quotas:
            return False
        try:
            who = known.caller(path, context)
            request = bounded(data)
            if who is None or isinstance(request, (TroveError, Malformed)):
                return False
            admit(who, request)
        except TroveError:
            return False
        token = set_creator(who.creator)
        try:
            return begin(request, context, answer)
        finally:
            reset_creator(token)

    return guarded
