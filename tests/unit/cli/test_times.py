"""Times on the command line."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from trovemq.cli.times import (
    TIME_MAX,
    parse_duration_ms,
    parse_moment,
    parse_moment_ahead,
    parse_time,
)
from trovemq_proto.time_text import format_time


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        (str(TIME_MAX), TIME_MAX),
        ("1735689600000", 1_735_689_600_000),
        ("2025-01-01", 1_735_689_600_000),
        ("2025-01-01T00:00:00", 1_735_689_600_000),
        ("2025-01-01T00:00:00.123Z", 1_735_689_600_123),
        ("2025-01-01 01:00:00+01:00", 1_735_689_600_000),
        ("2025-01-01T00:00:00.123999Z", 1_735_689_600_123),
    ],
)
def test_epoch_milliseconds_and_iso_8601(text: str, expected: int) -> None:
    assert parse_time(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-1",
        "soon",
        "1.5",
        "1h2",
        "1 h x",
        "2 moons ago",
        "one hour ago",
        "ago",
        "9:3",
        "25:00",
        "yesterday at two",
        "today 25:00",
        "99999999w",
        str(TIME_MAX + 1),
        "1969-12-31",
        "2025-13-01",
        "٣",
    ],
)
def test_anything_else_is_wrong_usage(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_time(text)


NOW = "2025-01-15T12:00:00Z"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOW),
        ("1h", "2025-01-15T11:00:00Z"),
        ("1h30m ago", "2025-01-15T10:30:00Z"),
        ("-2d", "2025-01-13T12:00:00Z"),
        ("1.5h", "2025-01-15T10:30:00Z"),
        ("1w", "2025-01-08T12:00:00Z"),
        ("+10m", "2025-01-15T12:10:00Z"),
        ("today", "2025-01-15"),
        ("yesterday", "2025-01-14"),
        ("tomorrow", "2025-01-16"),
        ("yesterday 14:30", "2025-01-14T14:30:00Z"),
        ("today 01:00+01:00", "2025-01-15"),
        ("yesterday 9:30", "2025-01-14T09:30:00Z"),
        ("9:30", "2025-01-15T09:30:00Z"),
        ("09:30:15", "2025-01-15T09:30:15Z"),
        ("1 hour ago", "2025-01-15T11:00:00Z"),
        ("2 days 5 mins ago", "2025-01-13T11:55:00Z"),
        ("90 seconds ago", "2025-01-15T11:58:30Z"),
        ("2 weeks ago", "2025-01-01T12:00:00Z"),
        ("250ms ago", "2025-01-15T11:59:59.750Z"),
    ],
)
def test_times_relative_to_now(text: str, expected: str) -> None:
    now_ms = parse_time(NOW)
    assert parse_moment(text).relative
    assert parse_moment(text).at(now_ms) == parse_time(expected)
    ahead = {"1h": "2025-01-15T13:00:00Z", "1.5h": "2025-01-15T13:30:00Z", "1w": "2025-01-22T12:00:00Z"}
    assert parse_moment_ahead(text).at(now_ms) == parse_time(ahead.get(text, expected))


def test_a_time_without_a_zone_was_one_of_this_machines_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        assert parse_time("2025-01-01T00:00:00") == 1_735_689_600_000
    time.tzset()


@pytest.mark.parametrize("text", ["2025-01-15", "0", str(TIME_MAX), "2025-01-15T12:00:00+01:00"])
def test_other_times_do_not_depend_on_now(text: str) -> None:
    assert not parse_moment(text).relative
    assert parse_moment(text).at(1) == parse_moment(text).at(2) == parse_time(text)


@given(
    st.datetimes(min_value=datetime(1971, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001 - the zone is given
    st.integers(-720, 720),
)
def test_every_zone_gives_the_same_moment(moment: datetime, zone_minutes: int) -> None:
    moment = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    expected = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    try:
        local = moment.astimezone(timezone(timedelta(minutes=zone_minutes)))
    except OverflowError:
        return
    assert parse_time(local.isoformat()) == expected


@given(st.integers(1, 253_402_300_799_999))
def test_a_formatted_time_is_the_same_time(milliseconds: int) -> None:
    assert parse_time(format_time(milliseconds)) == milliseconds


def test_times_beyond_every_calendar() -> None:
    assert format_time(0) == format_time(-1) == "-"
    assert format_time(TIME_MAX) == str(TIME_MAX)


@given(st.integers(0, 10**12), st.sampled_from([("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)]))
def test_a_duration_is_a_number_with_a_unit(count: int, unit: tuple[str, int]) -> None:
    name, size = unit
    assert parse_duration_ms(f"{count}{name}") == count * size


def test_a_duration_without_a_unit_is_seconds_and_may_have_a_fraction() -> None:
    assert [parse_duration_ms(text) for text in ("3", "0.25", "1.5h", 0)] == [3_000, 250, 5_400_000, 0]
    assert [parse_duration_ms(text) for text in ("1h30m", "1w", "2 minutes")] == [
        5_400_000,
        604_800_000,
        120_000,
    ]


@pytest.mark.parametrize(
    "text", ["", "-1s", "1 s x", "1h ago", "1m1", "s", "1e3", "0.1ms", "٣s", "999999999999999d"]
)
def test_what_is_not_a_duration_is_wrong_usage(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_duration_ms(text)
