"""A worker says when a broker is gone, and when it is back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from trovemq._net.outages import BrokerContacts
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

GONE = TroveError(errors.BROKER_UNREACHABLE, "connection refused")


@pytest.fixture
def contacts() -> BrokerContacts:
    seconds: Iterator[float] = iter([10.0, 13.5, 20.0, 20.5])
    return BrokerContacts("orders", "billing", lambda: next(seconds))


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_each_outage_has_two_lines(contacts: BrokerContacts, caplog: pytest.LogCaptureFixture) -> None:
    contacts.joined("a")
    for _ in range(3):
        contacts.lost("a", GONE, opened=True)
    contacts.joined("a")
    contacts.joined("a")
    contacts.lost("a", GONE, opened=True)
    first, second, third = lines(caplog)
    of = "group billing of topic orders: broker a is"
    assert first.startswith(f"{of} gone, and is tried again: BROKER_UNREACHABLE")
    assert second == f"{of} back, after 3.5 s"
    assert third == first


@pytest.mark.parametrize(
    ("opened", "joined", "says"), [(False, False, 0), (False, True, 1), (True, False, 1)]
)
def test_the_first_failure_of_all_is_an_error_for_the_caller(
    contacts: BrokerContacts, caplog: pytest.LogCaptureFixture, opened: bool, joined: bool, says: int
) -> None:
    if joined:
        contacts.joined("a")
    contacts.lost("a", GONE, opened=opened)
    assert len(lines(caplog)) == says
