"""A broker whose own name was not known yet ended with exit code 2, and systemd did not start it again."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass, field

import pytest

from tests.support.fake_loop import fake_time
from trovemq_broker.daemon import own_address as module
from trovemq_broker.daemon.own_address import LOG_INTERVAL_S, RETRY_MAX_S, own_address
from trovemq_daemon.addresses import Address
from trovemq_daemon.errors import SettingsError
from trovemq_daemon.lifecycle import Stop

pytestmark = fake_time


NAMED = Address("broker-0.broker", 8081)
FOUND = Address("10.0.0.7", 8081)


@dataclass
class Names:
    """Looks names up: the first `failures` times without success."""

    failures: int
    asked: int = 0
    reported: list[str] = field(default_factory=list)
    logged: int = 0

    def resolve(self, address: Address) -> Address:
        assert address == NAMED
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()  # off the event loop: a look-up may take long
        self.asked += 1
        if self.asked <= self.failures:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return FOUND

    def warning(self, event: str, **_: object) -> None:
        assert event == "broker.name_unknown"
        self.logged += 1


async def test_a_name_that_is_known_later_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names(failures=30)
    monkeypatch.setattr(module, "get_logger", lambda: names)
    assert await own_address(NAMED, Stop(), names.reported.append, names.resolve) == FOUND
    waited_s = asyncio.get_running_loop().time()
    assert 29 * RETRY_MAX_S - 20 < waited_s <= 30 * RETRY_MAX_S
    assert names.logged == waited_s // LOG_INTERVAL_S + 1, "at once and each minute"

    assert names.asked == 31
    (reason,) = set(names.reported)
    assert reason.startswith("waiting for its own name: 'broker-0.broker' is unknown here (")


async def test_a_broker_that_waits_for_its_name_stops_when_it_is_asked_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = Names(failures=1_000_000)
    monkeypatch.setattr(module, "get_logger", lambda: names)
    stop = Stop()
    asyncio.get_running_loop().call_later(7, stop.request, "SIGTERM")
    assert await own_address(NAMED, stop, names.reported.append, names.resolve) is None
    assert asyncio.get_running_loop().time() == pytest.approx(7)


async def test_what_cannot_be_a_name_ends_the_start() -> None:
    def resolve(_: Address) -> Address:
        raise SettingsError("not a host name")

    with pytest.raises(SettingsError):
        await own_address(NAMED, Stop(), print, resolve)
