"""Messages that have no acknowledgement when their client or producer ends."""

from __future__ import annotations

import asyncio
from weakref import WeakSet

import pytest

import trovemq
from tests.unit.sdk.conftest import Connect
from tests.unit.sdk.fake_server import FakeServer
from trovemq import TroveError
from trovemq._produce import unacknowledged
from trovemq_proto.v1 import message_pb2

pytestmark = pytest.mark.asyncio


async def silent(_frame: message_pb2.AppendFrame) -> None:
    """Acknowledges nothing."""


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == unacknowledged.__name__]


async def test_a_closed_client_dropped_messages_without_a_line(
    broker: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    broker.on_frame = silent
    async with trovemq.connect(broker.address) as client:
        written, lingering = client.producer("orders"), client.producer("orders", linger_ms=600_000)
        sent = [written.send_nowait(b"1") for _ in range(3)]
        while not broker.frames:
            await asyncio.sleep(0.001)
        sent.append(lingering.send_nowait(b"2"))
        lingering.send_nowait(b"taken back").cancel()
        lingering.send_oneway(b"3")
        assert (written.in_flight_count, lingering.in_flight_count) == (3, 2)
    for line, count in zip(sorted(lines(caplog)), (2, 3), strict=True):
        assert line.startswith(f"{count} messages of topic orders had no acknowledgement when the client was")
    for one in await asyncio.gather(*sent, return_exceptions=True):
        assert isinstance(one, TroveError)
        assert one.symbol == "CLIENT_CLOSED"


async def test_an_acknowledged_message_is_not_reported(
    broker: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with trovemq.connect(broker.address) as client:
        producer = client.producer("orders")
        await producer.send(b"1")
        await producer.send_batch([b"2", b"3"])
        producer.send_nowait(b"4").cancel()
        assert producer.in_flight_count == 0
    assert lines(caplog) == []


async def test_the_flush_at_the_end_takes_a_limited_time(
    broker: FakeServer, connect: Connect, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unacknowledged, "FLUSH_SECONDS_MAX", 0.05)
    broker.on_frame = silent
    client = await connect(broker)
    sent = client.producer("orders").send_nowait(b"1")
    waiting = asyncio.create_task(client.send("orders", b"2"))
    while len(broker.frames) < 2:
        await asyncio.sleep(0.001)
    await client._close_flushed(in_time=True)
    for one in await asyncio.gather(sent, waiting, return_exceptions=True):
        assert isinstance(one, TroveError)
    assert len(lines(caplog)) == 2


class _Waiting(unacknowledged.Unacknowledged):
    topic = "orders"
    in_flight_count = 1


async def test_a_forked_process_does_not_report_its_parents_messages(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unacknowledged, "_producers", WeakSet())
    producer = _Waiting()
    producer._watch()
    unacknowledged._forget_all()  # as in the child
    unacknowledged.report_all()
    del producer
    assert lines(caplog) == []
    producer = _Waiting()
    producer._watch()
    unacknowledged.report_all()
    del producer
    assert len(lines(caplog)) == 1


async def test_messages_of_an_ended_event_loop_were_reported_at_each_close(
    broker: FakeServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And at the end of the process."""
    broker.on_frame = silent
    async with trovemq.connect(broker.address) as client:
        producer = client.producer("orders")
        sent = producer.send_nowait(b"1")
        monkeypatch.setattr(unacknowledged, "_producers", WeakSet([producer]))
        for _ in range(2):
            unacknowledged.abandon_all([producer])
        unacknowledged.report_all()
        assert len(lines(caplog)) == 1
    await asyncio.gather(sent, return_exceptions=True)
