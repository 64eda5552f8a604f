"""The broker's own OpenTelemetry spans, for messages that are in a sampled trace.

| span                     | around                                       | parent        | links to     |
|--------------------------|----------------------------------------------|---------------|--------------|
| `append TOPIC`           | a message's append, until it is acknowledged | the message's |              |
| `deliver TOPIC`          | the scan that found messages for a group     | the call's    | each message |
| `ack TOPIC`              | a moment: messages are consumed              |               | each message |
| `dead_letter TOPIC`      | a moment: messages are dead letters          |               | each message |
| `change_invisible TOPIC` | a moment: it was returned, or kept longer    |               | the message  |

All are of kind server. A message's context is W3C's, in its properties `traceparent` and `tracestate`, or
RocketMQ's `TRACE_CONTEXT`; a call's context is in its metadata. A message without a context, or with one that
is not sampled, costs only the search for the property's name. Names and attributes are those of
OpenTelemetry's semantic conventions for messaging, version 1.44.0, if they define one for a broker.

Only messages whose delivery has a span have one at its end: their contexts are kept in memory until then.

Bounds: SPANS_MAX spans of one append, LINKS_MAX links of a span, DELIVERIES_MAX contexts of the newest
deliveries. The exporter's queue (2,048 spans) drops spans when it is full, so that no call waits for it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from opentelemetry import context, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from trovemq_broker.groups.delivery.queue_state import QueueState
from trovemq_broker.groups.delivery.request import DeliveredRun, ReceiveRequest
from trovemq_proto.errors import TroveError
from trovemq_proto.records import PROPERTY_UNIQ_KEY, RecordBatch, parse_properties
from trovemq_proto.records.fields import read_fields
from trovemq_store.events.codec import EventKind

SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
SPANS_MAX: Final = 32
LINKS_MAX: Final = 128
DELIVERIES_MAX: Final = 8_192
EXPORT_SECONDS_MAX: Final = 5

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
TRACE_CONTEXT: Final = "TRACE_CONTEXT"
_PROPERTIES: Final = (TRACEPARENT, TRACESTATE, TRACE_CONTEXT, PROPERTY_UNIQ_KEY)
_MARKS: Final = (b"traceparent\x01", b"TRACE_CONTEXT\x01")
_PROPAGATOR: Final = TraceContextTextMapPropagator()
_SETTLED: Final = {
    EventKind.ACKNOWLEDGED: "ack",
    EventKind.DEAD_LETTERED: "dead_letter",
    EventKind.CHANGED: "change_invisible",
}
Place = tuple[str, str, int, int]
"""Group, topic where the message lies, queue id, queue offset."""


class BrokerTracing:
    """Makes the spans and exports them.

    Args:
        exporter: Exports the spans.
        broker: The broker's name.
        version: Its version.
    """

    def __init__(self, exporter: SpanExporter, broker: str, version: str) -> None:
        about = {"service.name": "trovemq-broker", "service.instance.id": broker, "service.version": version}
        self._provider = TracerProvider(resource=Resource.create(about))
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("trovemq-broker", version, SCHEMA_URL)
        self._deliveries: OrderedDict[Place, SpanContext] = OrderedDict()

    def close(self) -> None:
        """Exports the remaining spans. Blocks for at most EXPORT_SECONDS_MAX."""
        self._provider.force_flush(EXPORT_SECONDS_MAX * 1_000)
        self._provider.shutdown()

    def begin_append(self, topic: str, queue_id: int, batch: RecordBatch) -> AppendSpans | None:
        """The spans of an append that begins; None if no message of it is in a sampled trace."""
        if not _has_mark(batch.property_bytes):
            return None
        attributes = {
            **_attributes("append", "send", topic),
            "messaging.destination.partition.id": str(queue_id),
        }
        spans: list[Span] = []
        columns = [batch.property_values(name) for name in _PROPERTIES]
        for values in zip(*columns, strict=True):
            found = {
                name: value for name, value in zip(_PROPERTIES, values, strict=True) if value is not None
            }
            parent = context_of(found)
            if parent is None or not parent.trace_flags.sampled:
                continue
            about = {**attributes, "messaging.message.id": found.get(PROPERTY_UNIQ_KEY, "")}
            in_trace = _in_trace(parent)
            spans.append(
                self._tracer.start_span(f"append {topic}", in_trace, SpanKind.SERVER, attributes=about)
            )
            if len(spans) == SPANS_MAX:
                break
        return AppendSpans(spans) if spans else None

    def delivered(
        self, request: ReceiveRequest, runs: Sequence[DeliveredRun], metadata: Mapping[str, str]
    ) -> None:
        """Makes the span of a delivery: these messages were found for a group, since `request.now_ms`."""
        sampled = (one for run in runs for one in _sampled(run, request.group.name))
        found = list(islice(sampled, LINKS_MAX))
        links = [Link(one) for _, one in found]
        if not links:
            return
        parent = context_of(metadata)
        count = sum(len(run.records) for run in runs)
        span = self._tracer.start_span(
            f"deliver {request.topic}",
            _in_trace(parent) if parent is not None else context.Context(),
            SpanKind.SERVER,
            attributes={
                **_attributes("deliver", "receive", request.topic),
                "messaging.consumer.group.name": request.group.name,
                "messaging.client.id": request.client_id,
                "messaging.batch.message_count": count,
            },
            links=links,
            start_time=request.now_ms * 1_000_000,
        )
        span.end()
        for place, one in found:
            self._deliveries[place] = one
            self._deliveries.move_to_end(place)
        while len(self._deliveries) > DELIVERIES_MAX:
            self._deliveries.popitem(last=False)

    def settled(self, kind: EventKind, state: QueueState, offsets: range) -> None:
        """A group's deliveries of these messages have ended, as `kind` says."""
        if not self._deliveries:
            return
        queue = (state.group, state.topic, state.queue_id)
        take = self._deliveries.get if kind is EventKind.CHANGED else self._deliveries.pop
        found = [one for offset in offsets if (one := take((*queue, offset), None)) is not None]
        if not found:
            return
        name = _SETTLED[kind]
        span = self._tracer.start_span(
            f"{name} {state.topic}",
            context.Context(),
            SpanKind.SERVER,
            attributes={
                **_attributes(name, "settle", state.topic),
                "messaging.consumer.group.name": state.group,
                "messaging.destination.partition.id": str(state.queue_id),
                "messaging.batch.message_count": len(found),
            },
            links=[Link(one) for one in found[:LINKS_MAX]],
        )
        span.end()


class AppendSpans:
    """The spans of one append."""

    def __init__(self, spans: list[Span]) -> None:
        self._spans = spans

    def ended(self, error: TroveError | None) -> None:
        """Ends the spans: the messages are durable (None), or `error` says why they are not, or may not
        be."""
        for span in self._spans:
            if error is not None:
                span.set_attribute("error.type", error.symbol)
                span.set_status(Status(StatusCode.ERROR, error.message))
            span.end()


def otlp_tracing(endpoint: str, broker: str, version: str) -> BrokerTracing:
    """Exports spans to the OTLP receiver at this URL (`http://127.0.0.1:4318/v1/traces`)."""
    return BrokerTracing(OTLPSpanExporter(endpoint, timeout=EXPORT_SECONDS_MAX), broker, version)


def context_of(properties: Mapping[str, str]) -> SpanContext | None:
    """The context in a message's properties, or in a call's metadata; None if it is missing or malformed."""
    parent = properties.get(TRACEPARENT) or properties.get(TRACE_CONTEXT)
    if not parent:
        return None
    carrier = {TRACEPARENT: parent, TRACESTATE: properties.get(TRACESTATE, "")}
    found = trace.get_current_span(_PROPAGATOR.extract(carrier, context.Context())).get_span_context()
    return found if found.is_valid else None


def _sampled(run: DeliveredRun, group: str) -> Iterator[tuple[Place, SpanContext]]:
    """The messages of the run that are in a sampled trace."""
    for offset, record in zip(run.offsets, run.records, strict=True):
        fields = read_fields(record, 0, len(record))
        if fields is None or not _has_mark(block := bytes(record[fields.property_position :])):
            continue
        found = context_of(parse_properties(block))
        if found is not None and found.trace_flags.sampled:
            topic = bytes(record[fields.topic_position :][: fields.topic_size]).decode("utf-8", "replace")
            yield (group, topic, run.queue_id, offset), found


def _has_mark(block: bytes) -> bool:
    return any(mark in block for mark in _MARKS)


def _in_trace(parent: SpanContext) -> context.Context:
    return trace.set_span_in_context(trace.NonRecordingSpan(parent), context.Context())


def _attributes(name: str, kind: str, topic: str) -> dict[str, Any]:
    return {
        "messaging.system": "trovemq",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
    }
