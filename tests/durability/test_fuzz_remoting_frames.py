"""Hostile bytes to the reader of remoting frames, whole and in pieces: frames, or a FrameError."""

from __future__ import annotations

from random import Random
from typing import Final

import pytest

from tests.durability.test_file_decoders import mutated
from tests.support.trials import Trials
from trovemq_proto.remoting.errors import FrameError
from trovemq_proto.remoting.frame import FRAME_SIZE_MAX, FrameSplitter, encode_frame
from trovemq_proto.remoting.headers import BINARY, FIELDS_MAX, IS_ONE_WAY, JSON, Form, Header

TOTAL: Final = 20_000
DEFAULT: Final = 500
FORMS: Final[tuple[Form, ...]] = (JSON, BINARY)


def samples() -> list[bytes]:
    """Of each form: a send, a pull, a heartbeat, an answer, a one-way request; and some in one read."""
    headers = (
        Header(310, 1, language="JAVA", version=493, fields={"a": "p", "b": "orders", "i": "KEYS\x01k\x02"}),
        Header(11, -1, fields={"consumerGroup": "g", "queueOffset": "9223372036854775807"}),
        Header(34, 2),
        Header(0, 3, 1, remark="\u00fc\u4e2d"),
        Header(15, 4, IS_ONE_WAY, fields={"commitOffset": "7"}),
    )
    frames = [
        encode_frame(header, body, form)
        for form in FORMS
        for header in headers
        for body in (b"", b'{"x":[]}')
    ]
    return [*frames, b"".join(frames)]


def read(data: bytes, source: Random) -> list[tuple[Header, bytes]]:
    """Also in pieces, with the same result. FrameError."""
    whole = [(one.header(), bytes(one.body)) for one in FrameSplitter().feed(memoryview(data))]
    splitter, found, at = FrameSplitter(), [], 0
    while at < len(data):
        size = source.choice((1, 3, 7, 8, 64, 4_096))
        piece = memoryview(data)[at : at + size]
        found += [(one.header(), bytes(one.body)) for one in splitter.feed(piece)]
        at += size
        assert splitter.kept_size <= len(data)
    assert found == whole
    return whole


@pytest.mark.slow
def test_hostile_frames(trials: Trials) -> None:
    done, frames = 0, samples()
    for number in trials.numbers(TOTAL, default=DEFAULT):
        with trials.one(number) as source:
            data = mutated(frames, source)
            try:
                found = read(data, source)
            except FrameError:
                found = []
            assert all(len(body) <= FRAME_SIZE_MAX for _, body in found)
            assert all(len(header.fields) <= FIELDS_MAX for header, _ in found)
        done += 1
    trials.count("S2", "inputs, to the reader of remoting frames", done)
