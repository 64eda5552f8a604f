"""Who waits for the next due time gets one notice of an earlier one."""

from __future__ import annotations

from trovemq_broker.groups.delivery.due_watch import NOW, DueWatch


def test_an_earlier_time_is_noticed_once() -> None:
    watch, notices = DueWatch(), list[str]()
    watch.due(NOW)  # no receive waits
    watch.wait(1_000, lambda: notices.append("first"))
    watch.due(1_000)
    watch.due(2_000)
    assert notices == []
    watch.due(999)
    watch.due(NOW)
    assert notices == ["first"]
    watch.wait(1_000, lambda: notices.append("second"))
    watch.due(NOW)
    assert notices == ["first", "second"]


def test_a_watcher_that_looks_at_once_gets_no_notice() -> None:
    watch, notices = DueWatch(), list[str]()
    watch.wait(NOW, lambda: notices.append("called"))
    watch.due(NOW)
    assert notices == []
