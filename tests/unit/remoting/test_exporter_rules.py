"""RocketMQ's exporter reads our answers by its own rules. A text of the runtime information that breaks one
costs it every metric of the broker, as it checks nothing; another answer costs it the metrics of a topic or a
group."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.broker_here import BrokerHere
from tests.support.remoting_broker import served
from tests.support.remoting_client import RemotingClient
from trovemq_proto.records.layout import PROPERTY_DELAY
from trovemq_proto.remoting.codes import RequestCode, ResponseCode
from trovemq_proto.remoting.headers import LANGUAGES
from trovemq_proto.v1 import admin_pb2

ORDERS: Final = "orders"
LEVEL: Final = "scheduleMessageOffset"
LONGS: Final = (
    *("msgPutTotalTodayNow", "msgPutTotalTodayMorning", "msgPutTotalYesterdayMorning", "msgGetTotalTodayNow"),
    *("msgGetTotalTodayMorning", "msgGetTotalYesterdayMorning", "bootTimestamp", "commitLogMinOffset"),
    *("commitLogMaxOffset", "dispatchMaxBuffer", "pageCacheLockTimeMills", "getMessageEntireTimeMax"),
    *("putMessageEntireTimeMax", "putMessageTimesTotal", "putMessageSizeTotal", "dispatchBehindBytes"),
    *("startAcceptSendRequestTimeStamp", "earliestMessageTimeStamp", "remainTransientStoreBufferNumbs"),
    *(
        f"{pool}ThreadPoolQueue{figure}"
        for pool in ("send", "pull", "query")
        for figure in ("Size", "Capacity", "HeadWaitTimeMills")
    ),
)
DOUBLES: Final = ("consumeQueueDiskRatio", "commitLogDiskRatio", "putMessageAverageSize")
RATES: Final = ("putTps", "getMissTps", "getTransferedTps", "getTotalTps", "getFoundTps")
TEXTS: Final = ("runtime", "brokerVersionDesc")
CLASSES: Final = 13
UNITS: Final = "KMGTPE"


def long(text: str) -> int:
    """Java's Long.parseLong. ValueError."""
    if not re.fullmatch(r"[+-]?[0-9]+", text) or not -(1 << 63) <= int(text) < 1 << 63:
        raise ValueError(text)
    return int(text)


def integer(text: str) -> int:
    """Java's Integer.parseInt. ValueError."""
    if not -(1 << 31) <= (number := long(text)) < 1 << 31:
        raise ValueError(text)
    return number


def double(text: str) -> float:
    """Java's Double.parseDouble, of finite numbers. ValueError."""
    if not re.fullmatch(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?", text):
        raise ValueError(text)
    return float(text)


def size(number: str, unit: str) -> float:
    return double(number) * 1024.0 ** (UNITS.find(unit[0]) + 1)


def rates(text: str) -> tuple[float, ...]:
    ten_seconds, minute, ten_minutes = text.split(" ")
    return double(ten_seconds), double(minute), double(ten_minutes)


def capacity(text: str) -> tuple[float, float]:
    """By the places of the words: the total, the free part."""
    words = text.split(" ")
    return size(words[2], words[3][:-1]), size(words[6], words[7][:-1])


def to_flush(text: str) -> float:
    words = text.split(" ")
    return size(words[0], words[1])


def times(text: str) -> dict[str, int]:
    """By class. Two of one name are one metric."""
    pairs = (word.split(":") for word in text.split(" "))
    return {pair[0].replace("[", "").replace("]", ""): integer(pair[1]) for pair in pairs}


def level(text: str) -> tuple[int, int]:
    words = text.split(",")
    return long(words[0]), long(words[1])


RULES: Final[Mapping[str, Callable[[str], object]]] = {
    **dict.fromkeys(LONGS, long),
    **dict.fromkeys(DOUBLES, double),
    **dict.fromkeys(RATES, rates),
    **dict.fromkeys(TEXTS, str),
    "brokerVersion": integer,
    "commitLogDirCapacity": capacity,
    "putMessageDistributeTime": times,
    "remainHowManyDataToFlush": to_flush,
}


def exported(table: Mapping[str, str]) -> dict[str, object]:
    """As the exporter reads it. KeyError, IndexError, ValueError: it has no metric of the broker then."""
    levels = {name: level(text) for name, text in table.items() if name.startswith(LEVEL)}
    return {**levels, **{name: rule(table[name]) for name, rule in RULES.items()}}


async def table_of(client: RemotingClient) -> dict[str, str]:
    table = (await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).json()["table"]
    assert all(isinstance(text, str) for text in table.values())
    return dict(table)


def test_the_exporter_reads_a_broker_without_a_message(tmp_path: Path) -> None:
    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        read = exported(await table_of(client))
        assert read["putMessageTimesTotal"] == 0
        assert read["commitLogMinOffset"] == read["commitLogMaxOffset"] == 0

    served(tmp_path, run)


def test_the_exporter_reads_a_broker_with_messages(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        await broker.create_topic(ORDERS, 1)
        for body in (b"one", b"two"):
            await client.send(ORDERS, body)
        await client.pull(ORDERS, 0)
        read = exported(await table_of(client))
        assert (read["msgPutTotalTodayNow"], read["msgGetTotalTodayNow"]) == (2, 2)
        assert read["putMessageTimesTotal"] == 2
        total, free = capacity((await table_of(client))["commitLogDirCapacity"])
        assert total >= free > 0
        classes = read["putMessageDistributeTime"]
        assert isinstance(classes, dict)
        assert len(classes) == CLASSES
        assert len([name for name in read if name.startswith(f"{LEVEL}_")]) == 18
        assert not [name for name in read if name.startswith(LEVEL) and not name.startswith(f"{LEVEL}_")]

    served(tmp_path, run)


def test_tools_did_not_see_delayed_messages(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        await broker.stubs.admin.CreateTopic(
            admin_pb2.CreateTopicRequest(topic="later", queue_count=1, message_type="DELAY")
        )
        assert (await table_of(client))["timerCongestNum"] == "0"
        sent = await client.send("later", b"one", f"{PROPERTY_DELAY}\x0118\x02")
        assert sent.code == ResponseCode.SUCCESS, sent.header.remark
        table = await table_of(client)
        assert (table["timerCongestNum"], table["timerReadBehind"]) == ("1", "0")
        assert double(table["timerEnqueueTps"]) >= double(table["timerDequeueTps"]) == 0

    served(tmp_path, run)


# --- other answers ----------------------------------------------------------------------------------------
WHERE: Final = "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_TIMESTAMP"


def by_queue(body: bytes) -> tuple[dict[str, Any], list[tuple[dict[str, Any], dict[str, Any]]]]:
    """The members of a table with queues as keys, and its entries: no JSON, and written by RocketMQ."""
    text = body.decode()
    begin = '"offsetTable":{'
    at, reader, rows = text.index(begin) + len(begin), json.JSONDecoder(), []
    first = at
    while text[at] != "}":
        queue, at = reader.raw_decode(text, at + (text[at] == ","))
        assert text[at] == ":"
        row, at = reader.raw_decode(text, at + 1)
        rows.append((queue, row))
    return json.loads(text[:first] + text[at:]), rows


def check_longs(value: Mapping[str, Any], *names: str) -> None:
    for name in names:
        assert type(value[name]) is int, name
        assert -(1 << 63) <= value[name] < 1 << 63, name


def check_doubles(value: Mapping[str, Any], *names: str) -> None:
    for name in names:
        assert type(value[name]) is float, name
        assert math.isfinite(value[name]), name


def check_texts(value: Mapping[str, Any], *names: str) -> None:
    for name in names:
        assert type(value[name]) is str, name
        assert value[name], name


def test_the_exporter_reads_queues_and_progress(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        await broker.create_topic(ORDERS, 2)
        await client.send(ORDERS, b"one")
        await client.heartbeat("c1")
        at = {"consumerGroup": "readers", "topic": ORDERS, "queueId": 0, "commitOffset": 1}
        await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, at)
        topic, queues = by_queue((await client.ask(RequestCode.GET_TOPIC_STATS_INFO, at)).body)
        group, progress = by_queue((await client.ask(RequestCode.GET_CONSUME_STATS, at)).body)
        assert (len(queues), len(progress)) == (2, 2)
        for _, row in queues:
            check_longs(row, "lastUpdateTimestamp", "maxOffset", "minOffset")
        for _, row in progress:
            check_longs(row, "brokerOffset", "consumerOffset", "lastTimestamp")
        for queue, _ in (*queues, *progress):
            check_texts(queue, "topic", "brokerName")
            check_longs(queue, "queueId")
        check_doubles(group, "consumeTps")
        check_doubles(topic, "topicPutTps")

    served(tmp_path, run)


def test_the_exporter_reads_clients(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        await broker.create_topic(ORDERS, 1)
        data = {"clientID": "p1", "producerDataSet": [{"groupName": "shop"}]}
        await client.ask(RequestCode.HEART_BEAT, body=json.dumps(data).encode())
        await client.heartbeat("c1")
        (producer,) = (await client.ask(RequestCode.GET_ALL_PRODUCER_INFO)).json()["data"]["shop"]
        check_texts(producer, "clientId", "remoteIP", "language")
        check_longs(producer, "version", "lastUpdateTimestamp")
        asked = {"consumerGroup": "readers"}
        members = (await client.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, asked)).json()
        assert members["consumeType"] in ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY")
        assert members["messageModel"] in ("CLUSTERING", "BROADCASTING")
        assert members["consumeFromWhere"] in WHERE
        (member,) = members["connectionSet"]
        check_texts(member, "clientId", "clientAddr", "language")
        check_longs(member, "version")
        assert {producer["language"], member["language"]} <= set(LANGUAGES)
        groups = (await client.ask(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": ORDERS})).json()
        assert groups == {"groupList": ["readers"]}
        none = await client.ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "absent"})
        assert none.code == ResponseCode.CONSUMER_NOT_ONLINE, "it counts none for this code alone"

    served(tmp_path, run)


def test_the_exporter_reads_topics_brokers_and_rates(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        await broker.create_topic(ORDERS, 1)
        await client.send(ORDERS, b"one")
        topics = (await client.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).json()["topicList"]
        assert ORDERS in topics
        brokers = (await client.ask(RequestCode.GET_BROKER_CLUSTER_INFO)).json()["brokerAddrTable"]
        assert [one["brokerAddrs"]["0"] for one in brokers.values()] == [broker.address]
        asked = {"statsName": "TOPIC_PUT_NUMS", "statsKey": ORDERS}
        found = (await client.ask(RequestCode.VIEW_BROKER_STATS_DATA, asked)).json()
        for window in ("statsMinute", "statsHour", "statsDay"):
            check_longs(found[window], "sum")
            check_doubles(found[window], "tps", "avgpt")
        idle = await client.ask(RequestCode.VIEW_BROKER_STATS_DATA, {**asked, "statsKey": "idle"})
        assert idle.code == ResponseCode.SYSTEM_ERROR, "then it reads the next topic"

    served(tmp_path, run)


# --- the rules themselves ---------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("bootTimestamp", "1.5"),
        ("commitLogMaxOffset", str(1 << 63)),
        ("commitLogDirCapacity", "Total : 251.0GiB, Free : 76.3GiB."),
        ("putMessageDistributeTime", "[<=0ms] : 12"),
        ("putTps", "0.0 0.0 nan"),
        ("remainHowManyDataToFlush", "0B"),
        ("scheduleMessageOffset_1", "0"),
    ],
)
def test_a_text_that_breaks_a_rule_is_found(tmp_path: Path, name: str, text: str) -> None:
    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        table = await table_of(client)
        with pytest.raises((IndexError, ValueError)):
            exported({**table, name: text})

    served(tmp_path, run)
