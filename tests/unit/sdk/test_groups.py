"""Client.admin.groups: which brokers are called, whose answer counts, and refusals before any call."""

from __future__ import annotations

from typing import Any, cast

import pytest

from trovemq._admin.groups import Groups
from trovemq._net.relays import Relays
from trovemq._net.routes import RouteTable
from trovemq.models.cluster import BrokerInfo, BrokerRoute, ClusterState
from trovemq.models.group import DirectConsumption, GroupSettings
from trovemq_proto import errors
from trovemq_proto.errors import ErrorSpec, TroveError

BROKERS = ("broker-a", "broker-b", "broker-c")


class ConnectionPool:
    """Routes without connections."""

    def __init__(self) -> None:
        self.routes = RouteTable()
        infos = [BrokerInfo("c", name, f"127.0.0.1:{number}") for number, name in enumerate(BROKERS, 1)]
        self.routes.apply(ClusterState(tuple(BrokerRoute(info, ()) for info in infos)))
        self.relays = Relays(cast(Any, self))

    def unseen(self) -> int:
        """A nameserver leads to all brokers."""
        return 0

    async def explained(self, error: TroveError) -> TroveError:
        """No broker is lost."""
        return error


class Calls:
    """One broker's GroupService: its answers, or errors."""

    def __init__(self, name: str, answers: dict[str, Any], asked: list[str]) -> None:
        self.name = name
        self.answer = answers[name]
        self.asked = asked

    async def _answered(self, *_: object) -> Any:
        self.asked.append(self.name)
        if isinstance(self.answer, ErrorSpec):
            raise TroveError(self.answer, f"{self.name} says so")
        return self.answer

    consume_directly = stack_trace = delete = describe = lag = _answered


def groups_of(monkeypatch: pytest.MonkeyPatch, *answers: Any) -> tuple[Groups, list[str]]:
    """Each broker's answer; and who was asked."""
    groups = Groups(cast(Any, ConnectionPool()))
    asked: list[str] = []
    by_name = dict(zip(BROKERS, answers or (None,) * 3, strict=True))
    monkeypatch.setattr(groups, "_calls", lambda info: Calls(info.name, by_name, asked))
    return groups, asked


OK = DirectConsumption("OK", "", "broker-b")
OFFLINE, NOT_FOUND = errors.CONSUMER_NOT_ONLINE, errors.MESSAGE_NOT_FOUND


@pytest.mark.asyncio
async def test_a_command_continues_until_a_broker_has_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    groups, asked = groups_of(monkeypatch, OFFLINE, OK, OK)
    assert await groups.consume_directly("c", "g", "m") is OK
    assert asked == ["broker-a", "broker-b"], "the client consumes it once"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("answers", "spec", "asked_count"),
    [
        ((OFFLINE, OFFLINE, OFFLINE), OFFLINE, 3),
        ((OFFLINE, NOT_FOUND, OFFLINE), NOT_FOUND, 3),
        ((NOT_FOUND, errors.CONSUME_MSG_TIMEOUT, OK), errors.CONSUME_MSG_TIMEOUT, 2),
        ((errors.NOT_IMPLEMENTED, OK, OK), errors.NOT_IMPLEMENTED, 1),
    ],
)
async def test_of_failures_the_one_that_says_most_is_raised(
    monkeypatch: pytest.MonkeyPatch, answers: tuple[Any, ...], spec: ErrorSpec, asked_count: int
) -> None:
    groups, asked = groups_of(monkeypatch, *answers)
    with pytest.raises(TroveError) as caught:
        await groups.consume_directly("c", "g", "m")
    assert caught.value.spec is spec
    assert len(asked) == asked_count


@pytest.mark.asyncio
async def test_a_group_that_only_some_brokers_have_is_deleted_there(monkeypatch: pytest.MonkeyPatch) -> None:
    there = ("broker-b", ())
    groups, asked = groups_of(monkeypatch, errors.GROUP_NOT_FOUND, there, errors.GROUP_NOT_FOUND)
    assert await groups.delete("g") == ["broker-b"]
    assert len(asked) == 3
    groups, _ = groups_of(monkeypatch, *[errors.GROUP_NOT_FOUND] * 3)
    with pytest.raises(TroveError, match="GROUP_NOT_FOUND"):
        await groups.delete("g")
    groups, _ = groups_of(monkeypatch, there, errors.DISK_FULL, there)
    with pytest.raises(TroveError, match="DISK_FULL"):
        await groups.delete("g")


@pytest.mark.asyncio
async def test_what_no_broker_could_take_is_refused_before_any_call(monkeypatch: pytest.MonkeyPatch) -> None:
    groups, asked = groups_of(monkeypatch)
    calls = [
        groups.create("g", GroupSettings(retry_max=-1)),
        groups.create("g", GroupSettings(retry_max=1 << 31)),
        groups.alter("g", GroupSettings(backoff_ms=(1, -1))),
        groups.alter("g", GroupSettings(backoff_ms=(1,), exponential=True)),
        groups.reset("g", "t"),
        groups.reset("g", "t", to_earliest=True, offset=3),
        groups.reset("g", "t", to_min=True, to_latest=True),
        groups.resend_dead_letters("g", []),
        groups.resend_dead_letters("g", range(1_001)),
        groups.resend_dead_letters("g", [-1]),
        groups.consume_directly("c", "g", "m", timeout_ms=0),
        groups.stack_trace("c", "g", timeout_ms=60_001),
    ]
    for call in calls:
        with pytest.raises(TroveError, match="REQUEST_ILLEGAL"):
            await call
    assert asked == []


@pytest.mark.asyncio
async def test_dead_letters_of_several_brokers_need_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    groups, _ = groups_of(monkeypatch)
    with pytest.raises(TroveError, match="BROKER_AMBIGUOUS"):
        await groups.resend_dead_letters("g", [1])
    with pytest.raises(TroveError, match="BROKER_NOT_FOUND"):
        await groups.resend_dead_letters("g", [1], broker="nobody")
