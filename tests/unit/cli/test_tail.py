"""tail: the last messages, and those since a time."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.cli.conftest import FIRST_TIMESTAMP


@pytest.fixture
def sent(run: Any) -> Any:
    """Ten messages, in turn on two queues."""
    for number in range(10):
        run(
            "send",
            "orders",
            str(number),
            "--queue",
            str(number % 2),
            "--tag",
            "odd" if number % 2 else "even",
        )
    return run


def bodies(ran: Any) -> list[bytes]:
    assert ran.code == 0, ran.err
    found: list[bytes] = ran.out.splitlines()
    return found


def test_the_last_messages_of_all_queues_in_the_order_of_time(sent: Any) -> None:
    for count in (0, 1, 3, 10, 12):
        expected = [str(number).encode() for number in range(max(0, 10 - count), 10)]
        assert bodies(sent("tail", "orders", "-n", str(count), "--no-follow", "-o", "body")) == expected


def test_the_last_messages_with_a_tag_are_as_many_as_were_asked_for(sent: Any) -> None:
    line = ("tail", "orders", "-n", "4", "--tag", "odd", "--no-follow", "-o", "body")
    assert bodies(sent(*line)) == [b"3", b"5", b"7", b"9"]


def test_since_a_time(sent: Any) -> None:
    since = str(FIRST_TIMESTAMP + 6)
    line = ("tail", "orders", "--since", since, "--no-follow", "-o", "body")
    assert bodies(sent(*line)) == [b"6", b"7", b"8", b"9"]
    assert bodies(sent(*line, "-n", "2")) == [b"8", b"9"]
    assert bodies(sent("tail", "orders", "--since", "now", "--no-follow", "-o", "body")) == []


def test_from_the_start_in_the_order_of_time(sent: Any) -> None:
    everything = [str(number).encode() for number in range(10)]
    assert bodies(sent("tail", "orders", "--from-start", "--no-follow", "-o", "body")) == everything
    assert bodies(sent("tail", "orders", "--from-start", "--max", "4", "-o", "body")) == everything[:4]
    assert bodies(sent("tail", "orders", "--queue", "1", "--from-start", "--max", "2", "-o", "body")) == [
        b"1",
        b"3",
    ]


@pytest.mark.parametrize(
    "line",
    [("--no-follow",), ("--from-start", "-n", "3"), ("--from-start", "--since", "1h"), ("-n", "10001")],
)
def test_what_does_not_go_together_is_wrong_usage(sent: Any, line: tuple[str, ...]) -> None:
    assert sent("tail", "orders", *line).code == 2
