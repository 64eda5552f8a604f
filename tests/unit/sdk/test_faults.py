"""Faults on purpose: drawn by seed and place, and made between the broker and the program."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.support.event_loop import EARLY_S
from tests.unit.sdk.conftest import Connect
from tests.unit.sdk.fake_server import FakeServer
from trovemq import Client, Faults, Handlers, ReceivedMessage, TroveError, errors
from trovemq._net.servers import parse_server

BODIES = [b"%d" % number for number in range(12)]


async def received(
    connect: Connect, broker: FakeServer, faults: Faults, *, message_group: str | None = None
) -> list[tuple[bytes, int]]:
    """Bodies and attempts in the order of the calls, until the broker has no message any more."""
    client, fake, calls = await connect(broker, faults=faults), broker.consuming, []
    handlers = Handlers()

    @handlers.handle("orders", "g", concurrency=1)
    async def note(message: ReceivedMessage) -> None:
        calls.append((message.body, message.attempt))

    await fake.offer(*BODIES, message_group=message_group)
    async with client.run(handlers, signals=()):
        await fake.until(lambda: not fake.held)
    assert sorted(fake.gone) == sorted(BODIES)
    fake.gone.clear()
    return calls


def test_draws_are_the_same_for_a_seed_and_even() -> None:
    faults = Faults(seed=3, redeliveries=0.25)
    struck = [faults.strikes("redeliveries", "topic", 0, offset) for offset in range(2_000)]
    assert struck == [faults.strikes("redeliveries", "topic", 0, offset) for offset in range(2_000)]
    assert 400 < sum(struck) < 600
    other = Faults(seed=4, redeliveries=0.25)
    assert struck != [other.strikes("redeliveries", "topic", 0, offset) for offset in range(2_000)]
    assert not any(Faults(seed=3).strikes("redeliveries", "topic", 0, offset) for offset in range(200))


def test_a_url_carries_them_and_says_what_is_wrong() -> None:
    faults = Faults(seed=7, duplicates=0.5, delay_ms=3)
    assert Faults.parse(faults.text()) == faults
    assert parse_server(f"trovemq://b?faults={faults.text()}").options == {"faults": faults}
    for text in ("duplicates:2", "duplicates:-1", "duplicates:nan", "seed:x", "typo:1", "seed"):
        with pytest.raises(TroveError, match="REQUEST_ILLEGAL"):
            Faults.parse(text)


@pytest.mark.asyncio
async def test_a_lost_acknowledgement_brings_the_message_again(broker: FakeServer, connect: Connect) -> None:
    faults = Faults(seed=1, redeliveries=0.4)
    calls = await received(connect, broker, faults)
    again = Counter(body for body, _ in calls)
    struck = {
        body for offset, body in enumerate(BODIES) if faults.strikes("redeliveries", "orders", 0, offset, 1)
    }
    assert struck == {body for body, count in again.items() if count > 1}
    assert 0 < len(struck) < len(BODIES)


@pytest.mark.asyncio
async def test_no_fault_makes_a_dead_letter(broker: FakeServer, connect: Connect) -> None:
    faults = Faults(redeliveries=1.0, disconnects=1.0, delays=0.5, reorderings=1.0, delay_ms=1)
    calls = await received(connect, broker, faults)
    assert broker.consuming.dead == []
    assert max(attempt for _, attempt in calls) == 3  # the fake's group has three


@pytest.mark.asyncio
async def test_late_messages_are_overtaken(broker: FakeServer, connect: Connect) -> None:
    """So late that the others are there first on a busy machine, too."""
    calls = await received(connect, broker, Faults(seed=2, delays=0.5, delay_ms=200))
    bodies = [body for body, _ in calls]
    assert sorted(bodies) == sorted(BODIES)
    assert bodies != BODIES


@pytest.mark.asyncio
async def test_reordered_messages_come_after_the_next_one(broker: FakeServer, connect: Connect) -> None:
    faults = Faults(seed=4, reorderings=0.3, delay_ms=60_000)  # the last message of the queue is none of them
    calls = await received(connect, broker, faults)
    expected: list[bytes] = []
    waiting: list[bytes] = []
    for offset, body in enumerate(BODIES):
        if faults.strikes("reorderings", "orders", 0, offset, 1):
            waiting.append(body)
        else:
            expected += [body, *reversed(waiting)]
            waiting.clear()
    assert not waiting
    assert expected != BODIES
    assert [body for body, _ in calls] == expected


@pytest.mark.asyncio
async def test_a_message_that_nothing_overtakes_is_late(broker: FakeServer, connect: Connect) -> None:
    calls = await received(connect, broker, Faults(reorderings=1.0, delay_ms=1))
    assert sorted(body for body, _ in calls) == sorted(BODIES)


@pytest.mark.asyncio
@pytest.mark.parametrize("seed", range(6))
async def test_late_messages_overtook_one_of_their_group_that_was_returned(
    broker: FakeServer, connect: Connect, seed: int
) -> None:
    broker.consuming.settings.orderly = True
    faults = Faults(seed=seed, delays=0.5, delay_ms=5, reorderings=0.3, redeliveries=0.3, disconnects=0.2)
    calls = await received(connect, broker, faults, message_group="m")
    firsts = list(dict.fromkeys(body for body, _ in calls))
    assert firsts == BODIES
    assert len(calls) > len(BODIES)


@pytest.mark.asyncio
async def test_what_a_broken_connection_lost_comes_again(broker: FakeServer, connect: Connect) -> None:
    faults = Faults(seed=5, disconnects=0.5)
    calls = await received(connect, broker, faults)
    struck = {
        body for offset, body in enumerate(BODIES) if faults.strikes("disconnects", "orders", 0, offset, 1)
    }
    assert {body for body, attempt in calls if attempt > 1} == struck
    assert sorted(body for body, _ in calls) == sorted(BODIES)


@pytest.mark.asyncio
async def test_sends_are_doubled_late_and_in_doubt(broker: FakeServer, connect: Connect) -> None:
    client: Client = await connect(broker, faults=Faults(duplicates=1.0, slow_disk=1.0, slow_disk_ms=20))
    begin = asyncio.get_running_loop().time()
    await client.send("orders", b"twice", message_id="one")
    assert asyncio.get_running_loop().time() - begin >= 0.02 - EARLY_S
    assert [message.body for message in broker.messages()] == [b"twice", b"twice"]
    doubtful = await connect(broker, faults=Faults(lost_answers=1.0))
    with pytest.raises(TroveError) as lost:
        await doubtful.send("orders", b"stored")
    assert (lost.value.spec, lost.value.fields["in_doubt"]) == (errors.BROKER_UNREACHABLE, "true")
    assert broker.messages()[-1].body == b"stored"
