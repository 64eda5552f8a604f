"""Callers of RocketMQ's clients, whose credentials can be looked at twice, and their admitted requests.

Invariants
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

from trovemq_broker.server.access.gate import AUTHORIZATION_KEY, DATE_KEY, Caller, Gate
from trovemq_broker.server.access.needs import Need, Row
from trovemq_daemon.peers import peer_of_call
from trovemq_proto.audit import AUDIT_TOPIC
from trovemq_proto.authentication.calls import METADATA_KEY
from trovemq_store.topics.creators import Creator

KNOWN_MAX: Final = 4_096
NAMES_MAX: Final = 65_536  # of admitted requests: about 40 MB, where each name is as long as it may be
RequestKey: TypeAlias = tuple[str, ...] | frozenset[Need]
"""The part of a request that decides about it: its texts (Row.key), or its needs. They are never equal."""
_CREDENTIALS: Final = frozenset({METADATA_KEY, AUTHORIZATION_KEY, DATE_KEY})


class Known(NamedTuple):
    """A caller, by the users and rules of this generation."""

    generation: object
    caller: Caller
    creator: Creator


class KnownCallers:
    """Callers of all methods of a gate, and their admitted requests."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._generation: object = None
        self._known: dict[tuple[Any, ...], Known] = {}
        self._admitted: set[tuple[str, str, str, RequestKey]] = set()

    def caller(self, path: str, context: Any) -> Known | None:
        """None: a session's call. TroveError AUTHENTICATION_FAILED, SERVICE_NOT_AVAILABLE."""
        head = getattr(context, "head", None)  # of trovemq_rpc
        known: Known | None = None if head is None else head.note
        if known is not None and known.generation is self._gate.generation:
            return known
        known = self._find(path, context)
        if known is not None and head is not None:
            head.note = known
        return known

    def _find(self, path: str, context: Any) -> Known | None:
        gate, metadata = self._gate, context.invocation_metadata() or ()
        shown = [pair for pair in metadata if pair[0] in _CREDENTIALS]
        if any(name == METADATA_KEY for name, _ in shown):
            return None
        key = (context.peer(), bool(context.auth_context()), *shown)
        known = self._known.get(key)
        if known is not None and known.generation is gate.generation:
            return known
        caller = gate.caller(gate.credentials(path, metadata), peer_of_call(context))
        known = Known(gate.generation, caller, gate.creator(caller))
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

    def admit(self, who: Known, path: str, row: Row, request: Any) -> None:
        """Admits a request whose names say all that is checked; at once if it has the key of an admitted one.
        TroveError."""
        assert callable(row.needs), "who may call depends on the request"
        request_key: RequestKey = row.key(request) if row.key is not None else ()
        if not request_key:
            request_key = frozenset(row.needs(request))
        caller = who.caller
        admitted = (caller.access_key, caller.source, path, request_key)
        if who.generation is self._generation and admitted in self._admitted:
            return
        self._gate.admit(caller, row, request, path)
        if any(need.name == AUDIT_TOPIC for need in row.needs(request)):
            return
        self._forget_if_changed()
        if who.generation is self._generation:
            if len(self._admitted) >= NAMES_MAX:
                self._admitted.clear()
            self._admitted.add(admitted)
