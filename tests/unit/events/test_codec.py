"""Events survive their way through a record's body; other bodies are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trovemq_proto.positions import EpochMs
from trovemq_store.events.codec import EVENT_DTYPE, EVENTS_MAX, Event, EventKind, decode_events, encode_events

INT64 = st.integers(-(2**63), 2**63 - 1)
UINT32 = st.integers(0, 2**32 - 1)
EVENTS = st.builds(
    Event,
    kind=st.sampled_from(EventKind),
    time_ms=INT64,
    group=st.text(max_size=20),
    topic=st.sampled_from(["", "orders", "%RETRY%g_orders"]),
    queue_id=st.integers(-(2**31), 2**31 - 1),
    offset=INT64,
    count=UINT32,
    until=INT64,
    attempt=UINT32,
    lease=UINT32,
    client_id=st.text(max_size=20),
    renewed=st.booleans(),
    physical_offset=INT64,
)


@given(st.lists(EVENTS, min_size=1, max_size=40))
def test_what_is_decoded_is_what_was_encoded(events: list[Event]) -> None:
    assert list(decode_events(encode_events(events))) == events


def test_a_full_record_takes_56_bytes_an_event() -> None:
    event = Event(EventKind.ACKNOWLEDGED, EpochMs(1), "group", "orders", offset=7)
    body = encode_events([replace(event, offset=number) for number in range(EVENTS_MAX)])
    assert len(body) < 56 * EVENTS_MAX + 64
    assert [decoded.offset for decoded in decode_events(body)] == list(range(EVENTS_MAX))


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_with_value_error_or_decoded(body: bytes) -> None:
    try:
        events = list(decode_events(body))
    except ValueError:
        return
    assert len(events) <= len(body) // 56


@pytest.mark.parametrize("at", [2, 4, 6])
def test_an_event_that_names_a_text_that_is_not_there_is_refused(at: int) -> None:
    """Its group, its topic, its client."""
    event = Event(EventKind.RECEIVED, EpochMs(1), "group", "orders", client_id="client")
    body = bytearray(encode_events([event]))
    assert list(decode_events(bytes(body))) == [event]
    begin = len(body) - EVENT_DTYPE.itemsize + at
    body[begin : begin + 2] = (4).to_bytes(2, "little")
    with pytest.raises(ValueError, match="a text that is not there"):
        list(decode_events(bytes(body)))


@given(st.lists(EVENTS, min_size=1, max_size=5), st.data())
def test_a_body_that_is_cut_is_refused(events: list[Event], data: st.DataObject) -> None:
    body = encode_events(events)
    with pytest.raises(ValueError):
        list(decode_events(body[: data.draw(st.integers(0, len(body) - 1))]))
