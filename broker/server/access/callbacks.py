"""Calls that are answered by callbacks, without a task, behind the gate.

They are those of RocketMQ's clients, whose credentials can be looked at twice. Every other call is left to
the coroutine: one of a session, whose number is taken once; one under a quota; one that is refused.

Invariants
- A call begins here only if it is admitted; what is left to the coroutine has changed nothing.
"""

from __future__ import annotations

from typing import Any

from broker.security.creators import reset_creator, set_creator
from broker.server.access.gate import Gate
from broker.server.access.needs import Row
from broker.server.access.refusals import is_rocketmq
from broker.server.rocketmq.status import Malformed
from trovemq_daemon.callback_handlers import Answer, Begin
from trovemq_daemon.handler_guard import bounded_reader
from trovemq_daemon.peers import peer_of_call
from trovemq_proto.authentication.calls import METADATA_KEY
from trovemq_proto.errors import TroveError


def guarded_begin(gate: Gate, path: str, row: Row, begin: Begin, read: Any) -> Begin:
    """`begin`, for the request's bytes and behind the gate. `read`: the method's own reader."""
    assert callable(row.needs), "who may call depends on the request"
    assert row.audit is None, "acts and look-ups are recorded by the coroutine's guard"
    assert row.show is None, "replies are shown whole"
    assert row.narrow is None, "requests are read whole"
    of_rocketmq, bounded = is_rocketmq(path), bounded_reader(read)

    def guarded(data: bytes, context: Any, answer: Answer) -> bool:
        metadata = context.invocation_metadata() or ()
        if not of_rocketmq or gate.has_quotas or METADATA_KEY in [name for name, _ in metadata]:
            return False
        try:
            request = bounded(data)
            if isinstance(request, (TroveError, Malformed)):
                return False
            caller = gate.caller(gate.credentials(path, metadata), peer_of_call(context))
            gate.admit(caller, row, request, path)
        except TroveError:
            return False
        token = set_creator(gate.creator(caller))
        try:
            return begin(request, context, answer)
        finally:
            reset_creator(token)

    return guarded
