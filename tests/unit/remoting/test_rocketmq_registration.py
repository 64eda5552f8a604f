"""Registration with RocketMQ's own nameservers: the requests that one gets, from a real broker."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_here import broker_here
from trovemq_broker.daemon.settings import BrokerSettings
from trovemq_proto.remoting.codes import RequestCode
from trovemq_proto.remoting.frame import FrameSplitter, encode_frame
from trovemq_proto.remoting.headers import IS_RESPONSE, Header

WAIT_S = 30.0


class FakeNameserver:
    """Answers each request with success, or with `code`."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[tuple[Header, bytes]] = asyncio.Queue()
        self.code = 0
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        splitter = FrameSplitter()
        while data := await reader.read(1 << 16):
            for frame in splitter.feed(memoryview(data)):
                header, body = frame.header(), bytes(frame.body)
                writer.write(encode_frame(Header(self.code, header.opaque, IS_RESPONSE)))
                self.requests.put_nowait((header, body))
        writer.close()

    def close_connections(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def next(self) -> tuple[Header, bytes]:
        return await asyncio.wait_for(self.requests.get(), WAIT_S)

    async def registered(self, topic: str) -> dict[str, Any]:
        """The next registration that has the topic."""
        while True:
            header, body = await self.next()
            wrapper: dict[str, Any] = json.loads(body)["topicConfigSerializeWrapper"]
            if header.code == RequestCode.REGISTER_BROKER and topic in wrapper["topicConfigTable"]:
                return wrapper


@asynccontextmanager
async def fake_nameserver() -> AsyncIterator[tuple[FakeNameserver, str]]:
    fake = FakeNameserver()
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield fake, f"{host}:{port}"
    finally:
        server.close()
        fake.close_connections()


def test_a_broker_registers_and_leaves(tmp_path: Path) -> None:
    async def main() -> None:
        async with fake_nameserver() as (fake, address):
            settings: dict[str, Any] = {"remoting_enable": True, "rocketmq_nameserver": (address,)}
            async with broker_here(tmp_path, **settings) as broker:
                header, body = await fake.next()
                assert header.code == RequestCode.REGISTER_BROKER
                assert header.fields["brokerAddr"] == broker.address
                assert header.fields["brokerId"] == "0"
                assert int(header.fields["bodyCrc32"]) == zlib.crc32(body) & 0x7FFFFFFF
                wrapper = json.loads(body)["topicConfigSerializeWrapper"]
                assert len(wrapper["topicConfigTable"]) > 1
            while header.code != RequestCode.UNREGISTER_BROKER:
                header, _ = await fake.next()
            assert header.fields["brokerAddr"] == broker.address

    asyncio.run(main())


def test_a_new_topic_is_registered_with_a_higher_version(tmp_path: Path) -> None:
    async def main() -> None:
        async with fake_nameserver() as (fake, address):
            settings: dict[str, Any] = {"remoting_enable": True, "rocketmq_nameserver": (address,)}
            async with broker_here(tmp_path, **settings) as broker:
                _, body = await fake.next()
                before = json.loads(body)["topicConfigSerializeWrapper"]["dataVersion"]["counter"]
                await broker.create_topic("orders")
                wrapper = await fake.registered("orders")
                assert wrapper["dataVersion"]["counter"] > before
                shown = wrapper["topicConfigTable"]["orders"]
                assert (shown["topicName"], shown["perm"]) == ("orders", 6)

    asyncio.run(main())


def test_a_broker_registers_again_after_its_connection_was_lost(tmp_path: Path) -> None:
    async def main() -> None:
        async with fake_nameserver() as (fake, address):
            settings: dict[str, Any] = {"remoting_enable": True, "rocketmq_nameserver": (address,)}
            async with broker_here(tmp_path, **settings):
                await fake.next()
                fake.close_connections()
                header, _ = await fake.next()
                assert header.code == RequestCode.REGISTER_BROKER

    asyncio.run(main())


def test_settings_that_no_client_could_use_are_refused() -> None:
    alone = BrokerSettings(rocketmq_nameserver=("127.0.0.1:9876",))
    assert [text for text in alone.problems() if "remoting_enable" in text]
    owned = BrokerSettings(
        rocketmq_nameserver=("127.0.0.1:9876",), remoting_enable=True, config_owner="other"
    )
    assert [text for text in owned.problems() if "NAME@HOST:PORT" in text]


@pytest.mark.parametrize("owner", ["other@127.0.0.1:8081", "broker-0"])
def test_an_owner_with_an_address_or_of_this_broker_is_taken(owner: str) -> None:
    settings = BrokerSettings(
        name="broker-0",
        rocketmq_nameserver=("127.0.0.1:9876",),
        remoting_enable=True,
        config_owner=owner,
    )
    assert not list(settings.problems())
