"""HPACK: our decoder and encoder against the `hpack` package, and the limits that it does not have."""

from collections.abc import Iterable
from typing import cast

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trovemq_rpc.http2.hpack import (
    CACHED_SIZE_MAX,
    Decoder,
    Header,
    HeaderBomb,
    HeaderListTooLarge,
    HpackError,
)
from trovemq_rpc.http2.hpack_encoder import Encoder
from trovemq_rpc.http2.hpack_tables import END_OF_STRING, HUFFMAN_CODES, STATIC_TABLE
from trovemq_rpc.http2.huffman import HuffmanError, huffman_decode

LARGE = 1 << 20

NAMES = st.one_of(
    st.sampled_from([name for name, _ in STATIC_TABLE[1:]]),
    st.sampled_from([b"x-mq-request-id", b"grpc-timeout", b"te", b"k" * 70]),
    st.binary(max_size=200),
)
VALUES = st.one_of(st.sampled_from([b"POST", b"200", b"", b"trailers"]), st.binary(max_size=300))
HEADERS = st.lists(st.tuples(NAMES, VALUES), max_size=12)
# Few different ones, so that a sequence of blocks meets its own table again.
FEW_HEADERS = st.lists(st.tuples(NAMES, VALUES), min_size=1, max_size=6).flatmap(
    lambda some: st.lists(st.lists(st.sampled_from(some), max_size=8), max_size=12)
)


def plain(headers: Iterable[tuple[bytes | str, bytes | str]]) -> list[Header]:
    """The oracle's fields as ours. They are bytes where it is asked for raw ones."""
    return [(bytes(cast(bytes, name)), bytes(cast(bytes, value))) for name, value in headers]


def oracle_decoder() -> hpack.Decoder:
    decoder = hpack.Decoder(max_header_list_size=LARGE)
    decoder.max_allowed_table_size = 4096
    return decoder


@given(FEW_HEADERS, st.booleans(), st.lists(st.sampled_from([0, 33, 100, 4095, 4096]), max_size=12))
def test_blocks_of_the_hpack_package_are_decoded(
    blocks: list[list[Header]], huffman: bool, sizes: list[int]
) -> None:
    encoder, decoder = hpack.Encoder(), Decoder(max_header_list_size=LARGE)
    for number, headers in enumerate(blocks):
        if number < len(sizes):
            encoder.header_table_size = sizes[number]
        block = encoder.encode(headers, huffman=huffman)
        assert decoder.decode(memoryview(block)) == headers
        assert decoder.table_size == encoder.header_table._current_size


@given(FEW_HEADERS, st.sampled_from([0, 100, 4096]))
def test_the_hpack_package_decodes_our_blocks(blocks: list[list[Header]], table_size: int) -> None:
    encoder, decoder = Encoder(), oracle_decoder()
    decoder.max_allowed_table_size = table_size  # as our peer's SETTINGS_HEADER_TABLE_SIZE says
    for headers in blocks:
        assert plain(decoder.decode(encoder.encode(headers), raw=True)) == headers


@given(st.lists(HEADERS, max_size=6))
def test_our_decoder_reads_our_encoders_blocks(blocks: list[list[Header]]) -> None:
    encoder, decoder = Encoder(), Decoder(max_header_list_size=LARGE)
    for headers in blocks:
        assert decoder.decode(encoder.encode(headers)) == headers


FIRST_BYTES = st.sampled_from([0x82, 0xBE, 0xBF, 0x40, 0x41, 0x7E, 0x00, 0x10, 0x20, 0x3F, 0x7F, 0x80, 0xFF])


@given(st.lists(st.lists(st.one_of(FIRST_BYTES, st.integers(0, 255)), max_size=24).map(bytes), max_size=6))
def test_any_bytes_are_accepted_and_refused_as_by_the_hpack_package(blocks: list[bytes]) -> None:
    ours, oracle = Decoder(max_header_list_size=LARGE), oracle_decoder()
    for block in blocks:
        try:
            expected: list[Header] | None = plain(oracle.decode(block, raw=True))
        except hpack.HPACKError:
            expected = None
        try:
            got: list[Header] | None = ours.decode(block)
        except HpackError:
            got = None
        assert got == expected
        if got is None:
            return


@given(HEADERS.filter(bool), st.data())
def test_a_block_that_is_cut_is_refused_or_ends_between_fields(
    headers: list[Header], data: st.DataObject
) -> None:
    block = hpack.Encoder().encode(headers)
    cut = data.draw(st.integers(0, len(block) - 1))
    try:
        got = Decoder(max_header_list_size=LARGE).decode(block[:cut])
    except HpackError:
        return
    assert got == headers[: len(got)]


@given(st.binary(max_size=100))
def test_huffman_strings_are_decoded(text: bytes) -> None:
    encoded = hpack.Encoder().huffman_coder.encode(text)
    assert huffman_decode(encoded) == text


def bits(*codes: int) -> bytes:
    text = "".join(f"{HUFFMAN_CODES[code][0]:0{HUFFMAN_CODES[code][1]}b}" for code in codes)
    text += "1" * (-len(text) % 8)
    return int(text, 2).to_bytes(len(text) // 8, "big")


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        bits(ord("a")) + b"\xff",
        b"\x00",
        bits(END_OF_STRING),
        bits(ord("a"), END_OF_STRING, ord("b")),
    ],
    ids=[
        "padding of 8 bits",
        "padding of 11 bits",
        "padding of zeros",
        "end of string",
        "end of string inside",
    ],
)
def test_huffman_strings_with_wrong_padding_are_refused(data: bytes) -> None:
    with pytest.raises(HuffmanError):
        huffman_decode(data)


def test_every_symbol_of_the_huffman_code_ends_a_string() -> None:
    for symbol in range(256):
        assert huffman_decode(bits(symbol)) == bytes([symbol])


@pytest.mark.parametrize(
    "block",
    [
        b"\x80",
        b"\xbe",
        b"\xff\xff\xff\xff\xff\xff\x7f",
        b"\xff\x80\x80\x80\x80\x80\x80\x80\x01",
        b"\x82\x20",
        b"\x3f\xe2\x1f",
        b"\x00\x01a",
        b"\x00\x7f\x80",
        b"\x7e\x01a",
        b"\x82\xff",
    ],
    ids=[
        "index 0", "an entry that is not there", "an index of 2**35", "an integer of nine bytes",
        "a late size update", "a size above the limit", "no value",
        "a cut length", "a name that is not there", "a cut index",
    ],
)  # fmt: skip
def test_a_bad_block_is_refused(block: bytes) -> None:
    with pytest.raises(HpackError):
        Decoder().decode(block)


def test_a_list_that_is_too_large_is_refused_and_the_table_stays_in_step() -> None:
    encoder, decoder = hpack.Encoder(), Decoder(max_header_list_size=200)
    small = [(b"x-small", b"1")]
    with pytest.raises(HeaderListTooLarge) as caught:
        decoder.decode(encoder.encode([*small, (b"x-large", b"2" * 300), (b"x-last", b"3")]))
    assert caught.value.size == 40 + 32 + 307 + 39
    assert decoder.decode(encoder.encode(small)) == small
    assert decoder.decode(encoder.encode([(b"x-last", b"3")])) == [(b"x-last", b"3")]


def test_a_list_above_the_limit_leaves_the_table_ready() -> None:
    decoder = Decoder(max_header_list_size=8192)
    block = b"\x40\x01a" + b"\x7f\xd1\x1e" + b"v" * 4048
    with pytest.raises(HeaderListTooLarge) as caught:
        decoder.decode(block + b"\xbe" * 60)
    assert caught.value.size == 61 * (1 + 4048 + 32)
    assert decoder.decode(b"\xbe") == [(b"a", b"v" * 4048)]
    with pytest.raises(HeaderBomb):
        decoder.decode(block + b"\xbe" * 16_000)


def test_a_block_of_size_updates_is_refused() -> None:
    assert Decoder().decode(b"\x20\x3f\xe1\x1f\x82") == [(b":method", b"GET")]
    with pytest.raises(HpackError, match="size updates"):
        Decoder().decode(b"\x20" * 17 + b"\x82")


def test_a_cached_block_is_dropped_when_the_table_changes() -> None:
    decoder = Decoder()
    decoder.decode(b"\x40\x01a\x01" + b"1")
    newest = b"\xbe"
    assert decoder.decode(newest) == [(b"a", b"1")]
    assert decoder.decode(newest) is decoder.decode(newest)
    decoder.decode(b"\x40\x01b\x01" + b"2")
    assert decoder.decode(newest) == [(b"b", b"2")]
    decoder.decode(b"\x20")
    with pytest.raises(HpackError):
        decoder.decode(newest)


def test_an_insertion_that_does_not_fit_drops_cached_blocks_too() -> None:
    decoder = Decoder(max_table_size=64)
    decoder.decode(b"\x40\x01a\x01" + b"1")
    assert decoder.decode(b"\xbe") == [(b"a", b"1")]
    decoder.decode(b"\x40\x01b\x40" + b"2" * 64)
    assert decoder.table_size == 0
    with pytest.raises(HpackError):
        decoder.decode(b"\xbe")


def test_cached_blocks_are_bounded() -> None:
    decoder = Decoder()
    for number in range(10_000):
        decoder.decode(b"\x00\x02id\x08%08d" % number)
        assert sum(map(len, decoder._cached)) == decoder._cached_size <= CACHED_SIZE_MAX


def test_the_encoder_caches_a_bounded_number_of_fields() -> None:
    encoder = Encoder()
    for number in range(2_000):
        encoder.encode([(b"x-mq-request-id", b"%d" % number), (b"x-large", b"v" * 5000)])
        assert len(encoder._encoded) <= 256


def test_the_first_block_alone_empties_the_peers_table() -> None:
    encoder = Encoder()
    assert encoder.encode([(b":status", b"200")]) == b"\x20\x88"
    assert encoder.encode([(b":status", b"200")]) == b"\x88"


def test_credentials_are_never_indexed() -> None:
    assert Encoder().encode([(b"authorization", b"s")]) == b"\x20" + b"\x1f\x08\x01s"
