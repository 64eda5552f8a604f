"""The delay before a message that failed is redelivered, by the settings of its group."""

from __future__ import annotations

from trovemq._consume.grouped import backoff_ms
from trovemq.models.group import GroupSettings


def test_back_off_by_steps() -> None:
    settings = GroupSettings(backoff_ms=(1_000, 5_500))
    assert [backoff_ms(settings, attempt) for attempt in (1, 2, 3, 99)] == [1_000, 5_500, 5_500, 5_500]


def test_exponential_back_off() -> None:
    settings = GroupSettings(
        exponential=True, backoff_initial_ms=100, backoff_max_ms=1_000, backoff_multiplier=3.0
    )
    assert [backoff_ms(settings, attempt) for attempt in (1, 2, 3, 4, 2**31 - 1)] == [
        100, 300, 900, 1_000, 1_000,
    ]  # fmt: skip


def test_settings_without_steps_wait_a_second() -> None:
    assert backoff_ms(GroupSettings(), 1) == 1_000
