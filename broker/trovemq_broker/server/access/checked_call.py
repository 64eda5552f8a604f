"""One call of a method with the check of access: its caller, its quota, its audit record."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import grpc

from trovemq_broker.server.access.audit import CANCELLED, OK, outcome_of, outcome_of_error
from trovemq_broker.server.access.callbacks import Known, KnownCallers
from trovemq_broker.server.access.checked_context import checked_context, checked_requests
from trovemq_broker.server.access.gate import Caller, CallQuota, Credentials, Gate
from trovemq_broker.server.access.needs import Level, Row
from trovemq_broker.server.access.open_methods import count_unknown
from trovemq_broker.server.access.refusals import is_rocketmq, refused_reply
from trovemq_broker.server.core.refused_message import RefusedMessage
from trovemq_broker.server.wire.statuses import Context, Malformed
from trovemq_daemon.calls import HELD, Call, add_layer, is_stream
from trovemq_daemon.handler_guard import bounded_reader
from trovemq_daemon.peers import peer_of_call
from trovemq_daemon.reply_budget import size_of
from trovemq_daemon.turns import count_work
from trovemq_proto import errors
from trovemq_proto.audit import AUDIT_TOPIC, AuditRecord
from trovemq_proto.authentication.calls import Buffer, message_checker
from trovemq_proto.errors import TroveError
from trovemq_store.topics.creators import NOBODY


class CheckedMethod:
    """One method."""

    def __init__(self, gate: Gate, path: str, row: Row, read: Any, *, requests: bool, replies: bool) -> None:
        """`requests`, `replies`: whether it has streams of them."""
        self.gate = gate
        self.path = path
        self.row = row
        self.is_rocketmq = is_rocketmq(path)
        self.read = bounded_reader(read)
        self.streams_requests = requests
        self.streams_replies = replies


class CheckedCall:
    """One call of a method. `context`: the one of its handler."""

    def __init__(self, method: CheckedMethod, context: Context) -> None:
        self.method: Any = method
        self._gate = method.gate
        self.context: Any = context
        self.peer = peer_of_call(context)
        self._outer = context
        self._credentials: Credentials | None = None
        self._caller: Caller | None = None
        self.creator = NOBODY
        self._known_topic = ""
        self._known_generation: object = None
        self._calm_generation: object = None
        self._reply_generation: object = None
        self._opening: Any = None
        self._admits: tuple[object, Any, bool] = (None, None, False)
        """The last answer of admits(): generation, message and result."""
        self._is_signed: Callable[[Buffer], bool] | None = None
        self._client_id = ""
        self._quota: CallQuota | None = None
        self._message: Any = None
        self._begun: AuditRecord | None = None
        self._known_callers: KnownCallers | None = None
        self._outer_layers: Any = None
        self._has_ended = False
        self.outcome = CANCELLED

    @property
    def access_key(self) -> str:
        return self._caller.access_key if self._caller is not None else ""

    @property
    def source(self) -> str:
        """The caller's address for the log and the audit."""
        return self.peer.source if self._caller is None else self._caller.audited_source

    @property
    def caller(self) -> Caller:
        assert self._caller is not None, "after begin()"
        return self._caller

    async def begin(self, data: Any) -> Any:
        """The admitted request, or the iterator of requests, for the handler; waits for quotas. Raises
        TroveError."""
        method, gate = self.method, self.method.gate
        credentials = gate.credentials(method.path, self._outer.invocation_metadata() or ())
        try:
            self._caller = caller = gate.caller(credentials, self.peer)
        except TroveError:
            await count_unknown(gate, self._outer, data)
            raise
        self._credentials = credentials
        self.creator = gate.creator(caller)
        signed_by = credentials.session_call
        if signed_by is not None:
            self._is_signed = message_checker(signed_by.session.key, signed_by.number)
        self._client_id = credentials.client_id
        self._quota = gate.quota_of(caller, self._client_id, self._outer.peer())
        if self._quota is not None and method.row.is_query:
            count_work(self._quota.worked)
        if not method.streams_requests:
            refusal = None if self._quota is None else await self._request(self._quota, data)
            self._reply_generation = gate.generation
            request = self._admitted(data, refusal)
            if request is self._message:  # it is neither malformed nor refused
                self._begun = await gate.audit.begin(
                    method.row, method.path, caller.access_key, self.source, request
                )
            return request
        gate.user_of(caller)
        if method.row.needs is Level.SUPER:
            gate.admit(caller, method.row, None)
        self._reply_generation = gate.generation
        self.context = checked_context(self._outer, self)
        return checked_requests(data, self)

    def begin_known(self, who: Known, known_callers: KnownCallers, request: Any) -> None:
        """Instead of begin(), for a caller that is remembered and a request that was admitted."""
        self._known_callers = known_callers
        self._caller, self.creator = who.caller, who.creator
        self._opening = self._message = request
        self._reply_generation = who.generation

    # --- calls with one request -------------------------------------------------------------------------
    def watch(self, call: Call) -> None:
        """Sees the outcome of a call that was admitted."""
        self._outer_layers = call.layers
        add_layer((call,), self._answered)
        call.check = partial(self._may_answer, call)

    def _may_answer(self, call: Call) -> bool:
        try:
            self.check_late_reply()
        except TroveError as error:
            self.outcome = error.symbol
            self.end()
            call.layers = self._outer_layers
            call.answer(self.method.refusal(error))
            return False
        return True

    def _answered(self, call: Call, outcome: Any) -> Any:
        if is_stream(outcome):
            call.on_end(lambda _call: self.end())  # if the replies never begin
            return self._checked(outcome)
        if isinstance(outcome, BaseException):
            self.outcome = outcome_of_error(outcome)
            if isinstance(outcome, TroveError) and "quota" in outcome.fields:
                add_layer((call,), self._failed)  # a task may be cancelled before it begins
                call.run(self._fail_later(call, outcome))
                return HELD
            self.end()
            return outcome
        try:
            if self.method.row.waits:
                self.check_late_reply()
            if self.method.streams_replies:
                if self.method.row.show is not None:
                    outcome = [self.shown(reply) for reply in outcome]
                self.outcome = OK
            else:
                outcome = self.shown(outcome)
                self.outcome = outcome_of(outcome)
            if self._quota is not None:
                for reply in outcome if self.method.streams_replies else (outcome,):
                    self.count(reply)
        except Exception as error:
            self.outcome = outcome_of_error(error)
            raise
        finally:
            self.end()
        return outcome

    async def _fail_later(self, call: Call, error: TroveError) -> None:
        await self.hold(error)
        call.answer(error)

    def _failed(self, _call: Call, outcome: Any) -> Any:
        self.end()
        return outcome

    async def _checked(self, replies: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
        """The replies of a stream, each of which is checked before it is sent."""
        try:
            async with aclosing(replies):
                wait_s = 0.0
                async for reply in replies:
                    if wait_s > 0:
                        await asyncio.sleep(wait_s)
                    refusal = self.reply_refusal()
                    if refusal is not None:
                        yield refusal
                        return
                    shown = self.shown(reply)
                    yield shown
                    wait_s = self.count(shown)
            self.outcome = OK
        except BaseException as error:
            self.outcome = outcome_of_error(error)
            await self.hold(error)
            raise
        finally:
            self.end()

    # --- messages -----------------------------------------------------------------------------------------
    def _admitted(self, data: Buffer, refusal: TroveError | None) -> Any:
        """Checks a message. `refusal`: that of a quota."""
        if self._is_signed is not None and not self._is_signed(data):
            raise TroveError(errors.AUTHENTICATION_FAILED, "a message is not signed by its session")
        method = self.method
        message = method.read(data)
        if isinstance(message, (TroveError, Malformed)):
            if isinstance(message, Malformed):
                return message  # its service reports the fault
            raise message
        self._message = message
        if self._opening is None or self._opens(message):
            self._opening = message
        try:
            if refusal is not None:
                raise refusal
            self._admit(message)
        except TroveError as error:
            if error is not refusal and error.spec is not errors.ACCESS_DENIED:
                raise
            if not method.row.marks:
                raise
            method.gate.refused(method.path, error, self.source, self.access_key)
            return RefusedMessage(message, error)
        narrow = method.row.narrow
        if narrow is not None and method.gate.may_see(self.caller) is not None:
            narrow(message)
        return message

    def _opens(self, message: Any) -> bool:
        """Whether replies from now on are for what this message of Telemetry names: new settings."""
        needs = self.method.row.needs
        return self.method.is_rocketmq and callable(needs) and next(iter(needs(message)), None) is not None

    def _admit(self, message: Any) -> None:
        """Admits a message. A stream's messages for the same topic are admitted once until users or rules
        change; reads of the audit records are noted, so each of them is checked. Raises TroveError."""
        gate, row = self._gate, self.method.row
        if not row.by_topic:
            gate.admit(self.caller, row, message, self.method.path)
            return
        topic, generation = message.topic, gate.generation
        if generation is self._known_generation and topic == self._known_topic:
            if row.producers is not None and (producers := row.producers(message)):
                gate.check_producers(self.caller, producers)
            return
        gate.admit(self.caller, row, message, self.method.path)
        if topic != AUDIT_TOPIC:
            self._known_topic, self._known_generation = topic, generation

    async def next(self, data: Any) -> Any:
        """A stream's message for its handler; the end of the requests after a refusal that ends the stream.
        Raises TroveError."""
        try:
            if self._quota is None:  # quotas may have been set since the stream was opened
                self._quota = self.method.gate.quota_of(
                    self.caller, self._client_id, self._outer.peer(), is_open=True
                )
            refusal = None if self._quota is None else await self._request(self._quota, data)
            if refusal is not None:
                await self.hold(refusal)
            return self._admitted(data, refusal)
        except TroveError as error:
            self._note_refusal(error)
            if not self.method.is_rocketmq:
                raise
            await self._outer.write(refused_reply(self.method.path, error))
            return grpc.aio.EOF

    async def _request(self, quota: CallQuota, data: bytes) -> TroveError | None:
        return await quota.request(len(data), is_query=self.method.row.is_query)

    async def hold(self, error: BaseException) -> None:
        """Delays a refusal because of a quota."""
        who = self.access_key or self.peer.source
        await self.method.gate.hold(error, who, self._outer.time_remaining)

    @property
    def may_wait(self) -> bool:
        """Whether a message may have to wait for a quota, or may be refused in a reply. False stays false
        until users, rules or quotas change."""
        gate = self._gate
        if gate.generation is self._calm_generation:
            return False
        if self._quota is not None or self.method.is_rocketmq or gate.has_quotas:
            return True
        self._calm_generation = gate.generation
        return False

    def next_now(self, data: Buffer) -> Any:
        """The admitted message of these bytes; None, and nothing was done, if may_wait. Raises TroveError."""
        if self._gate.generation is not self._calm_generation and self.may_wait:
            return None
        try:
            return self._admitted(data, None)
        except TroveError as error:
            self._note_refusal(error)
            raise

    def again(self, message: Any, data: bytes) -> Any:
        """A message that was admitted, of a copy of its bytes."""
        again = self.method.read(data)
        return RefusedMessage(again, message.error) if isinstance(message, RefusedMessage) else again

    @property
    def may_reply(self) -> bool:
        """Whether a reply need not wait, and users and rules are those by which the caller of the stream was
        admitted."""
        generation = self._gate.generation
        return generation is self._reply_generation and (
            generation is self._calm_generation or not self.may_wait
        )

    def reply_refusal(self) -> Any:
        """The reply of RocketMQ's protocol that ends the stream instead of the next reply; None: it may be
        sent. Raises TroveError of check_reply() in the other protocol."""
        try:
            self.check_late_reply()
        except TroveError as error:
            if not self.method.is_rocketmq:
                raise
            return refused_reply(self.method.path, error)
        return None

    def check_late_reply(self) -> None:
        """Checks a reply that may come much later than its request, and notes a refusal. Raises TroveError
        AUTHENTICATION_FAILED, ACCESS_DENIED."""
        try:
            self.check_reply()
        except TroveError as error:
            self._note_refusal(error)
            raise

    def check_reply(self) -> None:
        """To be called before a reply that may come much later than its request: if users or rules have
        changed, the caller and the first request (of Telemetry, the newest settings) are checked again. (A
        stream whose service answers refused messages checks each of them: `admit_again`.) TroveError
        AUTHENTICATION_FAILED, ACCESS_DENIED."""
        gate, row = self._gate, self.method.row
        generation = gate.generation
        if generation is self._reply_generation:
            return
        if self._known_callers is not None:
            self._known_callers.caller(self.method.path, self._outer)
        else:
            assert self._credentials is not None, "after begin()"
            gate.caller(self._credentials, self.peer)  # the secret of a signature may have been dropped
        gate.user_of(self.caller)
        if callable(row.needs) and not row.marks and self._opening is not None:
            gate.admit(self.caller, row, self._opening, self.method.path)
        self._reply_generation = generation

    def admit_again(self, message: Any) -> None:
        """Admits a message that was admitted before and is answered now. TroveError AUTHENTICATION_FAILED,
        ACCESS_DENIED."""
        try:
            self._admit(message)
        except TroveError as error:
            self._note_refusal(error)
            raise

    def admits(self, message: Any) -> bool:
        """Whether a message would be admitted now. It is cheap to ask about the same object again."""
        generation, asked, admitted = self._admits
        if generation is not self._gate.generation or asked is not message:
            try:
                self._admit(message)
                admitted = True
            except TroveError:
                admitted = False
            self._admits = (self._gate.generation, message, admitted)
        return admitted

    def _note_refusal(self, error: TroveError) -> None:
        self.method.gate.refused(self.method.path, error, self.source, self.access_key)

    def count(self, reply: Any) -> float:
        """Counts a reply. Returns the seconds that the stream's next one must wait; later requests wait in
        any case. RocketMQ's clients get leased messages without a wait."""
        if self._quota is None or reply is None:
            return 0.0
        wait_s = self._quota.reply(size_of(reply))
        return 0.0 if self.method.is_rocketmq else wait_s

    def end(self) -> None:
        if self._has_ended:
            return
        self._has_ended = True
        if self._quota is not None:
            self._quota.end()
        method = self.method
        if method.row.audit is not None:
            method.gate.audit.called(
                method.row,
                method.path,
                self.access_key,
                self.source,
                self._message,
                self.outcome,
                self._begun,
            )

    def shown(self, reply: Any) -> Any:
        show = self.method.row.show
        if show is None:
            return reply
        may_see = self.method.gate.may_see(self.caller)
        return reply if may_see is None else show(reply, may_see)
