"""Where a group begins: every cluster of three brokers, against a plain rule."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import combinations_with_replacement, product
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from trovemq import TroveError, errors
from trovemq._consume.first_contact import ASKED_MAX, FirstContact
from trovemq.models.group import GroupReset
from trovemq.starts import Start

pytestmark = pytest.mark.asyncio

Known = Literal["none", "some", "silent", "absent"]


@dataclass
class Cluster:
    """Each broker has two queues of the topic; `some`: the group has an offset of the first one."""

    brokers: dict[str, Known]
    lost: bool = False
    asked: int = 0
    meanwhile: dict[str, Known] = field(default_factory=dict)
    """Written by another member after the first question."""
    set_to: dict[str, str] = field(default_factory=dict)

    def contact(self, start: Start) -> FirstContact:
        async def lost_brokers_of(_topic: str) -> list[Any]:
            return [SimpleNamespace(name="gone")] if self.lost else []

        routes = SimpleNamespace(
            brokers_of=lambda _topic: [SimpleNamespace(name=name) for name in self.brokers],
            lost_brokers_of=lambda _topic: [],
        )
        pool: Any = SimpleNamespace(routes=routes, lost_brokers_of=lost_brokers_of)
        return FirstContact(pool, self.reset, "g", "orders", start)

    async def reset(
        self, group: str, topic: str, *, broker: str, preview: bool = False, **how: Any
    ) -> list[GroupReset]:
        known = self.brokers[broker]
        if known == "silent":
            raise TroveError(errors.BROKER_UNREACHABLE, "no answer")
        if known == "absent":
            raise TroveError(errors.TOPIC_NOT_FOUND, "no such topic")
        if preview:
            self.asked += 1
            if self.asked == len(self.brokers):
                self.brokers.update(self.meanwhile)
            before = 5 if known == "some" else None
            return [GroupReset(broker, 0, before, 0, 0), GroupReset(broker, 1, None, 0, 0)]
        assert how.pop("only_new")
        (target,) = how
        self.set_to[broker] = "to_earliest" if known == "some" else target  # as the broker does
        return [GroupReset(broker, 1, None, 0, 0)]


@pytest.mark.parametrize("start", ["latest", "earliest"])
async def test_a_start_counts_only_where_the_group_certainly_never_read(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trovemq._consume.first_contact.ASKED_PAUSE_S", 0)
    kinds: tuple[Known, ...] = ("none", "some", "silent", "absent")
    for count, lost in product((1, 2, 3), (False, True)):
        for states in combinations_with_replacement(kinds, count):
            cluster = Cluster(dict(zip("abc", states, strict=False)), lost)
            having = {name for name, state in cluster.brokers.items() if state in ("none", "some")}
            if not having:
                with pytest.raises(TroveError):
                    await cluster.contact(start).begin()
                continue
            await cluster.contact(start).begin()
            certain = "some" not in states and "silent" not in states and not lost
            expected = "to_latest" if start == "latest" and certain else "to_earliest"
            assert cluster.set_to == dict.fromkeys(having, expected), (states, lost)


async def test_members_that_begin_together_do_not_read_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trovemq._consume.first_contact.ASKED_PAUSE_S", 0)
    cluster = Cluster({"a": "some", "b": "none"}, meanwhile={"b": "some"})
    await cluster.contact("latest").begin()
    assert cluster.asked == 4  # twice each: the second time, b has offsets, too
    cluster = Cluster({"a": "some", "b": "none"})
    await cluster.contact("latest").begin()
    assert (cluster.asked, cluster.set_to["b"]) == (2 * ASKED_MAX, "to_earliest")


async def test_a_broker_that_refuses_the_question_refuses_the_subscription() -> None:
    cluster = Cluster({"a": "none", "b": "none"})

    async def refused(*_: object, broker: str, **how: Any) -> list[GroupReset]:
        if broker == "b":
            raise TroveError(errors.ACCESS_DENIED, "no")
        return await cluster.reset("g", "orders", broker=broker, **how)

    contact = cluster.contact("latest")
    contact._reset = refused
    with pytest.raises(TroveError, match="ACCESS_DENIED"):
        await asyncio.wait_for(contact.begin(), 30)
    assert cluster.set_to == {}
