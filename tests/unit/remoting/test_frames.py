"""Frames and headers of the remoting protocol: a written one is read, and broken bytes are refused."""

from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trovemq_proto.remoting.errors import FrameError
from trovemq_proto.remoting.fields import FieldError, Fields
from trovemq_proto.remoting.frame import FRAME_SIZE_MAX, FrameSplitter, encode_frame
from trovemq_proto.remoting.headers import BINARY, FIELDS_MAX, JSON, LANGUAGES, Header, decode_header
from trovemq_proto.remoting.json_text import json_text, queue_key, queue_map

TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
HEADERS = st.builds(
    Header,
    code=st.integers(0, 32_767),
    opaque=st.integers(-(1 << 31), (1 << 31) - 1),
    flag=st.integers(0, 3),
    language=st.sampled_from(LANGUAGES),
    version=st.integers(0, 600),
    remark=TEXTS,
    fields=st.dictionaries(TEXTS.filter(bool), TEXTS, max_size=6),
)
FRAMES = st.lists(st.tuples(HEADERS, st.binary(max_size=200), st.sampled_from((JSON, BINARY))), max_size=4)


def fed(splitter: FrameSplitter, data: bytes) -> list[tuple[Header, bytes]]:
    return [(frame.header(), bytes(frame.body)) for frame in splitter.feed(memoryview(data))]


@given(FRAMES, st.lists(st.integers(1, 60), min_size=1, max_size=20))
def test_frames_are_read_as_written_wherever_the_stream_is_cut(
    frames: list[tuple[Header, bytes, int]], sizes: list[int]
) -> None:
    data = b"".join(encode_frame(*frame) for frame in frames)
    splitter, found, at = FrameSplitter(), [], 0
    while at < len(data):
        size = sizes[at % len(sizes)]
        found += fed(splitter, data[at : at + size])
        at += size
    assert found == [(header, body) for header, body, _ in frames]
    assert splitter.kept_size == 0


@given(FRAMES)
def test_the_rest_after_a_frame_has_the_other_frames(
    frames: list[tuple[Header, bytes, int]],
) -> None:
    data = b"".join(encode_frame(*frame) for frame in frames)
    splitter, found = FrameSplitter(), []
    while data:
        frame = next(splitter.feed(memoryview(data)))
        found.append((frame.header(), bytes(frame.body)))
        data = splitter.take_rest()
    assert found == [(header, body) for header, body, _ in frames]


@given(st.binary(min_size=8, max_size=300))
def test_no_bytes_raise_anything_but_a_frame_error(data: bytes) -> None:
    try:
        found = fed(FrameSplitter(), data)
    except FrameError:
        return
    assert all(isinstance(header, Header) for header, _ in found)


@given(HEADERS, st.data())
def test_a_changed_binary_header_raises_a_frame_error_only(header: Header, data: st.DataObject) -> None:
    raw = bytearray(encode_frame(header, b"", BINARY)[8:])
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] = data.draw(st.integers(0, 255))
    try:
        found = decode_header(BINARY, memoryview(raw))
    except FrameError:
        return
    assert len(found.fields) <= FIELDS_MAX


@pytest.mark.parametrize(
    ("total", "form", "header_size"),
    [
        (FRAME_SIZE_MAX, JSON, 10),
        (0xFFFFFFFF, JSON, 10),
        (20, 2, 10),
        (20, JSON, 17),
        (0, JSON, 0),
        (12_000_000, JSON, 11_000_000),
    ],
)
def test_a_length_that_lies_is_refused_before_its_bytes_come(total: int, form: int, header_size: int) -> None:
    splitter = FrameSplitter()
    with pytest.raises(FrameError):
        fed(splitter, struct.pack(">II", total, form << 24 | header_size))
    assert splitter.kept_size == 0


def test_a_header_of_java_is_read() -> None:
    text = (
        b'{"code":105,"extFields":{"topic":"TopicTest"},"flag":0,"language":"JAVA","opaque":1,'
        b'"serializeTypeCurrentRPC":"JSON","version":493}'
    )
    header = decode_header(JSON, memoryview(text))
    assert header == Header(105, 1, 0, "JAVA", 493, "", {"topic": "TopicTest"})


def test_numbers_and_nulls_in_a_header_are_read_as_java_reads_them() -> None:
    text = json.dumps(
        {
            "code": 11,
            "opaque": 7,
            "remark": None,
            "language": None,
            "extFields": {"n": 5, "b": True, "x": None},
        }
    ).encode()
    header = decode_header(JSON, memoryview(text))
    assert (header.fields, header.remark, header.language) == ({"n": "5", "b": "true"}, "", "OTHER")


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[1]", b'{"code":"a"}', b'{"code":1,"extFields":[]}', b'{"code":1']
)
def test_text_that_is_no_header_is_refused(text: bytes) -> None:
    with pytest.raises(FrameError):
        decode_header(JSON, memoryview(text))


@pytest.mark.parametrize("form", [JSON, BINARY])
def test_more_fields_than_the_limit_are_refused(form: int) -> None:
    fields = {f"n{number}": "v" for number in range(FIELDS_MAX + 1)}
    frame = encode_frame(Header(10, fields=fields), b"", form)
    with pytest.raises(FrameError):
        fed(FrameSplitter(), frame)


@pytest.mark.parametrize("text", ["", "a", "1.5", "1 ", "99999999999999999999999", str(1 << 31), "--1", "٣"])
def test_a_field_that_is_no_number_of_its_width_is_refused(text: str) -> None:
    with pytest.raises(FieldError, match="queueId"):
        Fields({"queueId": text}).int32("queueId")


def test_a_field_that_is_missing_is_named() -> None:
    with pytest.raises(FieldError, match="topic"):
        Fields({}).text("topic")


def test_a_map_by_queues_has_objects_as_keys() -> None:
    table = queue_map([(queue_key("b", "t", 0), {"max": 3})])  # type: ignore[arg-type]
    written = json_text({"offsetTable": table})
    assert written == b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:{"max":3}}}'


def test_a_json_header_that_is_not_utf_8_was_no_frame_error() -> None:
    with pytest.raises(FrameError):
        decode_header(JSON, memoryview(b'{"code":\xff}'))
