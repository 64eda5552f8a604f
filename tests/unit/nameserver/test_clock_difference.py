"""The warning of a broker whose clock differs from a nameserver's: only a difference that is sure counts."""

from __future__ import annotations

import pytest

from trovemq_broker.cluster.clock_difference import DIFFERENCE_MAX_MS, ClockDifference

NOW = 1_700_000_000_000


def warning(ahead_ms: int, took_ms: int = 0) -> str:
    """Of a clock that is ahead by `ahead_ms`, with an answer that came after `took_ms`."""
    difference = ClockDifference("ns:9876", lambda: 0)
    asked = NOW + ahead_ms
    difference.answered(asked, asked + took_ms, NOW + took_ms // 2)
    return difference.warning


@pytest.mark.parametrize("ahead_ms", [0, DIFFERENCE_MAX_MS, -DIFFERENCE_MAX_MS])
def test_small_differences_are_no_warning(ahead_ms: int) -> None:
    assert warning(ahead_ms) == ""


@pytest.mark.parametrize("ahead_ms", [DIFFERENCE_MAX_MS + 1, -DIFFERENCE_MAX_MS - 1])
def test_larger_ones_are(ahead_ms: int) -> None:
    assert "2.0 s" in warning(ahead_ms)
    assert ("fast" if ahead_ms > 0 else "slow") in warning(ahead_ms)
    assert "ns:9876" in warning(ahead_ms)


def test_a_slow_answer_does_not_make_a_difference() -> None:
    assert warning(3_000, took_ms=4_000) == ""
    assert "3.0 s" in warning(3_000, took_ms=1_000)


def test_a_clock_that_is_set_ends_the_warning() -> None:
    difference = ClockDifference("ns:9876", lambda: 0)
    difference.answered(NOW, NOW, NOW + 3_600_000)
    assert "3,600.0 s slow" in difference.warning
    difference.answered(NOW, NOW, NOW)
    assert difference.warning == ""
