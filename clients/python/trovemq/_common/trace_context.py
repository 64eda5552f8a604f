"""W3C's trace context in the properties of messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from opentelemetry import context, trace
from opentelemetry.trace import SpanContext
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

Properties = Mapping[str, str]
_PROPAGATOR: Final = TraceContextTextMapPropagator()


def properties_of(own: SpanContext) -> dict[str, str]:
    """The context that a message carries."""
    found = {TRACEPARENT: f"00-{own.trace_id:032x}-{own.span_id:016x}-{int(own.trace_flags):02x}"}
    if own.trace_state:
        found[TRACESTATE] = own.trace_state.to_header()
    return found


def creation_context(properties: Properties) -> SpanContext | None:
    """The context that a message carries; None if it has none or a malformed one."""
    carrier = {name: str(properties[name]) for name in (TRACEPARENT, TRACESTATE) if name in properties}
    if TRACEPARENT not in carrier:
        return None
    found = trace.get_current_span(_PROPAGATOR.extract(carrier, context.Context())).get_span_context()
    return found if found.is_valid else None


class Carried(dict[str, str]):
    """The properties of a message that is sent within its span, so that it gets no second one."""


class CarriedOfEach(list[Any]):
    """The same for the messages of a batch."""


def with_context(properties: Any, added: dict[str, str]) -> Any:
    """The properties with the context added, unless they have one. Properties that are not a mapping do
    not change: the producer refuses them."""
    if properties is not None and not isinstance(properties, Mapping):
        return properties
    given = properties or {}
    return Carried(given if TRACEPARENT in given else {**given, **added})
