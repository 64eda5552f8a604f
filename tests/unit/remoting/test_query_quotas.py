"""Look-ups by remoting count for the quotas of queries, as those of TroveMQ's services."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.memory_broker import TestBroker
from tests.unit.remoting.test_tool_rights import Caller, service_of
from trovemq_broker.query.key_query import KeyQuery
from trovemq_broker.security import changes
from trovemq_broker.security.creators import set_creator
from trovemq_broker.security.quotas import Quota
from trovemq_broker.security.sealing import SealingKey
from trovemq_broker.security.table import SecurityTable
from trovemq_broker.server.access.gate import Gate
from trovemq_broker.server.access.serving_gate import ServingGate
from trovemq_broker.server.remoting.gate import RemotingGate
from trovemq_broker.server.wire.tool_calls import query_by_key
from trovemq_daemon import turns
from trovemq_daemon.remoting.request import Request
from trovemq_daemon.turns import Turns
from trovemq_daemon.users import UserKind, new_user
from trovemq_proto.errors import TroveError
from trovemq_proto.positions import EpochMs
from trovemq_proto.remoting.codes import RequestCode, ResponseCode
from trovemq_proto.remoting.headers import JSON, Header
from trovemq_store.files.memory import MemoryFileSystem
from trovemq_store.topics.creators import Creator
from trovemq_store.topics.subscription_groups import SubscriptionGroup

Block = Callable[[RemotingGate, Request], AbstractAsyncContextManager[None]]
BLOCKS: dict[str, Block] = {
    "call": lambda gate, request: gate.admitted(request, query_by_key(KeyQuery("orders", "k"))),
    "query": lambda gate, request: gate.query(request),
}


def gate_with(quota: Quota) -> RemotingGate:
    """Of a broker whose clock stands."""
    table = SecurityTable.load(MemoryFileSystem(), SealingKey(bytes(32)), bytes)
    user = new_user("rocketmq", UserKind.NORMAL, b"12345678", salt=bytes(16), now_ms=0)
    state = changes.set_quota(changes.add_user(table.state, user), "User:rocketmq", quota)
    change = table.begin(state)
    change.run()
    table.finish(change)
    gate = Gate(authorization=False, cluster="c", clock_ms=lambda: EpochMs(0))
    gate.open(table, cast("Any", object()))
    set_creator(Creator("rocketmq"))
    return RemotingGate(gate, ServingGate())


def request() -> Request:
    return Request(cast("Any", Caller()), Header(RequestCode.QUERY_MESSAGE), JSON, b"", 0)


def steps() -> Iterator[None]:
    yield


@pytest.mark.parametrize("block", sorted(BLOCKS))
def test_lookups_took_the_loop_beyond_a_quota(block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reading of the clock of time slices is one second later."""
    seconds = count()
    monkeypatch.setattr(turns, "time", SimpleNamespace(perf_counter=lambda: float(next(seconds))))

    async def main() -> None:
        gate = gate_with(Quota(query_ms_per_s=100))
        async with BLOCKS[block](gate, request()):
            await Turns().run(cast("Any", steps()))
        with pytest.raises(TroveError, match="LIMIT_EXCEEDED"):
            async with BLOCKS[block](gate, request()):
                pytest.fail("it was made")

    asyncio.run(main())


@pytest.mark.parametrize("block", sorted(BLOCKS))
def test_lookups_that_were_made_did_not_count_as_open(block: str) -> None:
    async def main() -> None:
        gate = gate_with(Quota(calls_max=1))
        async with BLOCKS[block](gate, request()):
            with pytest.raises(TroveError, match="LIMIT_EXCEEDED"):
                async with BLOCKS[block](gate, request()):
                    pytest.fail("it was made")
        async with BLOCKS[block](gate, request()):
            pass

    asyncio.run(main())


@pytest.mark.parametrize(
    "code",
    [
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_CONSUME_STATS,
        RequestCode.QUERY_CONSUME_TIME_SPAN,
        RequestCode.GET_BROKER_CONSUME_STATS,
    ],
)
def test_a_listing_did_not_count_as_a_query(code: int) -> None:
    async def main() -> None:
        broker = TestBroker()
        broker.groups.create(SubscriptionGroup("readers"))
        service, admission = service_of(broker)
        caller = Caller()
        fields = {"consumerGroup": "readers", "group": "readers", "topic": "orders", "isOrder": "false"}
        await caller.ask(service, code, fields, b"")
        assert (caller.code, admission.queries) == (ResponseCode.SUCCESS, 1)

    asyncio.run(main())
