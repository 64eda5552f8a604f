"""Calls that are answered by callbacks, without a task, after the check of access.

They are those of RocketMQ's clients, whose credentials can be looked at twice. Every other call is left to
the coroutine: one of a session, whose number is taken once; one under a quota; one that is refused.

Invariants
- A call begins here only if it is admitted; one that is left to the coroutine has changed nothing. (A receive
  may have messages already: its coroutine gets them, or they come back when the call ends.)
- A caller or an admitted request is remembered until users, rules or quotas change: each change makes another
  generation.
- A caller is noted on the transport's object for the headers of this connection. Equal headers are the same
  statement: RocketMQ's signature covers no more than its date, and the address and the certificate are the
  connection's. For headers that vary in something else, such as a time limit, the caller is also looked up by
  signature and connection; a certificate is not, because another connection may come from the same address
  and port.
- Admitted requests are remembered by the names in them, at most NAMES_MAX for all users, but not those
  that name the audit records, because each of them is recorded.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

from trovemq_broker.security.creators import reset_creator, set_creator
from trovemq_broker.server.access.gate import AUTHORIZATION_KEY, DATE_KEY, Caller, Gate
from trovemq_broker.server.access.needs import Need, Row
from trovemq_broker.server.access.refusals import is_rocketmq
from trovemq_broker.server.wire.statuses import Malformed
from trovemq_daemon.callback_handlers import AGAIN, Answer, Begin
from trovemq_daemon.handler_guard import bounded_reader
from trovemq_daemon.peers import peer_of_call
from trovemq_proto.audit import AUDIT_TOPIC
from trovemq_proto.authentication.calls import METADATA_KEY
from trovemq_proto.errors import TroveError
from trovemq_store.topics.creators import Creator

KNOWN_MAX: Final = 4_096
NAMES_MAX: Final = 65_536  # of admitted requests: about 40 MB, where each name is as long as it may be
RequestKey: TypeAlias = tuple[str, ...] | frozenset[Need]
"""The part of a request that decides about it: its texts (Row.key), or its needs. They are never equal."""
_CREDENTIALS: Final = frozenset({METADATA_KEY, AUTHORIZATION_KEY, DATE_KEY})


class _Known(NamedTuple):
    """A caller, by the users and rules of this generation."""

    generation: object
    caller: Caller
    creator: Creator


class KnownCallers:
    """Callers of all methods of a gate, and their admitted requests."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._generation: object = None
        self._known: dict[tuple[Any, ...], _Known] = {}
        self._admitted: set[tuple[str, str, str, RequestKey]] = set()

    def caller(self, path: str, context: Any) -> _Known | None:
        """None: a session's call. TroveError AUTHENTICATION_FAILED, SERVICE_NOT_AVAILABLE."""
        known: _Known | None = context.head.note
        if known is not None and known.generation is self._gate.generation:
            return known
        known = self._find(path, context)
        if known is not None:
            context.head.note = known
        return known

    def _find(self, path: str, context: Any) -> _Known | None:
        gate, metadata = self._gate, context.invocation_metadata() or ()
        shown = [pair for pair in metadata if pair[0] in _CREDENTIALS]
        if any(name == METADATA_KEY for name, _ in shown):
            return None
        key = (context.peer(), bool(context.auth_context()), *shown)
        known = self._known.get(key)
        if known is not None and known.generation is gate.generation:
            return known
        caller = gate.caller(gate.credentials(path, metadata), peer_of_call(context))
        known = _Known(gate.generation, caller, gate.creator(caller))
        self._forget_if_changed()
        if any(name == AUTHORIZATION_KEY and value for name, value in shown):
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[key] = known
        return known

    @property
    def remembered(self) -> int:
        """The number of callers and requests that are remembered."""
        return len(self._known) + len(self._admitted)

    def _forget_if_changed(self) -> None:
        generation = self._gate.generation
        if generation is not self._generation:
            self._known.clear()
            self._admitted.clear()
            self._generation = generation

    def is_admitted(self, who: _Known, path: str, request_key: RequestKey) -> bool:
        """Whether a request with this key was admitted."""
        caller = who.caller
        return (
            who.generation is self._generation
            and (caller.access_key, caller.source, path, request_key) in self._admitted
        )

    def admitted(self, who: _Known, path: str, request_key: RequestKey) -> None:
        self._forget_if_changed()
        if who.generation is self._generation:
            if len(self._admitted) >= NAMES_MAX:
                self._admitted.clear()
            self._admitted.add((who.caller.access_key, who.caller.source, path, request_key))


def guarded_begin(
    gate: Gate, known: KnownCallers, path: str, row: Row, begin: Begin, read: Any, *, polls: bool = False
) -> Begin:
    """`begin` with the gate before it, for the bytes of the request. `read`: the method's own reader.
    `polls`: an answer may come much later than its request. Then the call is checked again."""
    assert callable(row.needs), "who may call depends on the request"
    assert row.audit is None, "acts and look-ups are recorded by the coroutine's guard"
    assert row.show is None, "replies are shown whole"
    assert row.narrow is None, "requests are read whole"
    of_rocketmq, bounded, needs = is_rocketmq(path), bounded_reader(read), row.needs
    assert not of_rocketmq or (row.producers is None and row.creates is None), "names say all that is checked"
    key_of = row.key

    def admit(who: _Known, request: Any) -> None:
        """A request with the key of an admitted one is admitted. TroveError."""
        request_key: RequestKey = key_of(request) if key_of is not None else ()
        if not request_key:
            request_key = frozenset(needs(request))
        if known.is_admitted(who, path, request_key):
            return
        gate.admit(who.caller, row, request, path)
        if all(need.name != AUDIT_TOPIC for need in needs(request)):
            known.admitted(who, path, request_key)

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

        def answer_late(outcome: Any) -> None:
            if outcome is not AGAIN and who.generation is not gate.generation:
                try:
                    caller = known.caller(path, context)
                    if caller is None:
                        outcome = AGAIN
                    else:
                        admit(caller, request)
                except TroveError:
                    outcome = AGAIN  # the coroutine refuses it
            answer(outcome)

        token = set_creator(who.creator)
        try:
            return begin(request, context, answer_late if polls else answer)
        finally:
            reset_creator(token)

    return guarded
