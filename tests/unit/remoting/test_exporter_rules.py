"""RocketMQ's exporter reads our runtime information by its own rules: a text that breaks one of them costs it
every metric of the broker, as it checks nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.support.broker_here import BrokerHere
from tests.support.remoting_broker import served
from tests.support.remoting_client import RemotingClient
from trovemq_proto.remoting.codes import RequestCode

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
    """The rules themselves."""

    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        table = await table_of(client)
        with pytest.raises((IndexError, ValueError)):
            exported({**table, name: text})

    served(tmp_path, run)
