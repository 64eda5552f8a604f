"""The cursor of a query over several brokers."""

from __future__ import annotations

import base64
import zlib

import pytest

from trovemq import TroveError
from trovemq._lookup.cursor import BrokerProgress, decode_cursor, encode_cursor
from trovemq_proto import errors


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b"7",
        b"{}",
        b'{"query": 1}',
        b'{"query": 1, "brokers": []}',
        b'{"query": 1, "brokers": {"b": []}}',
        b'{"query": 1, "brokers": {"b": 7}}',
        b'{"query": 1, "brokers": {"b": ["", "x", 1, false]}}',
        b'{"query": 1, "brokers": {"b": ["", null, null, false]}}',
        b'{"query": 1, "brokers": {"b": [1, null, 1, false]}}',
        b'{"query": 1, "brokers": {"b": ["", null, 1, 1]}}',
    ],
)
def test_a_made_up_cursor_raised_a_key_error(body: bytes) -> None:
    raw = b"\x01" + zlib.crc32(body).to_bytes(4, "big") + body
    text = base64.urlsafe_b64encode(raw).decode().rstrip("=")
    with pytest.raises(TroveError) as refused:
        decode_cursor(text, 1)
    assert refused.value.spec is errors.CURSOR_ILLEGAL


def test_a_cursor_says_what_was_put_in() -> None:
    places = {"a": BrokerProgress(), "b": BrokerProgress("c", 7, 3, True)}
    assert decode_cursor(encode_cursor(1, places), 1) == places
