"""A former leader whose successor is not known: when it leads again, and when it must not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from trovemq_broker.daemon.replica.follower_role import OTHER_LEADS_S, FollowerRole
from trovemq_broker.daemon.replica.node_calls import NodeCalls
from trovemq_broker.daemon.replica.open_node import OpenNode
from trovemq_broker.daemon.replica.store_place import founded
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.replication.frames import Epoch
from trovemq_broker.replication.status import NodeStatus, PromotionAsked, Role
from trovemq_daemon.addresses import Address
from trovemq_proto import errors
from trovemq_proto.errors import TroveError
from trovemq_store.replica.membership import Member

A, B = (Member(node, f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}") for node, port in (("a", 1), ("b", 3)))
NO_LOG_IN = TroveError(errors.AUTHENTICATION_DISABLED, "the group has users")
WRONG_KEY = TroveError(errors.SEALING_KEY_MISMATCH, "the users are sealed by another key")


class Former:
    """Node a, which has led a group of two, and is alone in its newest set. Node b answers."""

    def __init__(self, node: OpenNode, role: FollowerRole) -> None:
        self.node = node
        self.role = role

    def after(self, seconds: float) -> None:
        """That time passes."""
        self.role._leads_at_s -= seconds

    async def step(self, promised: Epoch) -> None:
        """A round of questions: b has promised that epoch, and does not lead."""
        status = NodeStatus(
            group="orders",
            node="b",
            cluster=self.node.place.cluster,
            role=Role.FOLLOWER,
            promised=promised,
            listed=self.node.place.listed,
        )
        self.role._finding.statuses = {"b": status}
        await self.role._step()
        await self.role._stop_following()

    @property
    def leads(self) -> Epoch | None:
        """The epoch that it is to lead."""
        ended = self.role._ended
        lead = ended.result().lead if ended.done() else None
        return None if lead is None else lead.epoch


@pytest_asyncio.fixture
async def former(tmp_path: Path) -> AsyncIterator[Former]:
    settings = BrokerSettings(
        coordination="manual",
        name="orders",
        node_name="a",
        replication_listen="127.0.0.1:2",
        store=str(tmp_path),
        commit_log_file_size=1 << 20,
        flush_in_kernel_enable=False,
    )
    node = await OpenNode.open(settings, ("commit_log_file_size",), Address("127.0.0.1", 1))
    node.enter_group(founded(settings, (A, B), node.directory))
    assert node.place.leads
    calls = NodeCalls.of(settings.name, "a", settings.registration_channels(), None, None)
    yield Former(node, FollowerRole(node, settings, calls))
    await asyncio.to_thread(node.close)


@pytest.mark.asyncio
async def test_a_former_leader_deposed_the_node_that_was_being_promoted(former: Former) -> None:
    """It came back while the other one gathered promises, and gathered against it."""
    await former.step(promised=640)
    former.after(OTHER_LEADS_S / 2)
    await former.step(promised=640)
    assert (former.leads, former.node.state.promised) == (None, 0)
    former.after(OTHER_LEADS_S / 2)
    await former.step(promised=640)
    assert former.leads is not None, "the other one has not come to lead: it waits once for an epoch"
    assert former.leads > 640


@pytest.mark.asyncio
async def test_a_former_leader_waits_again_for_each_later_promise(former: Former) -> None:
    await former.step(promised=640)
    former.after(OTHER_LEADS_S)
    await former.step(promised=704)
    assert former.leads is None
    former.after(OTHER_LEADS_S)
    await former.step(promised=704)
    assert former.leads is not None


@pytest.mark.asyncio
async def test_a_former_leader_that_no_node_has_left_leads_at_once(former: Former) -> None:
    await former.step(promised=0)
    assert former.leads is not None


@pytest.mark.asyncio
async def test_a_node_without_authentication_served_a_group_with_users(former: Former) -> None:
    former.role.users_failure = lambda: NO_LOG_IN
    await former.step(promised=0)
    assert former.leads is None
    assert "switch authentication_enable on" in former.role.status().cannot_lead
    with pytest.raises(TroveError, match="the group has users") as refused:
        await former.role.promote(PromotionAsked("the other one is off", 1 << 30))
    assert refused.value.spec is errors.AUTHENTICATION_DISABLED
    former.role.users_failure = lambda: None
    await former.step(promised=0)
    assert former.leads is not None


@pytest.mark.asyncio
async def test_a_node_that_could_not_open_the_users_led_and_ended(former: Former) -> None:
    former.role.users_failure = lambda: WRONG_KEY
    await former.step(promised=0)
    assert former.leads is None
    status = former.role.status()
    assert "cannot open the users" in status.problem
    assert "sealed by another key" in status.cannot_lead
    with pytest.raises(TroveError, match="sealing_key_file of the other nodes") as refused:
        await former.role.promote(PromotionAsked("the other one is off", 1 << 30))
    assert refused.value.spec is errors.SEALING_KEY_MISMATCH
    assert former.node.state.promised == 0, "nothing is promised for it"
