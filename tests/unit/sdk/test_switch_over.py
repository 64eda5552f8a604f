"""A planned switch-over: a copy that lagged before, a hold that was given up, a group without a leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.fake_loop import fake_time
from tests.unit.sdk.test_replicas import LEADER, answer
from trovemq._admin import replicas
from trovemq._admin.replicas import IN_SYNC_S, SERVES_S, SWITCHES_S, Replicas, _Answers
from trovemq._wire.replicas import NodeAnswer
from trovemq_proto import errors
from trovemq_proto.errors import TroveError

NEXT = (answer("a", epoch=137), answer("b", role="leader", epoch=137, in_sync=("a", "b")))


class Group(Replicas):
    """Leader a. `of(asked)`: the answers of its nodes, by the times at which a was asked to hand over."""

    def __init__(self, of: Callable[[list[float]], tuple[NodeAnswer, ...]]) -> None:
        self._of = of
        self._pool: Any = self
        self.asked: list[float] = []
        self.refuses = ""

    def server(self, address: str) -> Group:
        assert address == "a:1"
        return self

    async def _found(self) -> _Answers:
        nodes = self._of(self.asked)
        return _Answers({f"{one.node}:1": one for one in nodes}, {})

    async def switch_over(self, group: str = "g", *, to: str | None = None) -> Any:
        return await super().switch_over(group, to=to)


class Calls:
    def __init__(self, group: Group) -> None:
        self._group = group

    async def switch_over(self, _target: str) -> None:
        self._group.asked.append(asyncio.get_running_loop().time())
        if self._group.refuses:
            raise TroveError(errors.REPLICA_STATE_ILLEGAL, self._group.refuses)


@pytest.fixture(autouse=True)
def _by_fake_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "ReplicaCalls", Calls)


@fake_time
async def test_a_leader_that_gave_its_hold_up_was_not_asked_again() -> None:
    group = Group(lambda asked: NEXT if len(asked) > 1 else (LEADER, answer("b")))
    state = await group.switch_over(to="b")
    assert (state.leader, state.epoch) == ("b", 137)
    assert group.asked[1] - group.asked[0] == pytest.approx(SWITCHES_S, abs=0.2)


@fake_time
async def test_a_switch_over_that_fails_names_the_leader() -> None:
    group = Group(lambda _asked: (LEADER, answer("b")))
    with pytest.raises(TroveError, match=r"node a of group g leads on: no other copy .* repeat") as refused:
        await group.switch_over()
    assert refused.value.spec is errors.REPLICA_STATE_ILLEGAL
    assert asyncio.get_running_loop().time() == pytest.approx(SERVES_S, abs=0.2)
    assert 2 < len(group.asked) < SERVES_S / SWITCHES_S


@fake_time
async def test_a_group_without_a_leader_is_not_asked_again() -> None:
    group = Group(lambda asked: (answer("a"), answer("b")) if asked else (LEADER, answer("b")))
    with pytest.raises(TroveError, match="no other node of group g leads yet"):
        await group.switch_over()
    assert len(group.asked) == 1


@fake_time
async def test_a_copy_that_lagged_a_moment_ago_was_refused() -> None:
    alone = answer("a", role="leader", in_sync=("a", "c"))

    def of(asked: list[float]) -> tuple[NodeAnswer, ...]:
        lags = asyncio.get_running_loop().time() < IN_SYNC_S / 2
        return NEXT if asked else (alone if lags else LEADER, answer("b"))

    group = Group(of)
    assert (await group.switch_over(to="b")).leader == "b"
    assert group.asked == [pytest.approx(IN_SYNC_S / 2, abs=0.2)]


@pytest.mark.parametrize(("others", "waits_s"), [((answer("b"),), IN_SYNC_S), ((), 0.0)])
@fake_time
async def test_a_copy_that_stays_out_of_the_set_is_refused(
    others: tuple[NodeAnswer, ...], waits_s: float
) -> None:
    """At once where it does not follow."""
    group = Group(lambda _asked: (answer("a", role="leader", in_sync=("a", "c")), *others))
    group.refuses = "node b is not another copy of the in-sync set"
    with pytest.raises(TroveError, match="not another copy"):
        await group.switch_over(to="b")
    assert group.asked == [pytest.approx(waits_s, abs=0.2)]


@fake_time
async def test_a_leader_that_has_just_got_its_lease_again_was_not_found() -> None:
    def of(asked: list[float]) -> tuple[NodeAnswer, ...]:
        is_back = asyncio.get_running_loop().time() > SERVES_S / 2
        return NEXT if asked else (LEADER if is_back else answer("a"), answer("b"))

    group = Group(of)
    assert (await group.switch_over(to="b")).leader == "b"
    assert group.asked == [pytest.approx(SERVES_S / 2, abs=0.2)]


@pytest.mark.parametrize(("nodes", "waits_s"), [((answer("a"), answer("b")), SERVES_S), ((), 0.0)])
@fake_time
async def test_a_group_that_gets_no_leader_is_refused(nodes: tuple[NodeAnswer, ...], waits_s: float) -> None:
    """At once where none of its nodes answers."""
    group = Group(lambda _asked: nodes)
    with pytest.raises(TroveError, match="no node of group g leads") as refused:
        await group.switch_over()
    assert refused.value.spec is errors.BROKER_NOT_FOUND
    assert asyncio.get_running_loop().time() == pytest.approx(waits_s, abs=0.2)
    assert not group.asked
