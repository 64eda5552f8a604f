"""Frames of real programs, as they were recorded (tests/data/README.md), are read, written and answered."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.broker_here import broker_here
from trovemq_proto.remoting.frame import FrameSplitter, encode_frame
from trovemq_proto.remoting.headers import LANGUAGES, Header

FILE: Final = Path(__file__).parents[2] / "data" / "remoting-frames.jsonl"
LINES: Final[list[dict[str, Any]]] = [json.loads(line) for line in FILE.read_text().splitlines()]
PROGRAMS: Final = ("remoting", "remoting4", "remoting_go", "mqadmin", "spring")
ANSWER_S: Final = 120.0


def only_frame(data: bytes) -> tuple[Header, bytes, int]:
    ((header, body, form),) = (
        (one.header(), bytes(one.body), one.form) for one in FrameSplitter().feed(memoryview(data))
    )
    return header, body, form


def frames(program: str, sender: str = "client") -> Iterator[tuple[dict[str, Any], bytes]]:
    for line in LINES:
        if line["program"] == program and line["sender"] == sender:
            yield line, base64.b64decode(line["frame"])


@pytest.mark.parametrize("program", PROGRAMS)
def test_recorded_frames_are_read_and_written(program: str) -> None:
    found = [*frames(program), *frames(program, "broker")]
    assert len(found) >= 10, "the recording has few frames of the program"
    for line, data in found:
        header, body, form = only_frame(data)
        assert header.is_response == line["is_response"]
        assert header.is_response or header.code == line["request"]
        assert header.language in LANGUAGES
        assert only_frame(encode_frame(header, body, form)) == (header, body, form)


@pytest.mark.parametrize("program", PROGRAMS)
def test_recorded_requests_are_answered(tmp_path: Path, program: str) -> None:
    """By a broker without their topics: not all answers are successes, and none is an unexpected error."""

    async def main() -> None:
        async with broker_here(tmp_path, remoting_enable=True) as broker:
            for line, data in frames(program):
                header, *_ = only_frame(data)
                if not line["is_response"]:
                    remark = await remark_of_answer(broker.address, header, data)
                    assert "unexpected error" not in remark, line["request"]

    asyncio.run(main())


async def remark_of_answer(address: str, request: Header, data: bytes) -> str:
    """One-way requests have none."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    splitter = FrameSplitter()
    try:
        writer.write(data)
        async with asyncio.timeout(ANSWER_S):
            while not request.is_one_way:
                part = await reader.read(65_536)
                assert part, f"the connection was closed after request {request.code}"
                for frame in splitter.feed(memoryview(part)):
                    header = frame.header()
                    if header.is_response and header.opaque == request.opaque:
                        return header.remark
        return ""
    finally:
        writer.close()
