"""The rules of a header list, remembered or not, against the rules as RFC 9113 has them."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from trovemq_rpc.http2.errors import StreamFault
from trovemq_rpc.http2.headers import Field, check_fields

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
