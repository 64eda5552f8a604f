"""Adds the gate to every handler when its service is added to a server, with either transport.

Invariants
- A method without a row in the table is for super users only.
- No handler begins before its call is admitted; each message of a stream is admitted before the handler gets
  it.
- The bytes of messages are checked before the service's own reader parses them.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any, Final, TypeAlias

import grpc

from trovemq_broker.security.creators import reset_creator, set_creator
from trovemq_broker.server.access.audit import outcome_of, outcome_of_error
from trovemq_broker.server.access.callbacks import KnownCallers
from trovemq_broker.server.access.checked_call import CheckedCall, CheckedMethod
from trovemq_broker.server.access.gate import Gate
from trovemq_broker.server.access.needs import ROWS, Audit, Level, Row
from trovemq_broker.server.access.open_methods import OpenMethod
from trovemq_broker.server.access.refusals import refused_reply
from trovemq_broker.server.wire.statuses import Context, Malformed
from trovemq_daemon.calls import Call, CallHandler, calls_of, takes_one_request
from trovemq_proto.authentication.calls import Buffer
from trovemq_proto.errors import TroveError
from trovemq_store.topics.creators import Creator

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
FIRST_REQUEST_WAIT_S: Final = 3.0  # of a refused stream
_SUPER: Final = Row(Level.SUPER)
_USER: Final = Row(Level.USER)


class AccessGuard:
    """Adds the gate: `trovemq_daemon.grpc_server` calls `handler` for each method. HandlerGuard turns the
    errors into statuses."""

    def __init__(self, gate: Gate, forwarded: Callable[[], Collection[str]] = tuple) -> None:
        """`forwarded`: paths whose calls another broker checks, by which this one knows the caller only."""
        self._gate = gate
        self._known = KnownCallers(gate)
        self._forwarded = forwarded

    def handler(self, path: str, handler: Any) -> Any:
        """Wraps the handler with the gate: a CallHandler if it takes one request, else one of grpc's."""
        row = _USER if path in self._forwarded() else ROWS.get(path, _SUPER)
        if row.needs is Level.OPEN:
            return OpenMethod(self._gate, path, handler).handler()
        if takes_one_request(handler):
            return _Calls(self._gate, self._known, path, row, calls_of(handler)).handler()
        return _Streams(self._gate, path, row, handler).handler()


class _Calls(CheckedMethod):
    """A method with one request: the gate for calls that arrived together."""

    def __init__(self, gate: Gate, known: KnownCallers, path: str, row: Row, handler: CallHandler) -> None:
        super().__init__(gate, path, row, handler.read, requests=False, replies=handler.streams)
        self.known: Final = known
        self._handler = handler
        self._names_say_all = (
            self.is_rocketmq
            and callable(row.needs)
            and not row.is_query
            and all(part is None for part in (row.audit, row.show, row.narrow, row.producers, row.creates))
        )

    def handler(self) -> CallHandler:
        return replace(self._handler, on_calls=self.on_calls)

    def on_calls(self, calls: Sequence[Call]) -> None:
        """Passes the admitted calls on, those of one user together."""
        runs: list[tuple[Creator, list[Call]]] = []
        for call in calls:
            try:
                creator = self._admit(call)
            except Exception as error:  # other calls are served
                call.answer(error)
                continue
            if creator is None:
                continue
            if not runs or runs[-1][0].name != creator.name:
                runs.append((creator, []))
            runs[-1][1].append(call)
        for creator, some in runs:
            self._pass_on(creator, some)

    def _pass_on(self, creator: Creator, calls: Sequence[Call]) -> None:
        token = set_creator(creator)
        try:
            self._handler.on_calls(calls)
        except Exception as error:  # other users' calls are served
            for call in calls:
                call.answer(error)
        finally:
            reset_creator(token)

    def _admit(self, call: Call) -> Creator | None:
        """The creator if the call is admitted now. Else it was refused, or waits, and is passed on later."""
        gate = self.gate
        known = self._admit_known(call)
        if known is not None:
            return known
        one = CheckedCall(self, call.context)
        if gate.has_quotas or self.row.audit is Audit.ACT:
            call.keep()
            call.run(self._admit_in_task(one, call))
            return None
        return one.creator if _at_once(self._is_admitted(one, call)) else None

    def _admit_known(self, call: Call) -> Creator | None:
        """The creator, if the caller can be remembered and the request is admitted: most calls of RocketMQ's
        clients."""
        if not self._names_say_all or self.gate.has_quotas:
            return None
        try:
            who = self.known.caller(self.path, call.context)
            if who is None:
                return None
            request = self.read(call.keep())
            if isinstance(request, (TroveError, Malformed)):
                return None
            self.known.admit(who, self.path, self.row, request)
        except TroveError:
            return None  # it is refused for the same reason
        call.parsed = request
        if self.streams_replies:
            one = CheckedCall(self, call.context)
            one.begin_known(who, self.known, request)
            one.watch(call)
        return who.creator

    async def _admit_in_task(self, one: CheckedCall, call: Call) -> None:
        if await self._is_admitted(one, call):
            self._pass_on(one.creator, (call,))

    async def _is_admitted(self, one: CheckedCall, call: Call) -> bool:
        """Waits only for quotas, and for an act's audit record. False: the call was refused."""
        try:
            call.parsed = await one.begin(call.keep())
        except TroveError as error:
            one.outcome = error.symbol
            self.gate.refused(self.path, error, one.source, one.access_key)
            try:
                await one.hold(error)
            finally:
                one.end()
            call.answer(self.refusal(error))
            return False
        except BaseException:
            one.end()
            raise
        one.watch(call)
        return True

    def refusal(self, error: TroveError) -> Any:
        """The outcome of a refused call."""
        if not self.is_rocketmq:
            return error
        reply = refused_reply(self.path, error)
        return [reply] if self.streams_replies else reply


def _at_once(work: Coroutine[Any, Any, bool]) -> bool:
    """The result of a coroutine that does not wait."""
    try:
        work.send(None)
    except StopIteration as stop:
        return bool(stop.value)
    raise AssertionError("it waits")


class _Streams(CheckedMethod):
    """A stream of requests."""

    def __init__(self, gate: Gate, path: str, row: Row, handler: Handler) -> None:
        requests, replies = bool(handler.request_streaming), bool(handler.response_streaming)
        super().__init__(gate, path, row, handler.request_deserializer, requests=requests, replies=replies)
        self._handler = handler
        self._kind = "_".join("stream" if streaming else "unary" for streaming in (requests, replies))
        behaviour = getattr(handler, self._kind)
        self._behaviour = _writing(behaviour) if inspect.isasyncgenfunction(behaviour) else behaviour

    def handler(self) -> Handler:
        make = getattr(grpc, f"{self._kind}_rpc_method_handler")
        assert self.row.show is None or not self.streams_replies, (
            "replies that are written would be shown whole"
        )
        assert not self.row.is_query, "a call is one query"
        read: Callable[[Any], Any] = bytes
        if getattr(self.read, "takes_view", False):
            assert self.row.narrow is None, (
                "a message that its receiver leaves is read again, and not narrowed"
            )
            read = _uncopied
        return make(self._coroutine, read, self._handler.response_serializer)

    async def _coroutine(self, data: Any, context: Context) -> Any:
        call = CheckedCall(self, context)
        try:
            try:
                request = await call.begin(data)
                set_creator(call.creator)
            except TroveError as error:
                call.outcome = error.symbol
                self.gate.refused(self.path, error, call.source, call.access_key)
                await call.hold(error)
                if not self.is_rocketmq:
                    raise
                reply = refused_reply(self.path, error)
                if not self._handler.response_streaming:
                    return reply
                await _first_request(context)
                await context.write(reply)
                return None
            try:
                reply = await self._behaviour(request, call.context)
                reply = call.shown(reply)
            except BaseException as error:
                call.outcome = outcome_of_error(error)
                await call.hold(error)
                raise
            call.outcome = outcome_of(reply)
            call.count(reply)
            return reply
        finally:
            call.end()


def _writing(behaviour: Any) -> Any:
    """The generator of replies as a coroutine that writes them."""

    async def writing(requests: Any, context: Context) -> None:
        async with aclosing(behaviour(requests, context)) as replies:
            async for reply in replies:
                await context.write(reply)

    return writing


def _uncopied(data: Buffer) -> Buffer:
    """The bytes of a message as the transport has them, if the method's own reader takes them so."""
    return data


_uncopied.takes_view = True  # type: ignore[attr-defined]


async def _first_request(context: Context) -> None:
    """Waits for the first request: gRPC's clients do not read replies that arrive before they have
    written."""
    with suppress(TimeoutError):
        await asyncio.wait_for(context.read(), FIRST_REQUEST_WAIT_S)
