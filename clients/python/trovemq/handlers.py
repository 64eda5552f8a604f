"""The functions of a worker: each with its topic, its group, and its reaction to failures.

    handlers = trovemq.Handlers(middleware=[trovemq.middleware.log_calls()])

    @handlers.handle("orders", "billing", concurrency=8, on_error={Refused: "dead_letter"})
    async def bill(message: trovemq.ReceivedMessage) -> None: ...

    await client.run(handlers)      # until SIGTERM or Ctrl-C

The outcome of a message whose function raises:

| on_error for the exception's class | then                                                                 |
|------------------------------------|----------------------------------------------------------------------|
| none                               | again, by the group's back-off and attempts                          |
| Retry(delay, attempts_max)         | again after the delay; after that many deliveries a dead letter      |
| "dead_letter"                      | a dead letter now                                                    |
| "discard"                          | acknowledged, with a warning in the log                              |
| any; the function has settled it   | nothing more                                                         |

The most derived matching class counts, in the handler's `on_error`, else in that of all handlers. A message
whose body cannot be decoded becomes a dead letter, unless `on_error` names UndecodableBody itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal, TypedDict, TypeVar, Unpack

from trovemq._common.arguments import check_amount, check_callable, check_number, check_text
from trovemq.received import Delay, ReceivedMessage
from trovemq.serializers import Serializer, UndecodableBody
from trovemq.starts import Start
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

Function = TypeVar("Function", bound=Callable[..., object])

BATCH_COUNT_MAX: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """The message is delivered again.

    Attributes:
        delay: Seconds until then, or a function that returns them for an attempt (1 for the first delivery);
            None: the group's back-off.
        attempts_max: The number of deliveries after which the message is a dead letter, if the group allows
            as many.

    Raises:
        TroveError: REQUEST_ILLEGAL.
    """

    delay: Delay | Callable[[int], Delay] | None = None
    attempts_max: int | None = None

    def __post_init__(self) -> None:
        if self.delay is not None and not callable(self.delay):
            seconds = self.delay.total_seconds() if isinstance(self.delay, timedelta) else self.delay
            check_amount("delay", seconds)
        if self.attempts_max is not None:
            check_number("attempts_max", self.attempts_max)
            check_amount("attempts_max", self.attempts_max, above=True)

    def is_over(self, attempt: int) -> bool:
        """Whether that delivery was the last one."""
        return self.attempts_max is not None and attempt >= self.attempts_max

    def delay_after(self, attempt: int) -> Delay | None:
        """The delay after that delivery."""
        return self.delay(attempt) if callable(self.delay) else self.delay


OnError = Retry | Literal["dead_letter", "discard"]
Policy = Mapping[type[BaseException], OnError]
POLICY_DEFAULT: Final[Policy] = {UndecodableBody: "dead_letter"}


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a handler, for middleware.

    Attributes:
        name: The function's name.
        topic: The handler's topic.
        group: Its group.
        messages: One message, or the messages of a batch.
    """

    name: str
    topic: str
    group: str
    messages: tuple[ReceivedMessage, ...]


Middleware = Callable[[Call, Callable[[], Awaitable[None]]], Awaitable[None]]
"""`async def middleware(call, proceed)`: awaits `proceed()` once; its exception counts as the handler's."""


class HandlerArguments(TypedDict, total=False):
    """The arguments of each handler.

    Attributes:
        concurrency: The most calls at a time (16).
        rate_max: The most messages per second; None for no limit.
        on_error: The reaction, by class of exception.
        filter: As in `Client.subscribe`, like the following ones.
    """

    concurrency: int
    rate_max: float | None
    on_error: Policy
    filter: str
    tags: Sequence[str] | None
    sql: str | None
    invisible_ms: int | None
    prefetch: int | None
    prefetch_bytes_max: int
    start: Start | None
    wait_for_topic: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """One function with its topic and group; created by `Handlers`.

    Attributes:
        batch: The size of the largest batch, and how many seconds it waits for more messages; None: one
            message per call.
        subscribe: Further arguments of `Client.subscribe`.
    """

    topic: str
    group: str
    function: Callable[..., object]
    body: Serializer[Any] | None = None
    batch: tuple[int, float] | None = None
    concurrency: int = 16
    rate_max: float | None = None
    on_error: Policy = field(default_factory=dict)
    subscribe: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The function's name."""
        return getattr(self.function, "__qualname__", type(self.function).__qualname__)

    def check(self) -> None:
        """Raises TroveError TOPIC_ILLEGAL, GROUP_ILLEGAL, REQUEST_ILLEGAL."""
        check_text("topic", self.topic, errors.TOPIC_ILLEGAL)
        check_text("group", self.group, errors.GROUP_ILLEGAL)
        check_callable("the handler", self.function)
        if self.body is not None and not callable(getattr(self.body, "decode", None)):
            raise TroveError(errors.REQUEST_ILLEGAL, f"body={self.body!r} is no serializer: it has no decode")
        check_number("concurrency", self.concurrency)
        if self.rate_max is not None:
            check_amount("rate_max", self.rate_max, above=True)
        if self.batch is not None:
            _check_batch(*self.batch)
        check_policy(self.on_error)
        if unknown := set(self.subscribe) - HandlerArguments.__annotations__.keys():
            known = ", ".join(sorted(HandlerArguments.__annotations__))
            text = f"a handler has no argument {min(unknown)!r}; it may have {known}"
            raise TroveError(errors.REQUEST_ILLEGAL, text)


def check_policy(policy: object) -> None:
    """Raises TroveError REQUEST_ILLEGAL unless it has an end of the message for each class of exception."""
    if not isinstance(policy, Mapping):
        raise TroveError(errors.REQUEST_ILLEGAL, f"on_error={policy!r} is no mapping of exception classes")
    for cls, action in policy.items():
        if not (isinstance(cls, type) and issubclass(cls, BaseException)):
            raise TroveError(errors.REQUEST_ILLEGAL, f"on_error: {cls!r} is no class of exceptions")
        if not isinstance(action, Retry) and action not in ("dead_letter", "discard"):
            text = f'on_error: {action!r} is no Retry, "dead_letter" or "discard"'
            raise TroveError(errors.REQUEST_ILLEGAL, text)


def _check_batch(count_max: int, wait: float) -> None:
    check_number("count_max", count_max)
    if not 1 <= count_max <= BATCH_COUNT_MAX:
        text = f"count_max={count_max} is not in 1..{BATCH_COUNT_MAX}"
        raise TroveError(errors.REQUEST_ILLEGAL, text)
    check_amount("wait", wait)


class Handlers:
    """The handlers of a worker, for `Client.run`.

    Args:
        middleware: Wraps each call, the first one outermost.
        on_error: For exceptions that a handler's own `on_error` does not name.

    Raises:
        TroveError: REQUEST_ILLEGAL.
    """

    def __init__(self, *, middleware: Sequence[Middleware] = (), on_error: Policy | None = None) -> None:
        if callable(middleware):
            raise TroveError(errors.REQUEST_ILLEGAL, "middleware is a list of functions: middleware=[…]")
        self.middleware = tuple(middleware)
        for one in self.middleware:
            check_callable("middleware", one)
        check_policy(on_error or {})
        self.on_error: Policy = {**POLICY_DEFAULT, **(on_error or {})}
        self.all: list[Handler] = []

    def handle(
        self,
        topic: str,
        group: str,
        *,
        body: Serializer[Any] | None = None,
        **arguments: Unpack[HandlerArguments],
    ) -> Callable[[Function], Function]:
        """A decorator: the function is called with each message, or with its value and the message.

        Args:
            topic: The topic.
            group: The consumer group.
            body: Makes the value from the message's body.

        The function may be async; any other runs in a thread.

        Raises:
            TroveError: REQUEST_ILLEGAL.
        """
        return self._adder(topic, group, body, None, arguments)

    def handle_batch(
        self,
        topic: str,
        group: str,
        *,
        count_max: int = 100,
        wait: float = 0.1,
        body: Serializer[Any] | None = None,
        **arguments: Unpack[HandlerArguments],
    ) -> Callable[[Function], Function]:
        """A decorator: the function is called with a list of messages, or with the list of their values and
        that of the messages. They are consumed together, or all of them fail, except for those that the
        function itself has settled by `ack`, `nack` or `dead_letter`.

        Args:
            topic: The topic.
            group: The consumer group.
            count_max: Messages of a call.
            wait: Seconds that an incomplete batch waits for more.
            body: Makes the values. A message whose body cannot be decoded fails alone.

        Raises:
            TroveError: REQUEST_ILLEGAL.
        """
        return self._adder(topic, group, body, (count_max, wait), arguments)

    def _adder(
        self,
        topic: str,
        group: str,
        body: Serializer[Any] | None,
        batch: tuple[int, float] | None,
        arguments: HandlerArguments,
    ) -> Callable[[Function], Function]:
        own: dict[str, Any] = {**arguments}
        named = {name: own.pop(name) for name in ("concurrency", "rate_max", "on_error") if name in own}

        def add(function: Function) -> Function:
            handler = Handler(
                topic=topic, group=group, function=function, body=body, batch=batch, subscribe=own, **named
            )
            handler.check()
            self.all.append(handler)
            return function

        return add

    def action(self, handler: Handler, failure: BaseException) -> OnError | None:
        """The reaction to the failure; None: as the group's settings say."""
        # No second try makes a body decodable: a retry of every ValueError does not mean it.
        is_undecodable = isinstance(failure, UndecodableBody)
        classes = (UndecodableBody,) if is_undecodable else type(failure).__mro__
        for policy in (handler.on_error, self.on_error):
            for cls in classes:
                if cls in policy:
                    return policy[cls]
        return None
