"""Look-ups, requests to a connected client and information of the broker, by RocketMQ's tools."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.broker_here import BrokerHere
from tests.support.remoting_broker import served
from tests.support.remoting_client import Answer, RemotingClient, remoting_client
from trovemq_broker.server.remoting import client_commands
from trovemq_broker.server.remoting.rates import Rates, Totals
from trovemq_proto.positions import EpochMs
from trovemq_proto.records import decode_offset_msg_id
from trovemq_proto.remoting.codes import RequestCode, ResponseCode
from trovemq_proto.remoting.frame import encode_frame
from trovemq_proto.remoting.headers import IS_RESPONSE, Header

ORDERS = "orders"


async def by_key(client: RemotingClient, key: object, **more: object) -> Answer:
    asked = {"topic": ORDERS, "key": key, "maxNum": 64, "beginTimestamp": 0, "endTimestamp": (1 << 63) - 1}
    return await client.ask(RequestCode.QUERY_MESSAGE, {**asked, **more})


def test_messages_are_found_by_key_unique_key_and_place(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        await broker.create_topic(ORDERS, 1)
        for number in range(3):
            text = f"KEYS\x01k{number % 2}\x02UNIQ_KEY\x01u{number}\x02TAGS\x01t\x02"
            sent = await client.send(ORDERS, b"%d" % number, text)
        found = await by_key(client, "k0")
        assert (found.code, found.bodies) == (ResponseCode.SUCCESS, [b"2", b"0"])
        assert int(found.fields["indexLastUpdateTimestamp"]) >= 0
        assert (await by_key(client, "u1", _UNIQUE_KEY_QUERY=True)).bodies == [b"1"]
        assert (await by_key(client, "t", indexType="T")).bodies == [b"2", b"1", b"0"]
        assert (await by_key(client, "k0", maxNum=1)).bodies == [b"2"]
        none = await by_key(client, "k9")
        assert none.code == ResponseCode.QUERY_NOT_FOUND
        assert "indexLastUpdatePhyoffset" in none.fields
        _, place = decode_offset_msg_id(sent.fields["msgId"])
        assert (await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": place})).bodies == [b"2"]

    served(tmp_path, run)


@pytest.mark.parametrize("offset", [-1, 1, 5, 1 << 40])
def test_a_place_without_a_message_is_an_error(tmp_path: Path, offset: int) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        await broker.create_topic(ORDERS, 1)
        await client.send(ORDERS, b"one")
        answer = await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset})
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert f"{offset}" in answer.header.remark

    served(tmp_path, run)


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"topic": "absent"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"topic": ""}, ResponseCode.INVALID_PARAMETER),
        ({"beginTimestamp": 9, "endTimestamp": 1}, ResponseCode.INVALID_PARAMETER),
        ({"maxNum": "x"}, ResponseCode.SYSTEM_ERROR),
        ({"key": "k" * 40_000}, ResponseCode.INVALID_PARAMETER),
    ],
)
def test_a_query_that_cannot_be_is_refused(tmp_path: Path, more: Mapping[str, object], code: int) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        await broker.create_topic(ORDERS, 1)
        answer = await by_key(client, **{"key": "k", **more})
        assert answer.code == code, answer.header.remark

    served(tmp_path, run)


def test_the_units_of_a_queue_are_shown(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        await broker.create_topic(ORDERS, 1)
        for _ in range(3):
            await client.send(ORDERS, b"one")
        asked = {"topic": ORDERS, "queueId": 0, "index": 1, "count": 1 << 30, "consumerGroup": ""}
        found = (await client.ask(RequestCode.QUERY_CONSUME_QUEUE, asked)).json()
        assert (found["minQueueIndex"], found["maxQueueIndex"], len(found["queueData"])) == (0, 3, 2)

    served(tmp_path, run)


async def answer_one(member: RemotingClient, body: bytes) -> Answer:
    """The next request that expects an answer, which is this one."""
    while (asked := await member.asked()).header.is_one_way:
        pass
    member.writer.write(encode_frame(Header(0, asked.header.opaque, IS_RESPONSE), body))
    return asked


def test_a_member_is_asked_and_its_answer_is_passed_back(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        await broker.create_topic(ORDERS, 1)
        sent = await client.send(ORDERS, b"one")
        async with remoting_client(broker.address) as member:
            await member.heartbeat("c1")
            asked = {"consumerGroup": "readers", "clientId": "c1", "jstackEnable": True}
            signed = {**asked, "AccessKey": "admin", "Signature": "c2lnbmVk", "SecurityToken": "t"}
            waiting = client.begin(RequestCode.GET_CONSUMER_RUNNING_INFO, signed)
            got = await answer_one(member, b"{{}:1}")
            assert got.code == RequestCode.GET_CONSUMER_RUNNING_INFO
            assert got.fields.keys() == asked.keys(), "the signature would be good for other requests"
            assert got.fields["jstackEnable"] == "true"
            assert (await waiting).body == b"{{}:1}"
            wanted = {"consumerGroup": "readers", "clientId": "c1", "msgId": sent.fields["msgId"]}
            waiting = client.begin(RequestCode.CONSUME_MESSAGE_DIRECTLY, wanted)
            got = await answer_one(member, b'{"consumeResult":"CR_SUCCESS"}')
            assert (got.bodies, got.fields["brokerName"]) == ([b"one"], "broker-a")
            assert (await waiting).json() == {"consumeResult": "CR_SUCCESS"}
            unknown = await client.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, {**asked, "clientId": "c2"})
            assert unknown.code == ResponseCode.SYSTEM_ERROR
            assert unknown.header.remark == "The Consumer <readers> <c2> not online"

    served(tmp_path, run)


def test_the_offsets_of_members_are_asked_and_read(tmp_path: Path) -> None:
    """Of one, of all, and without the one whose answer cannot be read."""

    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        await broker.create_topic(ORDERS, 1)
        code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        named = {"group": "readers", "topic": ORDERS}
        none = await client.ask(code, named)
        assert none.code == ResponseCode.SYSTEM_ERROR
        queue = b'{"brokerName":"broker-a","queueId":0,"topic":"orders"}'
        async with remoting_client(broker.address) as one, remoting_client(broker.address) as other:
            await one.heartbeat("c1")
            await other.heartbeat("c2")
            waiting = client.begin(code, {**named, "clientAddr": "c1"})
            got = await answer_one(one, b'{"messageQueueTable":{' + queue + b":7}}")
            assert (got.code, got.fields) == (RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, named)
            assert (await waiting).body == b'{"consumerTable":{"c1":{' + queue + b":7}}}"
            waiting = client.begin(code, named)
            await answer_one(one, b'{"messageQueueTable":{' + queue + b":8}}")
            await answer_one(other, b'{"messageQueueTable":{{"brokerName":1}:8}}')
            assert (await waiting).body == b'{"consumerTable":{"c1":{' + queue + b":8}}}"

    served(tmp_path, run)


def test_a_member_that_leaves_or_is_silent_ends_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        await broker.create_topic(ORDERS, 1)
        asked = {"consumerGroup": "readers", "clientId": "c1", "jstackEnable": False}
        async with remoting_client(broker.address) as member:
            await member.heartbeat("c1")
            waiting = client.begin(RequestCode.GET_CONSUMER_RUNNING_INFO, asked)
            while (await member.asked()).header.is_one_way:
                pass
        assert (await asyncio.wait_for(waiting, 5)).code == ResponseCode.CONSUMER_NOT_ONLINE
        monkeypatch.setattr(client_commands, "ANSWER_S", 0.02)
        async with remoting_client(broker.address) as member:
            await member.heartbeat("c1")
            late = await client.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, asked)
            assert late.code == ResponseCode.CONSUME_MSG_TIMEOUT

    served(tmp_path, run)


NEEDED = [
    "msgPutTotalTodayNow",
    "msgGetTotalTodayNow",
    "msgPutTotalTodayMorning",
    "msgGetTotalTodayMorning",
    "msgPutTotalYesterdayMorning",
    "msgGetTotalYesterdayMorning",
    "putMessageDistributeTime",
    "putTps",
    "getMissTps",
    "getTransferredTps",
    "getTransferedTps",
    "getTotalTps",
    "getFoundTps",
    "commitLogDirCapacity",
    "sendThreadPoolQueueSize",
    "pullThreadPoolQueueSize",
    "queryThreadPoolQueueSize",
    "sendThreadPoolQueueCapacity",
    "pullThreadPoolQueueCapacity",
    "queryThreadPoolQueueCapacity",
    "sendThreadPoolQueueHeadWaitTimeMills",
    "pullThreadPoolQueueHeadWaitTimeMills",
    "queryThreadPoolQueueHeadWaitTimeMills",
    "remainHowManyDataToFlush",
    "bootTimestamp",
    "commitLogMinOffset",
    "commitLogMaxOffset",
    "runtime",
    "dispatchMaxBuffer",
    "brokerVersion",
    "brokerVersionDesc",
    "consumeQueueDiskRatio",
    "commitLogDiskRatio",
    "pageCacheLockTimeMills",
    "getMessageEntireTimeMax",
    "putMessageEntireTimeMax",
    "putMessageTimesTotal",
    "putMessageAverageSize",
    "putMessageSizeTotal",
    "startAcceptSendRequestTimeStamp",
    "earliestMessageTimeStamp",
    "remainTransientStoreBufferNumbs",
    "dispatchBehindBytes",
    "timerReadBehind",
    "timerOffsetBehind",
    "timerCongestNum",
    "timerEnqueueTps",
    "timerDequeueTps",
    "brokerActive",
    "remainHowManyDataToCommit",
    "EndTransactionQueueSize",
    "EndTransactionThreadPoolQueueCapacity",
    "ackThreadPoolQueueSize",
    "litePullThreadPoolQueueSize",
    "ackThreadPoolQueueHeadWaitTimeMills",
]
"""The keys that the exporter and clusterList read, the first without a check."""


def test_no_key_of_the_runtime_information_is_missing(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        await broker.create_topic(ORDERS, 1)
        await client.send(ORDERS, b"one")
        table = (await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).json()["table"]
        assert set(NEEDED) <= table.keys()
        assert table["msgPutTotalTodayNow"] == "1"
        assert [len(table[name].split()) for name in ("putTps", "getTotalTps", "getTransferredTps")] == [
            3
        ] * 3
        assert table["commitLogDirCapacity"].startswith("Total : ")
        _, used, free = shutil.disk_usage(tmp_path)
        assert abs(float(table["commitLogDiskRatio"]) - used / (used + free)) < 0.1
        number, unit = table["remainHowManyDataToFlush"].split(" ")
        assert (number.isdigit(), unit) == (True, "B")
        classes = [part.rpartition(":") for part in table["putMessageDistributeTime"].split(" ")]
        assert len(classes) == 13
        levels = [name for name in table if name.startswith("scheduleMessageOffset_")]
        assert all("," in table[name] for name in levels)
        assert len(levels) == 18

    served(tmp_path, run)


def test_settings_are_shown_and_changed_by_both_names(tmp_path: Path) -> None:
    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        async def shown() -> dict[str, str]:
            answer = await client.ask(RequestCode.GET_BROKER_CONFIG)
            assert json.loads(answer.fields["version"])["counter"] == 0
            lines = answer.body.decode().splitlines()
            return dict(line.split("=", 1) for line in lines)

        before = await shown()
        assert (before["brokerName"], before["brokerId"], before["brokerRole"]) == (
            "broker-a",
            "0",
            "ASYNC_MASTER",
        )
        assert (before["flushDiskType"], before["deleteWhen"]) == ("SYNC_FLUSH", "04")
        body = b"# a comment\nfileReservedTime=48\nqueries_max=7\n"
        done = await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body)
        assert done.code == ResponseCode.SUCCESS, done.header.remark
        after = await shown()
        assert (after["fileReservedTime"], after["queries_max"]) == ("48", "7")
        for hostile in (b"nothing=1\n", b"listen=1.2.3.4:1\n"):
            refused = await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=hostile)
            assert refused.code == ResponseCode.NO_PERMISSION
            assert hostile.partition(b"=")[0].decode() in refused.header.remark
        assert (await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=b"\xff")).code != ResponseCode.SUCCESS

    served(tmp_path, run)


def test_tools_are_shown_the_rocketmq_nameservers_of_a_broker(tmp_path: Path) -> None:
    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        lines = (await client.ask(RequestCode.GET_BROKER_CONFIG)).body.decode().splitlines()
        assert "namesrvAddr=127.0.0.1:9876;127.0.0.1:9877" in lines

    served(tmp_path, run, rocketmq_nameserver=("127.0.0.1:9876", "127.0.0.1:9877"))


def test_rates_are_of_their_windows() -> None:
    now, totals = [EpochMs(0)], [Totals(0, 0)]
    rates = Rates(lambda: now[0], lambda: totals[0])
    assert rates.of_windows() == [(0.0, 0.0)] * 3
    for second in range(0, 700, 10):
        now[0], totals[0] = EpochMs(second * 1_000), Totals(second * 5, max(second - 600, 0))
        rates.sample()
    now[0], totals[0] = EpochMs(700_000), Totals(3_500, 100)
    (ten, minute, ten_minutes) = rates.of_windows()
    assert (ten[0], minute[0], ten_minutes[0]) == (5.0, 5.0, 5.0)
    assert (ten[1], minute[1], round(ten_minutes[1], 2)) == (1.0, 1.0, 0.17)
    now[0] = EpochMs(86_400_000)
    rates.sample()
    assert rates.this_morning == Totals(3_500, 100)
