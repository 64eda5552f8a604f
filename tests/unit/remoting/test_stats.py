"""Statistics of topics, groups and the broker, by RocketMQ's tools."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

from tests.support.broker_here import BrokerHere
from tests.support.memory_broker import TestBroker
from tests.support.remoting_broker import served
from tests.support.remoting_client import Answer, RemotingClient
from trovemq_broker.server.remoting import stats
from trovemq_broker.server.remoting.stats import KEYS_MAX, GroupCounts, Stats
from trovemq_daemon.remoting.request import Request
from trovemq_proto.positions import EpochMs
from trovemq_proto.remoting.codes import RequestCode, ResponseCode
from trovemq_proto.remoting.headers import JSON, Header


async def view(client: RemotingClient, name: str, key: str) -> Answer:
    return await client.ask(RequestCode.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})


def test_messages_are_counted_by_topic_and_group(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        await broker.create_topic("orders", 1)
        for _ in range(3):
            await client.send("orders", b"one")
        found = await client.pull("orders", 0)
        place = int(found.messages[0].physical_offset)
        back = {"offset": place, "group": "readers", "delayLevel": 1, "originTopic": "orders"}
        assert (await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back)).code == ResponseCode.SUCCESS
        for name, key, total in (
            ("TOPIC_PUT_NUMS", "orders", 3),
            ("GROUP_GET_NUMS", "orders@readers", 3),
            ("GROUP_GET_SIZE", "orders@readers", len(found.body)),
            ("SNDBCK_PUT_NUMS", "orders@readers", 1),
            ("BROKER_GET_NUMS", "DefaultCluster", 3),
        ):
            day = (await view(client, name, key)).json()["statsDay"]
            assert (day["sum"], day["tps"] > 0) == (total, True), name
        for name, key in (("TOPIC_PUT_NUMS", "absent"), ("NOTHING", "orders"), ("GROUP_GET_NUMS", "orders")):
            none = await view(client, name, key)
            assert none.code == ResponseCode.SYSTEM_ERROR
            assert none.header.remark == f"The stats <{name}> <{key}> not exist"

    served(tmp_path, run)


class _Asker:
    """A connection that keeps the answer."""

    body = b""

    def answered(self, _request: Request, _code: int, _remark: str, _fields: Any, body: bytes) -> None:
        self.body = body


def test_a_rate_is_of_its_window() -> None:
    async def main() -> None:
        now, counts, asker = [EpochMs(0)], GroupCounts(), _Asker()
        made = Stats(TestBroker(), counts, lambda: now[0], 0)

        def minute() -> dict[str, float]:
            fields = {"statsName": "GROUP_GET_NUMS", "statsKey": "t@g"}
            made.view(Request(cast("Any", asker), Header(0, fields=fields), JSON, b"", 0))
            row: dict[str, float] = json.loads(asker.body)["statsMinute"]
            return row

        for second in range(0, 600, 60):
            now[0] = EpochMs(second * 1_000 + 60_000)
            counts.got("t", "g", 120, 1)
            row = minute()
        assert (round(row["tps"], 1), row["sum"]) == (2.0, 120)
        now[0] = EpochMs(now[0] + 120_000)
        minute()
        now[0] = EpochMs(now[0] + 60_000)
        assert minute() == {"avgpt": 0.0, "sum": 0, "tps": 0.0}

    asyncio.run(main())


def test_keys_are_bounded() -> None:
    counts = GroupCounts()
    for number in range(KEYS_MAX + 5):
        counts.got("t", f"g{number}", 1, 1)
    assert counts.total("GROUP_GET_NUMS", "t", "g4") == 0
    assert counts.total("GROUP_GET_NUMS", "t", "g5") == 1
    assert len(counts._got) == stats.KEYS_MAX
