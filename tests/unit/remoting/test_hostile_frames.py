"""Hostile clients on raw sockets: each ends alone, and another client is served meanwhile."""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.broker_here import BrokerHere, broker_here
from tests.support.remoting_broker import served
from tests.support.remoting_client import Answer, RemotingClient, remoting_client
from trovemq_proto.remoting.codes import RequestCode, ResponseCode
from trovemq_proto.remoting.frame import FRAME_SIZE_MAX, HEADER_SIZE_MAX, encode_frame
from trovemq_proto.remoting.headers import BINARY, FIELDS_MAX, IS_ONE_WAY, JSON, Header

ORDERS = "orders"


def raw(total: int, header: int, data: bytes = b"", form: int = JSON) -> bytes:
    return struct.pack(">II", total, form << 24 | header) + data


def many_fields(form: int) -> bytes:
    fields = {f"k{number}": "" for number in range(FIELDS_MAX + 1)}
    return encode_frame(Header(10, fields=fields), b"", BINARY if form == BINARY else JSON)


@pytest.mark.parametrize(
    "data",
    [
        raw(FRAME_SIZE_MAX, 4),
        raw(100, 200),
        raw(HEADER_SIZE_MAX + 5, HEADER_SIZE_MAX + 1),
        raw(12, 8, b"{}", form=7),
        raw(25, 21, bytes(13) + struct.pack(">ii", 0, 1 << 30), form=BINARY),
        raw(25, 21, bytes(13) + struct.pack(">ii", -1, 0), form=BINARY),
        many_fields(JSON),
        many_fields(BINARY),
    ],
    ids=["total", "header", "size", "form", "block", "negative", "fields", "binary fields"],
)
def test_a_length_that_lies_ends_its_connection_alone(tmp_path: Path, data: bytes) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        await broker.create_topic(ORDERS, 1)
        async with remoting_client(broker.address) as hostile:
            hostile.writer.write(data)
            await hostile.closed()
        assert (await client.send(ORDERS, b"one")).code == ResponseCode.SUCCESS

    served(tmp_path, run)


def test_a_million_properties_are_refused_and_not_stored(tmp_path: Path) -> None:
    """Of a text that a header can have, and of a longer one."""

    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        await broker.create_topic(ORDERS, 1)
        refused = await client.send(ORDERS, b"one", "k\x01v\x02" * 10_000)
        assert refused.code == ResponseCode.MESSAGE_ILLEGAL
        async with remoting_client(broker.address, BINARY) as hostile:
            hostile.begin_send(ORDERS, b"one", "k\x01v\x02" * 1_000_000).add_done_callback(_quietly)
            with suppress(ConnectionError):
                await hostile.closed()
        assert (await client.send(ORDERS, b"two")).fields["queueOffset"] == "0"

    served(tmp_path, run)


def _quietly(waiting: asyncio.Future[Answer]) -> None:
    if not waiting.cancelled():
        waiting.exception()


def test_a_flood_of_one_way_requests_has_no_effect_on_others(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        await broker.create_topic(ORDERS, 1)
        async with remoting_client(broker.address) as hostile:
            unknown = encode_frame(Header(9_999, flag=IS_ONE_WAY), bytes(100))
            for _ in range(20):
                hostile.writer.write(unknown * 1_000)
                assert (await client.send(ORDERS, b"one")).code == ResponseCode.SUCCESS
            asked = await hostile.ask(RequestCode.GET_MAX_OFFSET, {"topic": ORDERS, "queueId": 0})
            assert asked.fields["offset"] == "20"
            assert hostile.requests.empty(), "nothing answers a one-way request"

    served(tmp_path, run)


def test_pulls_that_are_not_read_wait_in_the_broker_as_requests_alone(tmp_path: Path) -> None:
    """400 pulls of 256 KiB each: their answers would be 100 MiB."""

    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        await broker.create_topic(ORDERS, 1)
        for _ in range(16):
            assert (await client.send(ORDERS, bytes(16_000))).code == ResponseCode.SUCCESS
        host, _, port = broker.address.rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port), limit=1 << 10)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        fields = {
            "consumerGroup": "readers",
            "topic": ORDERS,
            "queueId": "0",
            "queueOffset": "0",
            "maxMsgNums": "32",
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        for number in range(400):
            writer.write(encode_frame(Header(RequestCode.PULL_MESSAGE, number, fields=fields), b""))
        assert (await client.send(ORDERS, b"one")).code == ResponseCode.SUCCESS
        assert broker.app._grpc.replies.budget.used < 16 << 20
        writer.transport.abort()
        assert (await client.send(ORDERS, b"two")).code == ResponseCode.SUCCESS
        del reader

    served(tmp_path, run)


def test_the_log_did_not_say_that_remoting_is_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with broker_here(tmp_path) as broker, remoting_client(broker.address) as client:
            client.writer.write(encode_frame(Header(RequestCode.HEART_BEAT), b""))
            await client.closed()

    asyncio.run(main())
    assert "remoting_enable = true" in caplog.text
