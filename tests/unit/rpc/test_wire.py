"""gRPC's wire format without a connection: messages, metadata, status, deadlines, compression."""

from __future__ import annotations

import gzip

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trovemq_rpc as rpc
from trovemq_rpc.http2.constants import ErrorCode
from trovemq_rpc.http2.headers import RequestHead
from trovemq_rpc.server.head import CallHead
from trovemq_rpc.wire.compression import DecompressionError, compress, decompress
from trovemq_rpc.wire.deadline import decode_timeout, encode_timeout
from trovemq_rpc.wire.framing import FramingError, MessageReader, pack_prefix
from trovemq_rpc.wire.metadata import Metadata, decode_metadata, encode_metadata
from trovemq_rpc.wire.status import (
    as_status,
    decode_message,
    encode_message,
    status_of_http,
    status_of_reset,
)


@given(st.lists(st.binary(max_size=40), max_size=6), st.data())
def test_any_cut_of_a_stream_gives_the_same_messages(bodies: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(pack_prefix(0, len(body)) + body for body in bodies)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    reader = MessageReader(1_000)
    count_max = data.draw(st.integers(1, 8))
    found: list[bytes] = []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        piece = memoryview(stream[begin:end])
        while piece:
            messages, used = reader.feed(piece, count_max)
            assert len(messages) <= count_max
            found += [bytes(message) for _, message in messages]
            piece = piece[used:]
    assert found == bodies
    assert reader.at_boundary


@given(st.binary(max_size=12), st.integers(0, 2), st.integers(0, 12), st.binary(max_size=3))
def test_bytes_are_one_message_if_nothing_else_is_read_from_them(
    body: bytes, flag: int, announced: int, before: bytes
) -> None:
    data = pack_prefix(flag, announced) + body
    reader, other = MessageReader(10), MessageReader(10)
    for each in (reader, other):
        each.feed(memoryview(before), 1)
    expected = False
    if not before:
        try:
            messages, used = other.feed(memoryview(data))
            expected = len(messages) == 1 and used == len(data) and other.at_boundary and not flag
        except FramingError:
            expected = False
    assert reader.is_whole_message(memoryview(data)) == expected
    if expected:
        assert bytes(messages[0][1]) == body


def test_a_message_of_just_the_limit_is_taken() -> None:
    reader = MessageReader(10)
    messages, _ = reader.feed(memoryview(pack_prefix(0, 10) + bytes(10)))
    assert [bytes(message) for _, message in messages] == [bytes(10)]


def test_a_message_above_the_limit_is_refused_by_its_prefix() -> None:
    reader = MessageReader(10)
    with pytest.raises(FramingError) as refused:
        reader.feed(memoryview(pack_prefix(0, 11)))
    assert refused.value.too_large
    with pytest.raises(FramingError):
        MessageReader(10).feed(memoryview(b"\2\0\0\0\0"))


keys = st.from_regex(r"[a-z][0-9a-z_.]{0,10}", fullmatch=True)
texts = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=20)


@given(st.lists(st.tuples(keys, texts) | st.tuples(keys.map("{}-bin".format), st.binary(max_size=30))))
def test_metadata_comes_back_as_it_was(pairs: list[tuple[str, str | bytes]]) -> None:
    pairs = [pair for pair in pairs if pair[0] not in {"te", "host"}]
    assert list(decode_metadata(encode_metadata(pairs))) == pairs


@pytest.mark.parametrize("pair", [("Upper", "x"), ("a b", "x"), ("grpc-status", "0"), ("k", "ä"), ("", "x")])
def test_metadata_that_cannot_be_sent_is_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="metadata"):
        encode_metadata([pair])


def test_binary_metadata_may_be_padded_or_joined() -> None:
    assert decode_metadata([(b"x-bin", b"AAE=,AAE")]) == (("x-bin", b"\0\1"), ("x-bin", b"\0\1"))
    assert decode_metadata([(b"x-bin", b"!")]) == (("x-bin", b""),)


def test_metadata_looks_up_by_key() -> None:
    metadata = Metadata(("a", "1"), ("b", "2"), ("a", "3"))
    assert metadata["a"] == "1"
    assert metadata.get_all("a") == ["1", "3"]
    assert metadata.get("b") == "2"
    metadata.set_all("a", ["4"])
    assert metadata == (("b", "2"), ("a", "4"))
    with pytest.raises(KeyError):
        metadata["missing"]


@given(st.text())
def test_a_status_message_survives_percent_encoding(text: str) -> None:
    raw = text.encode("utf-8", "surrogateescape") if text.isascii() else text.encode("utf-8", "replace")
    text = raw.decode("utf-8", "replace")
    encoded = encode_message(text)
    assert all(0x20 <= byte <= 0x7E for byte in encoded)
    assert encoded == encoded.strip()
    assert decode_message(encoded) == text


@given(st.floats(min_value=0, max_value=1e9))
def test_a_timeout_is_never_shortened_and_hardly_lengthened(seconds: float) -> None:
    encoded = encode_timeout(seconds)
    assert len(encoded) <= 9
    assert seconds <= decode_timeout(encoded) * (1 + 1e-9)
    assert decode_timeout(encoded) <= seconds * 1.00001 + 1e-5 or seconds > 3600 * 99


@pytest.mark.parametrize("value", [b"", b"1", b"S", b"-1S", b"1s", b"123456789S", b"1.5S"])
def test_a_malformed_timeout_is_refused(value: bytes) -> None:
    with pytest.raises((ValueError, IndexError)):
        decode_timeout(value)


def test_codes_of_http_and_resets_become_statuses() -> None:
    assert status_of_http(404) is rpc.StatusCode.UNIMPLEMENTED
    assert status_of_http(418) is rpc.StatusCode.UNKNOWN
    assert status_of_reset(ErrorCode.REFUSED_STREAM) is rpc.StatusCode.UNAVAILABLE
    assert status_of_reset(ErrorCode.CANCEL) is rpc.StatusCode.CANCELLED
    assert status_of_reset(999) is rpc.StatusCode.INTERNAL


def test_names_equal_those_of_grpcio() -> None:
    assert {code.name: code.value for code in rpc.StatusCode} == {
        code.name: code.value for code in grpc.StatusCode
    }
    assert all(rpc.StatusCode[code.name] == code for code in grpc.StatusCode)
    assert {rpc.StatusCode.OK: 1}[grpc.StatusCode.OK] == 1
    assert as_status(grpc.StatusCode.ABORTED) is rpc.StatusCode.ABORTED
    assert rpc.ChannelConnectivity.READY == grpc.ChannelConnectivity.READY
    assert rpc.Compression.Gzip == grpc.Compression.Gzip


def test_decompression_never_makes_more_than_the_limit() -> None:
    for encoding in (b"gzip", b"deflate"):
        assert decompress(encoding, compress(encoding, b"text"), 100) == b"text"
        with pytest.raises(DecompressionError) as refused:
            decompress(encoding, compress(encoding, bytes(10 << 20)), 1_000)
        assert refused.value.too_large
    for damaged in (b"", b"garbage", gzip.compress(b"x")[:-3], gzip.compress(b"x") + b"more"):
        with pytest.raises(DecompressionError):
            decompress(b"gzip", damaged, 100)


def test_one_value_of_the_metadata_is_that_of_all_of_it() -> None:
    fields = [(b"te", b"trailers"), (b"x-one", b"caf\xe9"), (b"x-two", b"1"), (b"x-two", b"2")]
    head = CallHead(RequestHead(b"POST", b"http", b"/s/m", b"", fields), None)
    assert head.first("x-one") == "caf\xe9"
    assert head.first("x-two") == "1"
    assert head.first("x-three") is None
    for _ in range(2):  # the second time, they are remembered
        assert decode_metadata(fields) == (("x-one", "caf\xe9"), ("x-two", "1"), ("x-two", "2"))
    assert head.metadata == decode_metadata(fields)
