"""The rules of a header list, remembered or not, against the rules as RFC 9113 has them."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from trovemq_rpc.http2.connection import Connection
from trovemq_rpc.http2.constants import END_HEADERS
from trovemq_rpc.http2.errors import StreamFault
from trovemq_rpc.http2.headers import Field, RequestHead, check_fields, check_like, check_request
from trovemq_rpc.server.head import CallHead, read_head

NAMES = st.sampled_from(
    [
        b"a",
        b"x-id",
        b"te",
        b"content-length",
        b"connection",
        b"upgrade",
        b"X-Id",
        b":path",
        b"",
        b"a b",
        b"x" * 300,
    ]
)
VALUES = st.one_of(
    st.sampled_from(
        [b"", b"1", b"2", b"trailers", b"gzip", b" a", b"a\t", b"a b", b"a\0b", b"a\rb", b"\n", b"\xff"]
    ),
    st.binary(max_size=4),
)


CONNECTION = {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}


def _is_sound(name: bytes, value: bytes) -> bool:
    """Sections 8.2.1 and 8.2.2."""
    if not re.fullmatch(rb"[!#$%&'*+.^_`|~0-9a-z-]+", name) or name in CONNECTION:
        return False
    if name == b"content-length":
        return re.fullmatch(rb"[0-9]{1,18}", value) is not None
    if name == b"te":
        return value == b"trailers"
    return not re.search(rb"[\0\r\n]|\A[ \t]|[ \t]\Z", value)


def _expected(fields: list[Field]) -> int | None:
    """The content-length, -1 if there is none; None if the fields are malformed."""
    lengths = {int(value) for name, value in fields if name == b"content-length" and value.isdigit()}
    if len(lengths) > 1 or not all(_is_sound(*field) for field in fields):
        return None
    return lengths.pop() if lengths else -1


@given(st.lists(st.lists(st.tuples(NAMES, VALUES), max_size=4), max_size=12))
def test_fields_are_malformed_whether_or_not_their_names_came_before(lists: list[list[Field]]) -> None:
    for fields in lists:
        try:
            length: int | None = check_fields(fields)
        except StreamFault:
            length = None
        assert length == _expected(fields)


LINE: list[Field] = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/s/m"), (b":authority", b"a")]
GRPC: list[Field] = [(b"te", b"trailers"), (b"content-type", b"application/grpc")]
MORE = st.one_of(
    st.tuples(NAMES, VALUES),
    st.sampled_from(
        [
            (b":path", b"/other"),
            (b"content-type", b"text"),
            (b"grpc-timeout", b"5S"),
            (b"grpc-timeout", b"soon"),
            (b"grpc-encoding", b"br"),
            (b"grpc-accept-encoding", b"gzip"),
            (b"x-id", b"another"),
        ]
    ),
)


METHOD: Any = object()  # no part of it is read


def _parts(head: RequestHead | CallHead) -> list[object]:
    left_out = {"cache", "before", "changed", "note", "_first", "_metadata"}
    return [getattr(head, name) for name in type(head).__slots__ if name not in left_out]


def _checked(headers: list[Field]) -> RequestHead | None:
    try:
        return check_request(headers)
    except StreamFault:
        return None


@given(st.lists(MORE, max_size=4), st.lists(st.tuples(st.integers(0, 9), MORE), max_size=3), st.booleans())
def test_a_request_like_the_one_before_has_the_same_head_as_any(
    more: list[Field], changes: list[tuple[int, Field]], longer: bool
) -> None:
    before = [*LINE, *GRPC, *more]
    head = _checked(before)
    if head is None:
        return
    head.cache = read_head(head, METHOD)
    head.cache.first("x-id")  # it is remembered
    after = [*before, (b"a", b"1")] if longer else [*before]
    for place, field in changes:
        after[place % len(after)] = field
    alike = check_like(after, before, head)
    expected = _checked(after)
    if alike is None:
        return
    assert expected is not None, "a malformed request is never alike"
    assert _parts(alike) == _parts(expected)
    found, own = read_head(alike, METHOD), read_head(expected, METHOD)
    assert _parts(found) == _parts(own)
    assert (alike.before, alike.changed) == (None, []), "no request keeps the one before"
    for key in ("x-id", "a", "grpc-timeout"):
        assert found.first(key) == own.first(key)


def test_a_request_with_another_id_and_time_limit_is_not_checked_again() -> None:
    before = [*LINE, *GRPC, (b"x-id", b"1"), (b"grpc-timeout", b"1S")]
    head = check_request(before)
    after = [*before[:-2], (b"x-id", b"2"), (b"grpc-timeout", b"2S")]
    alike = check_like(after, before, head)
    assert alike is not None
    assert alike.changed == after[-2:]
    head.cache = read_head(head, METHOD)
    call = head.cache.like(check_like(after, before, head))
    assert (call.timeout, call.first("x-id")) == (2.0, "2")


def test_the_last_of_several_time_limits_counts() -> None:
    before = [*LINE, *GRPC, (b"grpc-timeout", b"1S"), (b"grpc-timeout", b"5S")]
    head = check_request(before)
    check_like([*before], before, head)  # the name is known now
    head.cache = read_head(head, METHOD)
    after = [*before]
    after[-2] = (b"grpc-timeout", b"9S")
    alike = check_like(after, before, head)
    assert alike is not None
    assert read_head(alike, METHOD).timeout == 5.0


def test_a_connection_keeps_no_large_head_for_the_next_request() -> None:
    server = Connection(False)
    for stream_id, size in ((1, 10), (3, 4_000), (5, 10)):
        fields = [*LINE, *GRPC, (b"x-large", b"v" * size)]
        literals = b"".join(b"\x40" + _text(name) + _text(value) for name, value in fields)
        server._header_block(stream_id, literals, END_HEADERS, False)
        kept = server._last_head is not None
        assert kept == (size < 1_000)


def _text(text: bytes) -> bytes:
    """As HPACK writes it, without Huffman's code."""
    size = len(text)
    if size < 0x7F:
        return bytes((size,)) + text
    size -= 0x7F
    digits = b""
    while size >= 0x80:
        digits += bytes((size & 0x7F | 0x80,))
        size >>= 7
    return b"\x7f" + digits + bytes((size,)) + text
