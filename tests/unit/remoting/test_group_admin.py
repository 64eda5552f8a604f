"""Consumer groups by RocketMQ's tools: made and deleted, their members, their progress and its reset."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_here import BrokerHere
from tests.support.remoting_broker import served
from tests.support.remoting_client import Answer, RemotingClient, remoting_client
from tests.support.stubs import GROUPS, stub_of
from trovemq_proto.remoting.codes import RequestCode, ResponseCode
from trovemq_proto.v1 import group_pb2

ORDERS = "orders"


async def update(client: RemotingClient, **config: object) -> Answer:
    body = json.dumps({"groupName": "readers", **config}).encode()
    return await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)


async def described(broker: BrokerHere, group: str = "readers") -> group_pb2.GroupDescription:
    stub: Any = stub_of(GROUPS, broker.stubs.channel)
    found: group_pb2.GroupDescription = await stub.DescribeGroup(group_pb2.DescribeGroupRequest(group=group))
    return found


def rows_of(answer: Answer, broker: str = "broker-a") -> dict[int, dict[str, int]]:
    """A map with queues as keys, by queue id."""
    text = answer.body.decode()
    rows: dict[int, dict[str, int]] = {}
    for part in text.split(f'{{"brokerName":"{broker}","queueId":')[1:]:
        number, _, rest = part.partition(",")
        rows[int(number)] = json.loads(rest[rest.index("}:") + 2 : rest.index("}", rest.index("}:") + 2) + 1])
    return rows


async def progress(client: RemotingClient, group: str = "readers") -> dict[int, dict[str, int]]:
    asked = {"consumerGroup": group, "topic": ORDERS}
    return rows_of(await client.ask(RequestCode.GET_CONSUME_STATS, asked))


async def reset(client: RemotingClient, **more: object) -> Answer:
    asked = {"group": "readers", "topic": ORDERS, "timestamp": 0, "isForce": True, **more}
    return await client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, asked)


def test_a_group_is_made_changed_and_deleted(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        made = await update(client, retryMaxTimes=3, consumeMessageOrderly=True, consumeBroadcastEnable=False)
        assert made.code == ResponseCode.SUCCESS, made.header.remark
        settings = (await described(broker)).settings
        assert (settings.orderly, settings.retry_max) == (True, 3)
        await update(client, retryMaxTimes=-1, groupRetryPolicy={"type": "EXPONENTIAL"})
        asked = {"group": "readers"}
        shown = (await client.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, asked)).json()
        assert (shown["retryMaxTimes"], shown["groupRetryPolicy"]["type"]) == (16, "EXPONENTIAL")
        table = (await client.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).json()
        assert table["subscriptionGroupTable"]["readers"] == shown
        for _ in range(2):  # the second time it is not there
            deleted = await client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "readers"})
            assert deleted.code == ResponseCode.SUCCESS
        gone = await client.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, asked)
        assert gone.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    served(tmp_path, run)


@pytest.mark.parametrize(
    "config",
    [
        {"groupName": "a b"},
        {"groupName": ""},
        {"groupName": 5},
        {"groupName": "TOOLS_CONSUMER"},
        {"consumeEnable": False},
        {"retryMaxTimes": "x"},
        {"retryMaxTimes": 1 << 20},
        {"groupRetryPolicy": {"type": "OTHER"}},
        {"groupRetryPolicy": 7},
    ],
)
def test_a_group_that_cannot_be_so_is_refused(tmp_path: Path, config: dict[str, object]) -> None:
    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        refused = await update(client, **config)
        assert refused.code == ResponseCode.INVALID_PARAMETER, refused.header.remark
        table = (await client.ask(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)).json()
        assert "readers" not in table["subscriptionGroupTable"]

    served(tmp_path, run)


def test_the_members_of_a_group_are_shown(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        asked = {"consumerGroup": "readers"}
        none = await client.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, asked)
        assert none.code == ResponseCode.CONSUMER_NOT_ONLINE
        await broker.create_topic(ORDERS, 1)
        await client.heartbeat("c1")
        found = (await client.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, asked)).json()
        (connection,) = found["connectionSet"]
        assert (connection["clientId"], connection["language"]) == ("c1", "OTHER")
        assert connection["clientAddr"].startswith("127.0.0.1:")
        assert found["subscriptionTable"][ORDERS]["subString"] == "*"
        assert (found["consumeType"], found["messageModel"]) == ("CONSUME_PASSIVELY", "CLUSTERING")
        topics = (await client.ask(RequestCode.QUERY_TOPICS_BY_CONSUMER, {"group": "readers"})).json()
        assert topics == {"topicList": [ORDERS]}

    served(tmp_path, run)


def test_the_producers_of_a_group_are_shown(tmp_path: Path) -> None:
    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        asked = {"producerGroup": "shop"}
        none = await client.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, asked)
        assert none.code == ResponseCode.SYSTEM_ERROR
        data = {"clientID": "p1", "producerDataSet": [{"groupName": "shop"}]}
        await client.ask(RequestCode.HEART_BEAT, body=json.dumps(data).encode())
        found = (await client.ask(RequestCode.GET_PRODUCER_CONNECTION_LIST, asked)).json()
        assert [one["clientId"] for one in found["connectionSet"]] == ["p1"]
        every = (await client.ask(RequestCode.GET_ALL_PRODUCER_INFO)).json()
        assert [one["clientId"] for one in every["data"]["shop"]] == ["p1"]

    served(tmp_path, run)


def test_the_progress_of_a_group_is_shown(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        await broker.create_topic(ORDERS, 2)
        for _ in range(3):
            await client.send(ORDERS, b"one")
        at = {"consumerGroup": "readers", "topic": ORDERS, "queueId": 0, "commitOffset": 2}
        await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, at)
        rows = await progress(client)
        assert (rows[0]["brokerOffset"], rows[0]["consumerOffset"]) == (3, 2)
        assert rows[0]["lastTimestamp"] > 0
        assert (rows[1]["brokerOffset"], rows[1]["consumerOffset"]) == (0, 0)
        asked = {"group": "readers", "topic": ORDERS}
        (first, _) = (await client.ask(RequestCode.QUERY_CONSUME_TIME_SPAN, asked)).json()[
            "consumeTimeSpanSet"
        ]
        assert 0 < first["minTimeStamp"] <= first["consumeTimeStamp"] <= first["maxTimeStamp"]
        every = await client.ask(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": False})
        assert b'"totalDiff":1' in every.body
        assert b'"readers":[{"consumeTps":0.0' in every.body

    served(tmp_path, run)


def test_a_group_is_set_back_and_its_members_are_notified(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        await broker.create_topic(ORDERS, 1)
        for _ in range(3):
            await client.send(ORDERS, b"one")
        at = {"consumerGroup": "readers", "topic": ORDERS, "queueId": 0, "commitOffset": 2}
        await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, at)
        offline = await reset(client)
        assert offline.code == ResponseCode.CONSUMER_NOT_ONLINE
        assert (await progress(client))[0]["consumerOffset"] == 2
        async with remoting_client(broker.address) as member:
            await member.heartbeat("c1")
            done = await reset(client)
            assert done.code == ResponseCode.SUCCESS, done.header.remark
            assert done.body == b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:0}}'
            while (got := await member.asked()).code != RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
                assert got.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
            assert got.body == done.body
            assert (await progress(client))[0]["consumerOffset"] == 0
            kept = await reset(client, timestamp=-1, isForce=False)
            assert b":0}}" in kept.body
            await reset(client, queueId=0, offset=1)
            assert (await progress(client))[0]["consumerOffset"] == 1

    served(tmp_path, run)


def test_a_reset_that_cannot_be_is_refused(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        await broker.create_topic(ORDERS, 1)
        await client.heartbeat("c1")
        assert (await reset(client, topic="absent")).code == ResponseCode.TOPIC_NOT_EXIST
        assert (await reset(client, queueId=7)).code == ResponseCode.INVALID_PARAMETER
        assert (await reset(client, queueId=0, offset=9)).code != ResponseCode.SUCCESS
        assert (await reset(client, timestamp="x")).code == ResponseCode.SYSTEM_ERROR

    served(tmp_path, run)


def test_the_offsets_of_a_group_are_cloned(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        await broker.create_topic(ORDERS, 1)
        await client.send(ORDERS, b"one")
        at = {"consumerGroup": "readers", "topic": ORDERS, "queueId": 0, "commitOffset": 1}
        await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, at)
        await update(client, groupName="others")
        asked = {"srcGroup": "readers", "destGroup": "others", "topic": ORDERS, "offline": False}
        done = await client.ask(RequestCode.CLONE_GROUP_OFFSET, asked)
        assert done.code == ResponseCode.SUCCESS, done.header.remark
        assert (await progress(client, "others"))[0]["consumerOffset"] == 1

    served(tmp_path, run)
