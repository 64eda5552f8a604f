"""Topics by RocketMQ's tools: made, changed, deleted and shown as by our own commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.broker_here import BrokerHere
from tests.support.remoting_broker import served
from tests.support.remoting_client import Answer, RemotingClient
from trovemq_proto.remoting.codes import RequestCode, ResponseCode
from trovemq_proto.v1 import admin_pb2


async def update(client: RemotingClient, topic: str, queues: object = 4, **more: object) -> Answer:
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "order": False,
        **more,
    }
    return await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)


async def described(broker: BrokerHere, topic: str) -> admin_pb2.TopicDescription:
    asked = admin_pb2.DescribeTopicRequest(topic=topic)
    found: admin_pb2.TopicDescription = await broker.stubs.admin.DescribeTopic(asked)
    return found


def test_a_topic_is_made_changed_and_deleted(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        made = await update(client, "orders", attributes="+message.type=FIFO")
        assert made.code == ResponseCode.SUCCESS, made.header.remark
        topic = await described(broker, "orders")
        assert (topic.queue_count, topic.message_type) == (4, "FIFO")
        shown = (await client.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "orders"})).json()
        assert shown["attributes"]["message.type"] == "FIFO"
        assert (shown["perm"], shown["readQueueNums"], shown["topicName"]) == (6, 4, "orders")
        changed = await update(client, "orders", readQueueNums=6)
        assert changed.code == ResponseCode.SUCCESS, changed.header.remark
        assert (await described(broker, "orders")).queue_count == 6
        deleted = await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "orders"})
        assert deleted.code == ResponseCode.SUCCESS
        gone = await client.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "orders"})
        assert gone.code == ResponseCode.TOPIC_NOT_EXIST

    served(tmp_path, run)


def test_perm_4_closes_a_topic_and_6_opens_it(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        await update(client, "orders")
        await update(client, "orders", perm=4)
        assert (await described(broker, "orders")).options["writes"] == "closed"
        table = (await client.ask(RequestCode.GET_ALL_TOPIC_CONFIG)).json()["topicConfigTable"]
        assert table["orders"]["perm"] == 4
        assert (await client.send("orders", b"one")).code == ResponseCode.SERVICE_NOT_AVAILABLE
        await update(client, "orders", perm=6)
        assert (await client.send("orders", b"one")).code == ResponseCode.SUCCESS

    served(tmp_path, run)


@pytest.mark.parametrize(
    ("topic", "more"),
    [
        ("", {}),
        ("a b", {}),
        ("x" * 128, {}),
        ("SCHEDULE_TOPIC_XXXX", {}),
        ("orders", {"perm": 2}),
        ("orders", {"readQueueNums": 0}),
        ("orders", {"readQueueNums": 1 << 20, "writeQueueNums": 1 << 20}),
        ("orders", {"attributes": "+cleanup.policy=COMPACTION"}),
        ("orders", {"attributes": "+message.type=NOTHING"}),
        ("kept", {"readQueueNums": 1, "writeQueueNums": 1}),
    ],
)
def test_a_topic_that_cannot_be_so_is_refused(tmp_path: Path, topic: str, more: dict[str, object]) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        await broker.create_topic("kept", 4)
        refused = await update(client, topic, **more)
        assert refused.code in (ResponseCode.INVALID_PARAMETER, ResponseCode.MESSAGE_ILLEGAL)
        assert refused.header.remark
        names = (await client.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).json()["topicList"]
        assert "orders" not in names
        assert (await described(broker, "kept")).queue_count == 4

    served(tmp_path, run)


def test_several_topics_are_made_at_once(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        body = {
            "topicConfigList": [{"topicName": "a", "readQueueNums": 2, "order": False}, {"topicName": "b"}]
        }
        made = await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=json.dumps(body).encode())
        assert made.code == ResponseCode.SUCCESS, made.header.remark
        assert (await described(broker, "b")).queue_count == 8
        for hostile in (b"", b"{", b'{"topicConfigList":[' + b"[" * 5_000, b'{"topicConfigList":[{}]}'):
            refused = await client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body=hostile)
            assert refused.code == ResponseCode.INVALID_PARAMETER

    served(tmp_path, run)


@pytest.mark.parametrize(("topic", "code"), [("absent", 0), ("", 29), ("SCHEDULE_TOPIC_XXXX", 29)])
def test_an_absent_topic_is_deleted_without_an_error(tmp_path: Path, topic: str, code: int) -> None:
    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        answer = await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic})
        assert answer.code == code, answer.header.remark

    served(tmp_path, run)


def test_the_queues_of_a_topic_are_shown_with_objects_as_keys(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        await broker.create_topic("orders", 2)
        await client.send("orders", b"one", queue_id=1)
        body = (await client.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "orders"})).body
        key = b'{"brokerName":"broker-a","queueId":0,"topic":"orders"}'
        assert key + b':{"lastUpdateTimestamp":0,"maxOffset":0,"minOffset":0}' in body
        assert b'"maxOffset":1,"minOffset":0}' in body

    served(tmp_path, run)


def test_groups_are_shown_by_topic(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        await broker.create_topic("orders", 1)
        await client.heartbeat("c1", "readers")
        asked = {"topic": "orders"}
        groups = (await client.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, asked)).json()
        assert groups == {"groupList": ["readers"]}

    served(tmp_path, run)


def test_topics_are_shown_in_pages(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        for name in ("a", "b", "c"):
            await broker.create_topic(name, 1)
        page = await client.ask(RequestCode.GET_ALL_TOPIC_CONFIG, {"topicSeq": 1, "maxTopicNum": 2})
        assert len(page.json()["topicConfigTable"]) == 2
        assert int(page.fields["totalTopicNum"]) >= 3
        none = await client.ask(RequestCode.GET_ALL_TOPIC_CONFIG, {"topicSeq": 1 << 30, "maxTopicNum": -1})
        assert none.json()["topicConfigTable"] == {}

    served(tmp_path, run)
