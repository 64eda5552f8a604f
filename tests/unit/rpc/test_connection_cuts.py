"""Any cut of any byte stream into pieces gives the same events and the same answer."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.rpc.connection_pair import REQUEST, RESPONSE
from trovemq_rpc.http2 import events as ev
from trovemq_rpc.http2 import frames
from trovemq_rpc.http2.connection import Connection
from trovemq_rpc.http2.constants import PREFACE
from trovemq_rpc.http2.limits import Limits

LIMITS = Limits(stream_window=1 << 17, connection_window=1 << 18)

BLOCKS = [
    Connection.encode(REQUEST),
    Connection.encode(RESPONSE),
    Connection.encode([(b"grpc-status", b"0")]),
    b"\x40\x01a\x01b",
]
IDS = st.sampled_from([1, 1, 1, 3, 3, 5, 7, 0, 2])
FLAGS = st.sampled_from([0, 0, 1, 4, 4, 5, 8, 9, 0x0C, 0x20, 0x25, 0xFF])
SIZES = st.sampled_from([0, 1, 4, 5, 6, 8, 9, 100, 8191, 9000, 16_384, 60_000])
PAYLOADS = st.one_of(
    st.sampled_from(BLOCKS),
    SIZES.map(lambda size: bytes(i % 7 for i in range(size))),
    st.binary(max_size=20),
)


@st.composite
def any_frame(draw: st.DrawFn) -> bytes:
    kind = draw(st.sampled_from([0, 0, 0, 1, 1, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 77]))
    payload = draw(PAYLOADS)
    return frames.frame_header(len(payload), kind, draw(FLAGS), draw(IDS)) + payload


@st.composite
def a_call(draw: st.DrawFn) -> bytes:
    """A sound request or answer, in frames of any size."""
    stream_id, block = draw(st.sampled_from([1, 3, 5])), draw(st.sampled_from(BLOCKS[:2]))
    cut = draw(st.integers(0, len(block)))
    wire = frames.frame_header(cut, 1, 4 if cut == len(block) else 0, stream_id) + block[:cut]
    if cut < len(block):
        wire += frames.frame_header(len(block) - cut, 9, 4, stream_id) + block[cut:]
    for size in draw(st.lists(SIZES, max_size=3)):
        wire += frames.frame_header(size, 0, draw(st.sampled_from([0, 0, 1])), stream_id) + bytes(size)
    return wire


WIRES = st.lists(st.one_of(a_call(), any_frame()), max_size=12).map(b"".join)


def start(client: bool) -> Connection:
    core = Connection(client, LIMITS)
    if client:
        for _ in range(3):
            core.open_stream(Connection.encode(REQUEST))
    return core


def seen(core: Connection, pieces: list[bytes]) -> tuple[list[Any], bytes]:
    """The result of a connection fed with the pieces: its events, neighbouring DATA of a stream joined, and
    its output.
    """
    events: list[Any] = []
    for piece in pieces:
        for kind, stream, raw, ended in core.receive(piece):
            value = raw
            if kind == ev.DATA:
                value = bytes(value)
                if events and events[-1][:2] == (ev.DATA, stream.id) and not events[-1][3]:
                    value = events.pop()[2] + value
            elif kind == ev.HEADERS:
                value = value.fields
            elif kind == ev.FAULT:
                value = (value.code, value.reason)
            events.append((kind, stream.id if stream else 0, value, ended))
    return events, b"".join(core.take_output())


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.booleans(), st.sampled_from([b"", b"x"]), WIRES, st.data())
def test_any_cut_gives_the_same_events(client: bool, damage: bytes, wire: bytes, data: st.DataObject) -> None:
    whole = damage + (b"" if client else PREFACE) + frames.settings(()) + wire
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=20)))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    assert seen(start(client), pieces) == seen(start(client), [whole])


@settings(max_examples=30, deadline=None)
@given(st.booleans(), WIRES)
def test_single_bytes_give_the_same_events(client: bool, wire: bytes) -> None:
    whole = (b"" if client else PREFACE) + frames.settings(()) + wire[:3000]
    assert seen(start(client), [whole[i : i + 1] for i in range(len(whole))]) == seen(start(client), [whole])
