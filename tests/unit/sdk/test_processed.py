"""Messages that were processed, and whose acknowledgements came too late."""

from __future__ import annotations

import pytest

from trovemq._consume import processed
from trovemq._consume.processed import KEPT_MAX, KEPT_S, ProcessedMessages
from trovemq.received import ReceivedMessage


def message(offset: int, attempt: int) -> ReceivedMessage:
    return ReceivedMessage(
        topic="orders",
        body=b"",
        message_id=f"id-{offset}",
        keys=(),
        tags=None,
        properties={},
        message_group=None,
        queue_id=0,
        queue_offset=offset,
        attempt=attempt,
        born_timestamp=0,
        store_timestamp=0,
        broker="broker-a",
    )


def test_a_later_delivery_of_a_processed_message_is_found_once() -> None:
    known = ProcessedMessages()
    assert not known
    known.add(message(1, attempt=1))
    assert not known.has(message(2, attempt=2))
    assert known.has(message(1, attempt=3))
    assert not known.has(message(1, attempt=4)), "if that is too late, it is added again"


def test_after_a_reset_a_message_is_processed_again() -> None:
    known = ProcessedMessages()
    known.add(message(1, attempt=2))
    assert not known.has(message(1, attempt=1))
    assert not known.has(message(1, attempt=3))


def test_they_are_kept_for_a_while_and_are_not_many(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(processed, "monotonic", lambda: now)
    known = ProcessedMessages()
    for offset in range(KEPT_MAX + 1):
        known.add(message(offset, attempt=1))
    assert not known.has(message(0, attempt=2))
    assert known.has(message(1, attempt=2))
    now += KEPT_S + 1
    assert not known.has(message(2, attempt=2))
    assert not known
