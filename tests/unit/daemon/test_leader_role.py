"""The end of a leader's role, beside its election."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from trovemq_broker.daemon.replica import node as nodes
from trovemq_broker.daemon.replica.gathering import Leadership
from trovemq_broker.daemon.replica.leader_role import LeaderRole
from trovemq_broker.daemon.replica.node import NodeApp
from trovemq_broker.daemon.replica.open_node import OpenNode
from trovemq_broker.daemon.replica.role import Ended
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_broker.replication.status import Promoted
from trovemq_daemon.lifecycle import Stop
from trovemq_proto.errors import TroveError
from trovemq_store.replica.membership import Members

pytestmark = pytest.mark.asyncio

SETTINGS = BrokerSettings(coordination="etcd", name="g", node_name="a", replication_listen="127.0.0.1:2")
FIRST = Leadership(65, Promoted(65, (), (), 0), Members(version=0))
LATER = Leadership(129, Promoted(129, (), (), 0), Members(version=0))


async def test_a_leader_that_is_deposed_while_it_opens_promises_later() -> None:
    """The process ended with an AssertionError: it had no streams yet."""
    unused: Any = None
    role = LeaderRole(unused, SETTINGS, unused, FIRST)
    with pytest.raises(TroveError, match="SERVICE_NOT_AVAILABLE"):
        await role.promise_own(128)
    role.step_down("epoch 66 is promised by another node")
    with pytest.raises(TroveError, match="SERVICE_NOT_AVAILABLE"):
        await role.promise_own(128)


async def test_a_node_that_is_chosen_again_while_its_role_closes_leads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It followed, kept its lease, and the group had no leader."""
    store: Any = SimpleNamespace(close=lambda **_fields: None)

    async def opened(*_arguments: object) -> Any:
        return store

    class Closing:
        """Is to lead again while it closes."""

        def __init__(self, *_arguments: object) -> None:
            self.stop = Stop()
            self.ended = Ended()

        def check_failure(self) -> None:
            pass

        async def close(self) -> None:
            await asyncio.sleep(0)
            self.ended = Ended(LATER)

    async def ends_at_once(*_arguments: object) -> bool:
        return False

    monkeypatch.setattr(OpenNode, "open", opened)
    monkeypatch.setattr(nodes, "LeaderRole", Closing)
    app = NodeApp(SETTINGS)
    app._own = SETTINGS.listen_address
    app._calls = store
    app._sealing_key_id = ""
    monkeypatch.setattr(app, "_open_leader", ends_at_once)
    assert (await app._lead(Stop(), FIRST)).lead == LATER
