"""OpenTelemetry: spans for messages that a client sends and consumes, and the trace context in its messages.

    from trovemq.otel import Tracing

    client = await trovemq.connect("127.0.0.1:8081", options=trovemq.ClientOptions(tracing=Tracing()))

| span                                 | kind     | around                                    | links to     |
|--------------------------------------|----------|-------------------------------------------|--------------|
| `send TOPIC`                         | producer | one message, until it is acknowledged     |              |
| `send TOPIC`                         | client   | a batch; a message that has a context     | each message |
| `create TOPIC`                       | producer | a message of a batch or of a transaction  |              |
| `commit`                             | client   | an atomic transaction's end               | each message |
| `receive TOPIC`                      | client   | the program's wait for its next message   | each message |
| `process TOPIC`                      | consumer | `message.process()`, a call of a handler  | each message |
| `ack`, `nack`, `dead_letter` `TOPIC` | client   | a message's end, until the broker's answer| the message  |

Names, kinds and attributes are those of OpenTelemetry's semantic conventions for messaging, version 1.44.0,
which are still in development. The context is W3C's, in the properties `traceparent` and `tracestate`; a
message that already has a `traceparent` keeps it. If a message has none, RocketMQ's `trace_context` is read.
A message whose send is not sampled gets no context, because that takes 70 bytes in the store, unless
`propagate_unsampled` is set. Spans of consumers link to the span of the send; they are not its children.

Needs `pip install 'trovemq[otel]'`. A client without `tracing` does not import this module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from random import random
from typing import Any, Final

from opentelemetry import context, trace
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode

from trovemq._common.trace_context import (
    TRACEPARENT,
    TRACESTATE,
    Carried,
    CarriedOfEach,
    Properties,
    creation_context,
    properties_of,
    with_context,
)
from trovemq.fetched import Buffer
from trovemq.handlers import Call
from trovemq.receipts import BatchReceipt, SendReceipt
from trovemq.received import ReceivedMessage, Settlement
from trovemq_proto.errors import TroveError

__all__ = [
    "SCHEMA_URL",
    "TRACEPARENT",
    "TRACESTATE",
    "Properties",
    "TracedSettlement",
    "Tracing",
    "creation_context",
    "properties_of",
]

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"

_BATCH_COUNT: Final = "messaging.batch.message_count"
_ERROR: Final = "error.type"
_GROUP: Final = "messaging.consumer.group.name"
_ID: Final = "messaging.message.id"
_QUEUE: Final = "messaging.destination.partition.id"

_Send = Callable[..., Awaitable[SendReceipt]]


class Tracing:
    """For `ClientOptions.tracing`.

    Args:
        provider: Makes the spans; None for the provider of the process.
        root_ratio: The share (0 to 1) of sends outside of any trace that begin one, and of messages without
            a context that have spans. The provider's own sampler decides about these in addition. A send in
            a sampled trace always has a span, and so has a message with a sampled context. Sends that this
            share leaves out cost next to nothing; asking a sampler takes half as long as a send.
        create_spans: Whether each message of a sampled batch has a separate span; else they share the
            batch's.
        propagate_unsampled: Whether messages whose send is not sampled carry a context, too.
    """

    def __init__(
        self,
        provider: trace.TracerProvider | None = None,
        *,
        root_ratio: float = 1.0,
        create_spans: bool = True,
        propagate_unsampled: bool = False,
    ) -> None:
        self._tracer = trace.get_tracer("trovemq", version("trovemq"), provider, SCHEMA_URL)
        self._root_ratio = root_ratio
        self._asks_always = root_ratio >= 1.0 or propagate_unsampled
        self._create_spans = create_spans
        self._propagate_unsampled = propagate_unsampled

    # --- sending --------------------------------------------------------------------------------------

    def wants_send(self, properties: object = None) -> bool:
        """Whether a send may have a span. Not if it is within its span already, or if the producer will
        refuse its properties."""
        if properties is not None and (
            isinstance(properties, Carried) or not isinstance(properties, Mapping)
        ):
            return False
        if self._asks_always:
            return True
        current = context.get_current()
        if current:
            parent = trace.get_current_span(current).get_span_context()
            if parent.is_valid:
                return parent.trace_flags.sampled
        return random() < self._root_ratio  # noqa: S311  no secret

    def wants_batch(self, properties: object) -> bool:
        """Whether a batch may have a span. Not if it is within its span already, or if the producer will
        refuse its properties."""
        if isinstance(properties, CarriedOfEach | str):
            return False
        return self.wants_send(None if isinstance(properties, Sequence) else properties)

    async def send(self, topic: str, send: _Send, body: Buffer, **arguments: Any) -> SendReceipt:
        """Calls `send` within a span, with the span's context among the properties; returns its receipt."""
        span = self._begin_send(topic, arguments)
        try:
            receipt = await send(body, **arguments)
        except BaseException as failure:
            self.failed(span, failure)
            raise
        self._sent(span, receipt)
        return receipt

    def send_nowait(
        self, topic: str, send: Callable[..., asyncio.Future[SendReceipt]], body: Buffer, **arguments: Any
    ) -> asyncio.Future[SendReceipt]:
        """The future of `send`."""
        span = self._begin_send(topic, arguments)
        try:
            answer = send(body, **arguments)
        except BaseException as failure:
            self.failed(span, failure)
            raise
        if span.is_recording():
            answer.add_done_callback(partial(self._answered, span))
        return answer

    def send_oneway(self, topic: str, send: Callable[..., None], body: Buffer, **arguments: Any) -> None:
        """Sends within a span that ends when the message was submitted."""
        span = self._begin_send(topic, arguments)
        try:
            send(body, **arguments)
        except BaseException as failure:
            self.failed(span, failure)
            raise
        span.end()

    async def send_batch(
        self,
        topic: str,
        send: Callable[..., Awaitable[BatchReceipt]],
        bodies: Sequence[bytes],
        *,
        properties: Sequence[Properties | None] | Properties | None,
        **arguments: Any,
    ) -> BatchReceipt:
        """The receipt of `send`."""
        attributes: dict[str, Any] = {**_attributes("send", "send", topic), _BATCH_COUNT: len(bodies)}
        span = self._tracer.start_span(f"send {topic}", kind=SpanKind.CLIENT, attributes=attributes)
        try:
            carried = self._of_batch(topic, span, len(bodies), properties)
            receipt = await send(bodies, properties=carried, **arguments)
        except BaseException as failure:
            self.failed(span, failure)
            raise
        span.end()
        return receipt

    def _begin_send(self, topic: str, arguments: dict[str, Any]) -> Span:
        properties = arguments.get("properties")
        attributes = _attributes("send", "send", topic)
        if isinstance(properties, Mapping) and TRACEPARENT in properties:
            arguments["properties"] = Carried(properties)
            links = _links_of([creation_context(properties)])
            return self._tracer.start_span(
                f"send {topic}", kind=SpanKind.CLIENT, attributes=attributes, links=links
            )
        span = self._tracer.start_span(f"send {topic}", kind=SpanKind.PRODUCER, attributes=attributes)
        arguments["properties"] = with_context(properties, self._carried(span))
        return span

    def _sent(self, span: Span, receipt: SendReceipt) -> None:
        """Ends the span when the message is acknowledged."""
        if span.is_recording():
            attributes = {_ID: receipt.message_id}
            if receipt.queue_id >= 0:
                attributes[_QUEUE] = str(receipt.queue_id)
            span.set_attributes(attributes)
            span.end()

    def _answered(self, span: Span, answer: asyncio.Future[Any]) -> None:
        """Ends `span` when the answer has come; others wait for the answer."""
        if not span.is_recording():
            return
        if answer.cancelled():
            self.failed(span, asyncio.CancelledError())
        elif (failure := answer.exception()) is not None:
            self.failed(span, failure)
        elif isinstance(answer.result(), SendReceipt):
            self._sent(span, answer.result())
        else:
            span.end()

    def failed(self, span: Span, failure: BaseException) -> None:
        """Ends a span with an error."""
        if span.is_recording():
            name, text = _name_of(failure), None
            if isinstance(failure, TroveError):
                name, text = failure.symbol, failure.message
            span.set_attribute(_ERROR, name)
            span.set_status(Status(StatusCode.ERROR, text))
            span.end()

    def _of_batch(self, topic: str, span: Span, count: int, properties: Any) -> Any:
        """The properties of a batch's messages, with their contexts added."""
        given = properties if isinstance(properties, Sequence) else [properties] * count
        if span.is_recording() and self._create_spans:
            return CarriedOfEach(self.created(topic, span, one) for one in given)
        added = self._carried(span)
        if given is properties:
            return CarriedOfEach(with_context(one, added) for one in given)
        return with_context(properties, added)

    def created(self, topic: str, send: Span | None, properties: Any) -> Any:
        """The properties of a message, with the context of a new span added. The span `send` links to it."""
        if isinstance(properties, Mapping) and TRACEPARENT in properties:
            creation: SpanContext | None = creation_context(properties)
        else:
            parent = None if send is None else trace.set_span_in_context(send)
            attributes = _attributes("create", "create", topic)
            span = self._tracer.start_span(
                f"create {topic}", context=parent, kind=SpanKind.PRODUCER, attributes=attributes
            )
            creation = span.get_span_context()
            span.end()
            properties = with_context(properties, self._carried(span))
        if send is not None and creation is not None and creation.is_valid:
            send.add_link(creation)
        return properties

    def begin_commit(self, contexts: Sequence[SpanContext | None]) -> Span:
        """The span of an atomic transaction's commit."""
        attributes: dict[str, Any] = {**_attributes("commit", "send", None), _BATCH_COUNT: len(contexts)}
        links = _links_of(contexts)
        return self._tracer.start_span("commit", kind=SpanKind.CLIENT, attributes=attributes, links=links)

    def _carried(self, span: Span) -> dict[str, str]:
        """The properties that carry a span's context; {} if it is not to be carried."""
        own = span.get_span_context()
        if not own.is_valid or not (own.trace_flags.sampled or self._propagate_unsampled):
            return {}
        return properties_of(own)

    # --- consuming ------------------------------------------------------------------------------------

    def take(self, message: ReceivedMessage, trace_context: str) -> None:
        """Is called when a message arrives; spans begin when the program gets it. `trace_context`:
        RocketMQ's, or ""."""
        properties: Properties = message.properties
        if trace_context and TRACEPARENT not in properties:
            properties = {TRACEPARENT: trace_context}
        creation = creation_context(properties) if TRACEPARENT in properties else None
        if not self._asks_always:
            chosen = random() < self._root_ratio if creation is None else creation.trace_flags.sampled  # noqa: S311
            if not chosen:
                return
        message.tracing = self
        message.settlement = TracedSettlement(self, message.settlement, creation)

    def received(self, topic: str, group: str, messages: Sequence[ReceivedMessage], began_ns: int) -> None:
        """Is called when the program gets messages for which it has waited since `since`."""
        if not any(message.tracing for message in messages):
            return
        span = self._tracer.start_span(
            f"receive {topic}",
            kind=SpanKind.CLIENT,
            attributes=self._of_messages("receive", "receive", topic, group, messages),
            links=_links(messages),
            start_time=began_ns,
        )
        span.end()

    @contextmanager
    def process(
        self, messages: Sequence[ReceivedMessage], topic: str = "", group: str = ""
    ) -> Iterator[None]:
        """The work on messages within a span, which is the current one meanwhile."""
        topic, group = topic or messages[0].topic, group or messages[0].settlement.group
        attributes = self._of_messages("process", "process", topic, group, messages)
        span = self._tracer.start_span(
            f"process {topic}", kind=SpanKind.CONSUMER, attributes=attributes, links=_links(messages)
        )
        with trace.use_span(span, record_exception=False, set_status_on_exception=False):
            try:
                yield
            except BaseException as failure:
                self.failed(span, failure)
                raise
        span.end()

    async def handler(self, call: Call, proceed: Callable[[], Awaitable[None]]) -> None:
        """The middleware of handlers; a client with tracing adds it, outermost."""
        if not any(message.tracing for message in call.messages):
            await proceed()
            return
        with self.process(call.messages, call.topic, call.group):
            await proceed()

    def settle(
        self, name: str, message: ReceivedMessage, group: str, begin: Callable[[], asyncio.Future[None]]
    ) -> asyncio.Future[None]:
        """Waits for the answer of `begin`, within a span."""
        span = self._begin_settle(name, message, group)
        answer = begin()
        if span.is_recording():
            answer.add_done_callback(partial(self._answered, span))
        return answer

    def consumed(self, message: ReceivedMessage, settlement: Settlement) -> None:
        """An acknowledgement with a span; the program does not wait for its answer."""
        span = self._begin_settle("ack", message, settlement.group)
        if not span.is_recording():
            settlement.consumed(message)
            return
        answer = settlement.acknowledge(message, urgent=False)
        answer.add_done_callback(partial(self._answered, span))

    def _begin_settle(self, name: str, message: ReceivedMessage, group: str) -> Span:
        attributes = self._of_messages(name, "settle", message.topic, group, [message])
        return self._tracer.start_span(
            f"{name} {message.topic}", kind=SpanKind.CLIENT, attributes=attributes, links=_links([message])
        )

    @staticmethod
    def _of_messages(
        name: str, kind: str, topic: str, group: str, messages: Sequence[ReceivedMessage]
    ) -> dict[str, Any]:
        attributes: dict[str, Any] = _attributes(name, kind, topic)
        if group:
            attributes[_GROUP] = group
        if len(messages) == 1:
            attributes[_ID] = messages[0].message_id
            attributes[_QUEUE] = str(messages[0].queue_id)
        else:
            attributes[_BATCH_COUNT] = len(messages)
        return attributes


class TracedSettlement:
    """Settles messages within spans. `creation`: the message's own context."""

    __slots__ = ("_inner", "_tracing", "creation")

    def __init__(self, tracing: Tracing, inner: Settlement, creation: SpanContext | None) -> None:
        self._tracing = tracing
        self._inner = inner
        self.creation = creation

    def check_loop(self) -> None:
        """Raises TroveError EVENT_LOOP_ILLEGAL outside of the client's event loop."""
        self._inner.check_loop()

    def acknowledge(self, message: ReceivedMessage, *, urgent: bool) -> asyncio.Future[None]:
        """Acknowledges in a span. The future gets the result, or raises TroveError."""
        return self._settle("ack", message, lambda: self._inner.acknowledge(message, urgent=urgent))

    def consumed(self, message: ReceivedMessage) -> bool:
        """Acknowledges in a span without waiting for the result. Returns `at_capacity`."""
        self._tracing.consumed(message, self._inner)
        return self._inner.at_capacity

    def consumed_all(self, messages: Sequence[ReceivedMessage]) -> None:
        """The same for several messages."""
        for message in messages:
            self.consumed(message)

    def return_message(
        self,
        message: ReceivedMessage,
        delay_ms: int | None,
        *,
        tried: bool,
        failure: BaseException | None = None,
    ) -> asyncio.Future[None]:
        """Returns the message in a span, for redelivery after `delay_ms`."""
        inner = partial(self._inner.return_message, message, delay_ms, tried=tried, failure=failure)
        return self._settle("nack", message, inner)

    def release(self, message: ReceivedMessage) -> None:
        """Returns a message that was not tried; it has no span."""
        self._inner.release(message)

    def dead_letter(
        self, message: ReceivedMessage, *, reason: str = "", failure: BaseException | None = None
    ) -> asyncio.Future[None]:
        """Moves the message to the dead letters, in a span."""
        inner = partial(self._inner.dead_letter, message, reason=reason, failure=failure)
        return self._settle("dead_letter", message, inner)

    def _settle(
        self, name: str, message: ReceivedMessage, begin: Callable[[], asyncio.Future[None]]
    ) -> asyncio.Future[None]:
        return self._tracing.settle(name, message, self._inner.group, begin)

    async def extend(self, message: ReceivedMessage, duration_ms: int) -> None:
        """Extends the lease to `duration_ms` from now on, without a span. Raises TroveError."""
        await self._inner.extend(message, duration_ms)

    @property
    def at_capacity(self) -> bool:
        """Whether too many settlements have no result yet."""
        return self._inner.at_capacity

    async def wait_for_capacity(self) -> None:
        """Waits while too many settlements have no result."""
        await self._inner.wait_for_capacity()

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._inner.group

    def acknowledged_elsewhere(self, message: ReceivedMessage) -> None:
        """An atomic transaction has acknowledged the message."""
        self._inner.acknowledged_elsewhere(message)


def _links(messages: Sequence[ReceivedMessage]) -> list[Link]:
    settlements = (message.settlement for message in messages)
    return _links_of([one.creation for one in settlements if isinstance(one, TracedSettlement)])


def _links_of(contexts: Sequence[SpanContext | None]) -> list[Link]:
    return [Link(one) for one in contexts if one is not None]


def _attributes(name: str, kind: str, topic: str | None) -> dict[str, str]:
    found = {
        "messaging.system": "trovemq",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
    }
    if topic is not None:
        found["messaging.destination.name"] = topic
    return found


def _name_of(failure: BaseException) -> str:
    kind = type(failure)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
