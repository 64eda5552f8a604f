"""Alike events of the log: the first of a minute at once, the rest as a number."""

from __future__ import annotations

import pytest

from tests.support.logs import logged
from trovemq_daemon import minute_log
from trovemq_daemon.minute_log import INTERVAL_MS, MinuteLog


def lines(text: str) -> list[str]:
    return [" ".join(line.split()[1:]) for line in text.splitlines()]


def test_the_first_is_logged_at_once_and_the_rest_as_a_number() -> None:
    with logged() as log:
        minute = MinuteLog()
        for now_ms in (INTERVAL_MS, INTERVAL_MS + 5, INTERVAL_MS + 6):
            minute.note("info", "seen", now_ms, user="alice")
        minute.note("warning", "seen", INTERVAL_MS + 7, user="bob")
        minute.flush(2 * INTERVAL_MS - 1)
        assert len(lines(log.getvalue())) == 2
        minute.flush(2 * INTERVAL_MS)
        minute.note("info", "seen", 2 * INTERVAL_MS, user="alice")
    found = lines(log.getvalue())
    assert len(found) == 4
    assert ["again=2" in line for line in found] == [False, False, True, False]
    assert all("alice" in found[number] for number in (0, 2, 3))


def test_kinds_beyond_the_limit_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minute_log, "KINDS_MAX", 3)
    with logged() as log:
        minute = MinuteLog()
        for number in range(10):
            minute.note("info", "seen", INTERVAL_MS, number=number)
        assert len(minute) == 3
        minute.flush(3 * INTERVAL_MS)
    found = lines(log.getvalue())
    assert len(found) == 4
    assert "log.kinds_left_out" in found[3]
    assert "events=7" in found[3]


def test_a_clock_that_goes_back_begins_another_minute() -> None:
    with logged() as log:
        minute = MinuteLog()
        minute.note("info", "seen", 5 * INTERVAL_MS)
        minute.note("info", "seen", INTERVAL_MS)
    assert len(lines(log.getvalue())) == 2
