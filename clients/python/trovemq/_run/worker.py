"""Runs one handler: takes messages from its subscription, calls the function, settles the messages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

from trovemq._common.calling import Calling
from trovemq._consume.reasons import text_of
from trovemq.handlers import Call, Handler, Handlers, Middleware, OnError, Retry
from trovemq.received import ReceivedMessage, milliseconds
from trovemq.received_batch import ReceivedBatch
from trovemq.serializers import UndecodableBody
from trovemq.subscription import Subscription
from trovemq_proto.records.dead_letter_reason import cut

_log = logging.getLogger(__name__)

FAILURE_SIZE_MAX: Final = 256
"""The most bytes of an exception's text in a log line."""

Subscribe = Callable[..., Subscription]
Shown = Callable[[ReceivedMessage], Any]


class Worker:
    """One handler; `work` runs in as many tasks as its concurrency.

    Args:
        handler: The handler.
        handlers: All handlers of the program, with the common middleware and policy.
        subscribe: The client's method.
        shown: Makes the message for the function.

    Attributes:
        subscription: Must be entered before the work, and closed after it.
    """

    def __init__(self, handler: Handler, handlers: Handlers, subscribe: Subscribe, shown: Shown) -> None:
        self.handler = handler
        self._handlers = handlers
        self._shown = shown
        self._ending = asyncio.Event()
        self._turn = asyncio.Lock()  # one batch at a time is filled, and one rate applies
        self._free_at = 0.0  # in the loop's time
        self._function = Calling(handler.function, handler.concurrency, handler.name)
        self.subscription = subscribe(
            handler.topic, handler.group, handler=self._consume_directly, **handler.subscribe
        )
        self.subscription.works_on(handler.concurrency)

    def end(self) -> None:
        """Takes no more messages; those already taken are processed."""
        self._ending.set()
        self.subscription.end()

    def close(self) -> None:
        """Closes the subscription; call it after the work."""
        self._function.close()

    async def work(self) -> None:
        """Takes messages and calls the function until the end. Raises the TroveError that ends the
        subscription."""
        while messages := await self._take():
            try:
                await self._process(messages)
            except BaseException as failure:  # cancelled: other members can get the messages at once
                messages.return_after(failure)
                raise

    # --- taking ---------------------------------------------------------------------------------------

    async def _take(self) -> ReceivedBatch:
        """The next messages; none at the end."""
        rate_max, loop = self.handler.rate_max, asyncio.get_running_loop()
        if rate_max is None and self.handler.batch is None:
            return await self._next()
        async with self._turn:
            if loop.time() < self._free_at:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._ending.wait(), self._free_at - loop.time())
            messages = await self._next()
            if rate_max is not None:
                self._free_at = loop.time() + len(messages) / rate_max
            return messages

    async def _next(self) -> ReceivedBatch:
        if self.handler.batch is not None:
            return await self.subscription.next_batch(*self.handler.batch)
        message = await self.subscription.next()
        return ReceivedBatch(() if message is None else (message,))

    # --- calling --------------------------------------------------------------------------------------

    async def _process(self, taken: Sequence[ReceivedMessage]) -> None:
        messages, values = ReceivedBatch(), []
        for message in taken:
            try:
                values.append(self._value(message))
                messages.append(message)
            except UndecodableBody as failure:
                await self._fail(message, failure)
        if not messages:
            return
        try:
            await self._call(messages, values)
        except Exception as failure:
            for message in messages:
                await self._fail(message, failure)
        else:
            await messages.consumed()

    async def _consume_directly(self, message: ReceivedMessage) -> None:
        """Consumes a message by an operator's command; an exception is the answer."""
        await self._call([message], [self._value(message)])

    def _value(self, message: ReceivedMessage) -> object:
        if self.handler.body is None:
            return None
        try:
            return self.handler.body.decode(message.body)
        except Exception as failure:
            raise UndecodableBody(f"{type(failure).__name__}: {failure}") from failure

    async def _call(self, messages: Sequence[ReceivedMessage], values: Sequence[object]) -> None:
        handler = self.handler
        arguments: list[Any] = [[self._shown(message) for message in messages]]
        if handler.body is not None:
            arguments.insert(0, list(values))
        if handler.batch is None:
            arguments = [items[0] for items in arguments]
        call = Call(handler.name, handler.topic, handler.group, tuple(messages))
        tracing = self.subscription.tracing
        proceed: Callable[[], Awaitable[None]] = partial(self._function.call, *arguments)
        for middleware in reversed(self._handlers.middleware):
            proceed = partial(_through, middleware, call, proceed)
        if tracing is not None:
            proceed = partial(_through, tracing.handler, call, proceed)
        await proceed()

    # --- failures -------------------------------------------------------------------------------------

    async def _fail(self, message: ReceivedMessage, failure: Exception) -> None:
        action = self._handlers.action(self.handler, failure)
        self._log_failure(message, failure, action)
        try:
            await self._settle(message, failure, action)
        except Exception:  # an illegal delay
            _log.exception("what to do with %s of %s failed", message.message_id, message.topic)
            message.return_after(failure)

    def _log_failure(self, message: ReceivedMessage, failure: Exception, action: OnError | None) -> None:
        """One line for a failure that `on_error` expects; else with its traceback."""
        text = "the handler %s failed on %s of %s, attempt %d"
        where = (self.handler.name, message.message_id, message.topic, message.attempt)
        if action is None:
            _log.error(text, *where, exc_info=failure)
            return
        reason = cut(f"{type(failure).__name__}: {text_of(failure)}", FAILURE_SIZE_MAX)
        _log.warning(f"{text}, %s: %s", *where, _end_of(action, message), reason)

    async def _settle(self, message: ReceivedMessage, failure: Exception, action: OnError | None) -> None:
        if message.settled or action is None:
            message.return_after(failure)
        elif action == "discard":
            await message.consumed()
        elif not isinstance(action, Retry) or action.is_over(message.attempt):
            message.settled = True
            message.settlement.dead_letter(message, failure=failure)
        else:
            delay = action.delay_after(message.attempt)
            delay_ms = None if delay is None else milliseconds(delay)
            message.settled = True
            message.settlement.return_message(message, delay_ms, tried=True, failure=failure)


def _end_of(action: OnError, message: ReceivedMessage) -> str:
    """The end of the message, in words."""
    if message.settled:
        return "which has settled it"
    if action == "discard":
        return "and it is discarded"
    if not isinstance(action, Retry) or action.is_over(message.attempt):
        return "and it is a dead letter"
    return "and it is returned"


async def _through(middleware: Middleware, call: Call, proceed: Callable[[], Awaitable[None]]) -> None:
    await middleware(call, proceed)
