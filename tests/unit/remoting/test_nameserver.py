"""A nameserver that serves remoting: routes of the brokers that have registered."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.support.broker_here import broker_here
from tests.support.remoting_client import remoting_client
from trovemq_nameserver.app import NameserverApp
from trovemq_nameserver.settings import NameserverSettings
from trovemq_proto.remoting.codes import RequestCode, ResponseCode


def test_the_routes_of_a_registered_broker_are_answered(tmp_path: Path) -> None:
    async def main() -> None:
        nameserver = NameserverApp(NameserverSettings(listen="127.0.0.1:0", http="off", remoting_enable=True))
        address, _ = await nameserver.start()
        try:
            settings = {"remoting_enable": True, "nameserver": (str(address),)}
            async with broker_here(tmp_path, **settings) as broker, remoting_client(str(address)) as client:
                await broker.create_topic("orders", 4)
                while "orders" not in nameserver.registry.table.names:
                    await asyncio.sleep(0.01)
                asked = {"topic": "orders", "acceptStandardJsonOnly": True}
                route = (await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, asked)).json()
                assert route["brokerDatas"][0]["brokerAddrs"] == {"0": broker.address}
                assert route["queueDatas"][0]["perm"] == 6
                cluster = (await client.ask(RequestCode.GET_BROKER_CLUSTER_INFO)).json()
                assert list(cluster["clusterAddrTable"].values()) == [list(cluster["brokerAddrTable"])]
                topics = (await client.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).json()
                assert "orders" in topics["topicList"]
        finally:
            await nameserver.stop()

    asyncio.run(main())


def test_a_new_nameserver_does_not_say_that_a_topic_is_absent() -> None:
    async def main() -> None:
        nameserver = NameserverApp(NameserverSettings(listen="127.0.0.1:0", http="off", remoting_enable=True))
        address, _ = await nameserver.start()
        try:
            async with remoting_client(str(address)) as client:
                asked = {"topic": "orders"}
                early = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, asked)
                assert early.code == ResponseCode.SYSTEM_ERROR
                nameserver.registry.started -= 3_000
                later = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, asked)
                assert later.code == ResponseCode.TOPIC_NOT_EXIST
        finally:
            await nameserver.stop()

    asyncio.run(main())
