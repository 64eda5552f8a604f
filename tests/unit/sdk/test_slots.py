"""Queues and where they are: looked up once, and again whenever the routes change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import fake_loop
from tests.support.fake_loop import fake_time
from trovemq import ClientOptions, TroveError
from trovemq._net.connections import LEAVING_SECONDS, ConnectionPool
from trovemq._net.routes import RouteTable, Slot
from trovemq._produce.slots import SlotChooser
from trovemq.models.cluster import BrokerInfo, BrokerRoute, ClusterState, ServerInfo, TopicRoute
from trovemq_proto import errors

NAMES = ["a", "b", "c"]
SERVER = "192.0.2.1:9876"


def route_of(name: str, queues: int, draining: bool, ipv6: bool) -> BrokerRoute:
    address = f"192.0.2.1:{1000 + NAMES.index(name)}"
    info = BrokerInfo("c", name, address, store_host_ipv6=ipv6, draining=draining)
    return BrokerRoute(info, (TopicRoute("orders", queues),) if queues else ())


ROUTES = st.lists(
    st.builds(route_of, st.sampled_from(NAMES), st.integers(0, 3), st.booleans(), st.booleans()),
    max_size=3,
    unique_by=lambda one: one.broker.name,
).map(lambda routes: ClusterState(tuple(routes)))
SLOTS = [Slot(name, queue_id) for name in ("", *NAMES) for queue_id in range(3)]


def pool_without_credentials() -> ConnectionPool:
    """A pool without connections: its routes come from the test."""
    pool = ConnectionPool([SERVER], ClientOptions())
    apply(pool, ClusterState(()), ServerInfo("nameserver", "1", "ns"))
    return pool


def apply(pool: ConnectionPool, state: ClusterState, server: ServerInfo | None = None) -> None:
    pool._apply(SERVER, state, server)


def answer(ask: Callable[[], object]) -> object:
    try:
        return ask()
    except TroveError as error:
        return error.spec


def found(chooser: SlotChooser) -> list[object]:
    """All that it says of single queues."""

    def route(slot: Slot) -> object:
        route = chooser.route(slot)
        return route.version, route.slot, route.broker, route.stream, route.form

    queues = [answer(partial(chooser.of_queue, queue_id, None)) for queue_id in range(4)]
    return queues + [answer(partial(route, slot)) for slot in SLOTS]


@given(st.lists(ROUTES | st.sampled_from(NAMES) | st.integers(0, 40), max_size=8))
def test_a_chooser_knows_what_a_new_one_finds(steps: list[ClusterState | str | int]) -> None:
    """Routes change, brokers cannot be reached (a name), time passes (a number)."""

    async def scene() -> None:
        pool = pool_without_credentials()
        chooser = SlotChooser(pool, "orders")
        for step in steps:
            if isinstance(step, ClusterState):
                apply(pool, step)
            elif isinstance(step, str):
                pool._note(f"192.0.2.1:{1000 + NAMES.index(step)}", False)
            else:
                await asyncio.sleep(step)
            new = SlotChooser(pool, "orders")
            new._turn = chooser._turn
            assert [chooser.next() for _ in range(9)] == [new.next() for _ in range(9)]
            assert found(chooser) == found(new)
            for slot in SLOTS:
                known = chooser.find_route(slot)
                assert answer(partial(chooser.route, slot)) is known or known is None
        await pool.close()
        with pytest.raises(TroveError):
            chooser.route(SLOTS[1])

    fake_loop.run(scene())


@fake_time
async def test_a_broker_that_comes_back_gets_another_stream() -> None:
    pool = pool_without_credentials()
    chooser = SlotChooser(pool, "orders")
    there = ClusterState((route_of("a", 2, False, False),))
    apply(pool, there)
    first = chooser.route(Slot("a", 1))
    assert chooser.route(Slot("a", 1)) is first
    apply(pool, ClusterState(()))
    assert chooser.find_route(Slot("a", 1)) is None
    await asyncio.sleep(LEAVING_SECONDS + 1)
    apply(pool, there)
    second = chooser.route(Slot("a", 1))
    assert second.stream is not first.stream
    assert first.version != second.version
    await pool.close()
    assert answer(lambda: chooser.route(Slot("a", 1))) is errors.CLIENT_CLOSED


def test_a_waiting_subscription_listened_to_the_routes_once_more_each_try() -> None:
    """And its listeners stayed when it was closed."""
    routes = RouteTable()
    heard: list[int] = []

    def listener() -> None:
        heard.append(routes.version)

    for _ in range(3):
        routes.listen(listener)
    routes.apply(ClusterState(()))
    assert len(heard) == 1
    routes.unlisten(listener)
    routes.apply(ClusterState(()))
    assert len(heard) == 1


@pytest.mark.parametrize(
    ("types", "warned"),
    [
        (("NORMAL",), True),
        (("NORMAL", "NORMAL"), True),
        (("FIFO",), False),
        (("MIXED",), False),
        (("NORMAL", "FIFO"), False),
        ((), False),
    ],
)
@fake_time
async def test_a_message_group_without_an_order_is_warned_of_once(
    types: tuple[str, ...], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    pool = pool_without_credentials()
    brokers = [BrokerInfo("c", name, f"192.0.2.1:{1000 + i}") for i, name in enumerate(NAMES)]
    routes = [
        BrokerRoute(info, (TopicRoute("orders", 2, kind),))
        for info, kind in zip(brokers, types, strict=False)
    ]
    apply(pool, ClusterState(tuple(routes)))
    chooser = SlotChooser(pool, "orders")
    for _ in range(2):
        chooser.note_message_group()
    said = [record.getMessage() for record in caplog.records if "--type FIFO" in record.getMessage()]
    assert len(said) == warned
    await pool.close()
