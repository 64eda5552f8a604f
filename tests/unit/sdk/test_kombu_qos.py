"""The unacknowledged messages of a channel: settlements, the prefetch, and leases that are renewed."""

from __future__ import annotations

import threading

import pytest

from tests.support.kombu_messages import FakeMessage, received
from trovemq._kombu import qos as qos_module
from trovemq._kombu.qos import QoS


def holding(qos: QoS, *tags: str) -> list[FakeMessage]:
    messages = [received(b"") for _ in tags]
    for tag, message in zip(tags, messages, strict=True):
        qos.lease(tag, message)
        qos.append(f"kombu {tag}", tag)
    return messages


def test_each_settlement_reaches_the_lease_once() -> None:
    woken: list[int] = []
    qos = QoS(settled=lambda: woken.append(1))
    messages = holding(qos, "a", "b", "c")
    assert qos.get("a") == "kombu a"
    qos.ack("a")
    qos.reject("b", requeue=True)
    qos.reject("c")
    for tag in "abc":
        qos.ack(tag)
        qos.reject(tag, requeue=True)
    assert [message.settled for message in messages] == [["ack"], ["nack 0"], ["dead"]]
    assert len(woken) == 3
    with pytest.raises(KeyError):
        qos.get("a")


def test_the_prefetch_counts_what_is_not_settled() -> None:
    qos = QoS(2)
    holding(qos, "a")
    assert qos.can_consume()
    assert qos.can_consume_max_estimate() == 1
    holding(qos, "b")
    assert not qos.can_consume()
    qos.ack("a")
    assert qos.can_consume()
    qos.prefetch_count = 0
    assert qos.can_consume()
    assert qos.can_consume_max_estimate() is None


def test_a_message_without_acknowledgement_is_settled_at_its_delivery() -> None:
    qos, message = QoS(1), received(b"")
    qos.lease("a", message)
    qos.unlease("a")
    assert message.settled == ["ack"]
    assert qos.can_consume()


def test_at_the_end_all_are_returned_once() -> None:
    qos = QoS()
    messages = holding(qos, "a", "b")
    qos.ack("a")
    qos.restore_unacked_once()
    qos.restore_unacked_once()
    assert [message.settled for message in messages] == [["ack"], ["nack 0"]]
    assert not qos.holds("celery")


def test_old_leases_are_renewed_and_again() -> None:
    now = [0.0]
    qos = QoS(renew_after=9_000, renewed_lease=600, clock=lambda: now[0])
    (old,) = holding(qos, "old")
    now[0] = 100.0
    (young,) = holding(qos, "young")
    assert qos.renew_due(8_999.0) == 0
    assert qos.renew_due(9_000.0) == 1
    assert qos.renew_due(9_001.0) == 0
    assert qos.renew_due(9_300.0) == 2
    assert old.settled == ["extend 600", "extend 600"]
    assert young.settled == ["extend 600"]
    qos.ack("old")
    assert qos.renew_due(99_999.0) == 1
    qos.restore_unacked_once()


def test_a_settlement_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    qos = QoS()
    (message,) = holding(qos, "a")
    message.fails = True
    qos.ack("a")
    assert "is delivered again" in caplog.text
    assert not qos.holds("celery")


def test_a_broker_that_is_away_keeps_no_worker_from_stopping(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each message waited for the broker as long as a call may, one after the other."""
    monkeypatch.setattr(qos_module, "RETURN_SECONDS_MAX", 0.01)
    answered, asked = threading.Event(), list[FakeMessage]()

    def wait(message: FakeMessage, delay: float | None = None) -> None:
        asked.append(message)
        answered.wait()

    monkeypatch.setattr(FakeMessage, "nack", wait)
    qos = QoS()
    first, _ = holding(qos, "a", "b")
    qos.restore_unacked_once()
    assert "the broker does not answer" in caplog.text
    assert not qos.holds("celery")
    answered.set()
    for thread in threading.enumerate():
        if thread.name == "trovemq return":
            thread.join()
    assert asked in ([], [first]), "after the time no other is asked for"


def test_messages_received_ahead_are_returned_too() -> None:
    qos, ahead = QoS(), received(b"")
    (held,) = holding(qos, "a")
    qos.close([ahead])
    assert ahead.settled == held.settled == ["nack 0"]
