"""A nameserver that serves remoting: routes of the brokers that have registered."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from tests.support.broker_here import broker_here
from tests.support.remoting_client import remoting_client
from trovemq_daemon.remoting.request import Request
from trovemq_nameserver.app import NameserverApp
from trovemq_nameserver.key_values import ENTRIES_MAX, ORDER
from trovemq_nameserver.remoting import RemotingRoutes
from trovemq_nameserver.settings import NameserverSettings
from trovemq_proto.errors import TroveError
from trovemq_proto.remoting.codes import RequestCode, ResponseCode
from trovemq_proto.remoting.headers import JSON, Header


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
                (name,) = cluster["clusterAddrTable"]
                asked = {"cluster": name}
                of_cluster = (await client.ask(RequestCode.GET_TOPICS_BY_CLUSTER, asked)).json()
                assert "orders" in of_cluster["topicList"]
                system = (await client.ask(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS)).json()
                assert system == {"brokerAddr": broker.address, "topicList": sorted([name, "broker-a"])}
                asked = {"topic": f"{name}_REPLY_TOPIC"}
                replies = (await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, asked)).json()
                assert replies["brokerDatas"][0]["brokerAddrs"] == {"0": broker.address}
                entry = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders"}
                await client.ask(RequestCode.PUT_KV_CONFIG, {**entry, "value": "broker-a:4"})
                route = (await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})).json()
                assert route["orderTopicConf"] == "broker-a:4"
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


def test_entries_of_tools_are_kept_listed_and_deleted() -> None:
    async def main() -> None:
        nameserver = NameserverApp(NameserverSettings(listen="127.0.0.1:0", http="off", remoting_enable=True))
        address, _ = await nameserver.start()
        try:
            async with remoting_client(str(address)) as client:
                entry = {"namespace": "n", "key": "k"}
                assert (
                    await client.ask(RequestCode.GET_KV_CONFIG, entry)
                ).code == ResponseCode.QUERY_NOT_FOUND
                await client.ask(RequestCode.PUT_KV_CONFIG, {**entry, "value": "v"})
                assert (await client.ask(RequestCode.GET_KV_CONFIG, entry)).fields["value"] == "v"
                listed = await client.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"})
                assert listed.json() == {"table": {"k": "v"}}
                await client.ask(RequestCode.DELETE_KV_CONFIG, entry)
                none = await client.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"})
                assert none.code == ResponseCode.QUERY_NOT_FOUND
                long = await client.ask(RequestCode.PUT_KV_CONFIG, {**entry, "value": "v" * 5_000})
                assert long.code == ResponseCode.SYSTEM_BUSY
                for number in range(ENTRIES_MAX + 1):
                    last = await client.ask(
                        RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": number, "value": ""}
                    )
                assert last.code == ResponseCode.SYSTEM_BUSY
                deleted = await client.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders"})
                assert deleted.code == ResponseCode.SUCCESS
                units = await client.ask(RequestCode.GET_UNIT_TOPIC_LIST)
                assert units.json() == {"topicList": []}
                refused = await client.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "orders"})
                assert refused.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        finally:
            await nameserver.stop()

    asyncio.run(main())


def test_a_broker_is_closed_for_writes_and_opened(tmp_path: Path) -> None:
    async def main() -> None:
        nameserver = NameserverApp(NameserverSettings(listen="127.0.0.1:0", http="off", remoting_enable=True))
        address, _ = await nameserver.start()
        try:
            settings = {"remoting_enable": True, "nameserver": (str(address),)}
            async with broker_here(tmp_path, **settings) as broker, remoting_client(str(address)) as client:
                await broker.create_topic("orders", 4)
                while "orders" not in nameserver.registry.table.names:
                    await asyncio.sleep(0.01)

                async def perm() -> int:
                    asked = {"topic": "orders"}
                    route = (await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, asked)).json()
                    return int(route["queueDatas"][0]["perm"])

                named = {"brokerName": "broker-a"}
                closed = await client.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, named)
                assert (int(closed.fields["wipeTopicCount"]) > 0, await perm()) == (True, 4)
                opened = await client.ask(RequestCode.ADD_WRITE_PERM_OF_BROKER, named)
                assert (opened.fields["addTopicCount"], await perm()) == (closed.fields["wipeTopicCount"], 6)
                unknown = {"brokerName": "broker-z"}
                none = await client.ask(RequestCode.WIPE_WRITE_PERM_OF_BROKER, unknown)
                assert none.fields["wipeTopicCount"] == "0"
        finally:
            await nameserver.stop()

    asyncio.run(main())


def test_the_settings_of_a_nameserver_are_shown_and_stay() -> None:
    async def main() -> None:
        nameserver = NameserverApp(NameserverSettings(listen="127.0.0.1:0", http="off", remoting_enable=True))
        address, _ = await nameserver.start()
        try:
            async with remoting_client(str(address)) as client:
                shown = (await client.ask(RequestCode.GET_NAMESRV_CONFIG)).body.decode()
                assert "watchers_max=10000\n" in shown
                asked = await client.ask(RequestCode.UPDATE_NAMESRV_CONFIG, body=b"watchers_max=1")
                assert asked.code == ResponseCode.NO_PERMISSION
                assert "started again" in asked.header.remark
        finally:
            await nameserver.stop()

    asyncio.run(main())


class _Client:
    """The connection of a client; the answers are its codes."""

    is_secure = is_lost = is_full = False

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.codes: list[int] = []

    def answered(self, _request: Request, code: int, *_rest: object) -> None:
        self.codes.append(code)


def _ask(routes: RemotingRoutes, peer: str, code: int, value: str) -> list[int]:
    client = _Client(peer)
    header = Header(code, fields={"namespace": ORDER, "key": "orders", "value": value, "brokerName": "b"})
    routes.handlers[code](Request(cast("Any", client), header, JSON, b"", 0))
    return client.codes


@pytest.mark.parametrize("code", [RequestCode.PUT_KV_CONFIG, RequestCode.DELETE_KV_CONFIG])
def test_any_client_changed_the_order_of_topics_for_all(
    code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    routes = RemotingRoutes(cast("Any", None))
    for peer in ("ipv4:10.0.0.9:5000", "ipv6:%5B2001:db8::1%5D:5000"):
        with pytest.raises(TroveError, match="ACCESS_DENIED"):
            _ask(routes, peer, code, "broker-a:4")
    for tool in (RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.GET_NAMESRV_CONFIG):
        with pytest.raises(TroveError, match="ACCESS_DENIED"):
            _ask(routes, "ipv4:10.0.0.9:5000", tool, "")
    with capture_logs() as lines:
        assert _ask(routes, "ipv4:127.0.0.1:5000", code, "broker-a:4") == [ResponseCode.SUCCESS]
    assert [line["key"] for line in lines] == ["orders"]


@pytest.mark.parametrize(
    "value", ["", "broker-a", "broker-a:", "broker-a:x", ":4", "a:4;;b:4", "a:4;b", "a:-1"]
)
def test_an_order_that_no_client_can_read_was_given_to_all(value: str) -> None:
    with pytest.raises(TroveError, match="REQUEST_ILLEGAL"):
        _ask(RemotingRoutes(cast("Any", None)), "ipv4:127.0.0.1:5000", RequestCode.PUT_KV_CONFIG, value)


@pytest.mark.parametrize("value", ["broker-a:4", "broker-a:4;broker-b:8", "broker-a:4;"])
def test_an_order_of_clients_is_kept(value: str) -> None:
    routes = RemotingRoutes(cast("Any", None))
    asked = _ask(routes, "ipv6:%5B::1%5D:5000", RequestCode.PUT_KV_CONFIG, value)
    assert asked == [ResponseCode.SUCCESS]
