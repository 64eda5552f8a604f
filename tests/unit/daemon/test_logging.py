"""Log lines: one an event, escaped, bounded, rate-limited."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.logs import logging_restored
from trovemq_daemon.logging import LINES_MAX, LogFormat, configure_logging, get_logger, set_log_level


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    with logging_restored():
        yield


def lines_of(stream: io.StringIO) -> list[str]:
    return stream.getvalue().splitlines()


@given(value=st.text(), log_format=st.sampled_from(["text", "json"]))
def test_no_value_makes_a_second_line(value: str, log_format: LogFormat) -> None:
    stream = io.StringIO()
    configure_logging("info", log_format, stream=stream)
    get_logger().info("client.sent", value=value, other=1)
    text = stream.getvalue()
    assert text.endswith("\n")
    assert len(text.splitlines()) == 1
    assert not any(ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 for character in text[:-1])
    if log_format == "json":
        assert json.loads(text)["value"] == value
    else:
        assert text.endswith(" other=1\n")


def test_a_text_line_reads_well() -> None:
    stream = io.StringIO()
    configure_logging("info", "text", stream=stream)
    get_logger().info("store.opened", messages=12, path="./my data", note="")
    head, tail = stream.getvalue().split("Z ", 1)
    assert head.startswith("20")
    assert tail == 'info    store.opened messages=12 path="./my data" note=""\n'


def test_bodies_never_show_and_long_values_are_cut() -> None:
    stream = io.StringIO()
    configure_logging("info", "json", stream=stream)
    get_logger().info("x", body=b"secret", long="y" * 5_000)
    line = json.loads(stream.getvalue())
    assert line["body"] == "<6 bytes>"
    assert line["long"] == "y" * 1_024 + "…(+3976)"


def test_an_exception_stays_on_its_line() -> None:
    stream = io.StringIO()
    configure_logging("info", "text", stream=stream)
    try:
        raise ValueError("first\nsecond")
    except ValueError as error:
        get_logger().error("failed", exc_info=error)
    (line,) = lines_of(stream)
    assert "ValueError: first\\nsecond" in line


def test_an_event_that_repeats_is_counted_instead() -> None:
    stream, clock = io.StringIO(), Clock()
    configure_logging("info", "json", stream=stream, clock=clock)
    for _ in range(LINES_MAX + 7):
        get_logger().warning("frame.refused")
    get_logger().info("another")
    clock.now = 11.0
    get_logger().warning("frame.refused")
    lines = [json.loads(line) for line in lines_of(stream)]
    assert [line["event"] for line in lines] == ["frame.refused"] * LINES_MAX + ["another", "frame.refused"]
    assert [line.get("suppressed") for line in lines][-1] == 7
    assert all("suppressed" not in line for line in lines[:-1])


def test_levels_filter_and_libraries_are_heard() -> None:
    stream = io.StringIO()
    configure_logging("warning", "json", stream=stream)
    get_logger().info("quiet")
    logging.getLogger("uvicorn.error").info("quiet too")
    logging.getLogger("uvicorn.error").warning("loud %d", 5)
    (line,) = [json.loads(text) for text in lines_of(stream)]
    assert (line["event"], line["message"]) == ("library.uvicorn.error", "loud 5")


def test_the_level_can_be_changed_while_the_process_runs() -> None:
    stream = io.StringIO()
    configure_logging("info", stream=stream)
    get_logger().debug("one")
    set_log_level("debug")
    get_logger().debug("two")
    set_log_level("error")
    get_logger().warning("three")
    get_logger().error("four")
    assert [line.split()[2] for line in lines_of(stream)] == ["two", "four"]
