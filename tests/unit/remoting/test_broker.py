"""A broker that serves remoting: sends, pulls, offsets and members, by a raw client."""

from __future__ import annotations

import asyncio
import json
import struct
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_here import BrokerHere, broker_here
from tests.support.remoting_client import Answer, RemotingClient, remoting_client
from trovemq_broker.server.remoting import members
from trovemq_proto.remoting.codes import RequestCode, ResponseCode
from trovemq_proto.remoting.headers import BINARY, JSON, Form
from trovemq_proto.v1 import query_pb2

ORDERS = "orders"


async def opened(
    path: Path, run: Callable[[BrokerHere, RemotingClient], Awaitable[None]], **settings: Any
) -> None:
    async with broker_here(path, remoting_enable=True, **settings) as broker:
        await broker.create_topic(ORDERS, 4)
        async with remoting_client(broker.address) as client:
            await run(broker, client)


def with_client(
    path: Path, run: Callable[[BrokerHere, RemotingClient], Awaitable[None]], **settings: Any
) -> None:
    asyncio.run(opened(path, run, **settings))


def properties(**values: str) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in values.items())


@pytest.mark.parametrize("flush_mode", ["sync", "async"])
@pytest.mark.parametrize("form", [JSON, BINARY])
def test_a_message_is_pulled_as_it_was_sent(tmp_path: Path, flush_mode: str, form: Form) -> None:
    async def main() -> None:
        async with broker_here(tmp_path, remoting_enable=True, flush_mode=flush_mode) as broker:
            await broker.create_topic(ORDERS, 4)
            async with remoting_client(broker.address, form) as client:
                sent = await client.send(ORDERS, b"one", properties(TAGS="a", UNIQ_KEY="key-1"), 2, h=7)
                assert sent.code == ResponseCode.SUCCESS, sent.header.remark
                assert (sent.fields["queueId"], sent.fields["queueOffset"]) == ("2", "0")
                assert sent.fields["transactionId"] == "key-1"
                found = await client.pull(ORDERS, 0, 2)
                assert (found.code, found.bodies) == (ResponseCode.SUCCESS, [b"one"])
                assert (found.fields["nextBeginOffset"], found.fields["maxOffset"]) == ("1", "1")

    asyncio.run(main())


def test_a_message_is_found_by_the_id_that_remoting_gave(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        sent = await client.send(ORDERS, b"one", properties(KEYS="k1"))
        request = query_pb2.GetMessageRequest(id=sent.fields["msgId"])
        reply = await broker.stubs.queries.GetMessage(request)
        assert b"one" in reply.records

    with_client(tmp_path, run)


def test_messages_of_one_read_are_in_their_order(tmp_path: Path) -> None:
    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        waiting = [client.begin_send(ORDERS, b"%d" % number) for number in range(700)]
        answers = await asyncio.wait_for(asyncio.gather(*waiting), 10)
        assert [int(one.fields["queueOffset"]) for one in answers] == list(range(700))
        bodies: list[bytes] = []
        while len(bodies) < 700:
            bodies += (await client.pull(ORDERS, len(bodies))).bodies
        assert bodies == [b"%d" % number for number in range(700)]

    with_client(tmp_path, run)


def test_compressed_bodies_and_flags_are_stored_as_they_came(tmp_path: Path) -> None:
    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        packed = zlib.compress(b"x" * 5_000)
        sent = await client.send(ORDERS, packed, f=0x301, h=-5)
        assert sent.code == ResponseCode.SUCCESS, sent.header.remark
        found = await client.pull(ORDERS, 0)
        assert packed in found.body
        assert struct.unpack(">i", found.body[16:20]) == (-5,)
        assert struct.unpack(">i", found.body[36:40])[0] & 0x701 == 0x301

    with_client(tmp_path, run)


def batch_of(messages: list[tuple[bytes, str]]) -> bytes:
    parts = []
    for body, text in messages:
        block = text.encode()
        size = 22 + len(body) + len(block)
        parts.append(struct.pack(">iiiii", size, 0, 0, 0, len(body)) + body)
        parts.append(struct.pack(">h", len(block)) + block)
    return b"".join(parts)


def test_a_batch_is_stored_as_single_messages(tmp_path: Path) -> None:
    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        body = batch_of([(b"one", "TAGS\x01a"), (b"two", "TAGS\x01b\x02")])
        fields = {"a": "p", "b": ORDERS, "c": "", "d": 4, "e": 1, "f": 0, "g": 1, "h": 0, "m": True}
        sent = await client.ask(RequestCode.SEND_BATCH_MESSAGE, fields, body)
        assert sent.code == ResponseCode.SUCCESS, sent.header.remark
        assert len(sent.fields["msgId"].split(",")) == 2
        found = await client.pull(ORDERS, 0, 1, subscription="b")
        assert found.bodies == [b"two"]

    with_client(tmp_path, run)


@pytest.mark.parametrize("cut", [1, 10, 21, 24, 27])
def test_a_batch_that_crosses_its_end_is_refused_whole(tmp_path: Path, cut: int) -> None:
    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        body = batch_of([(b"one", "TAGS\x01a"), (b"two", "")])[:-cut]
        fields = {"a": "p", "b": ORDERS, "c": "", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "m": True}
        sent = await client.ask(RequestCode.SEND_BATCH_MESSAGE, fields, body)
        assert sent.code == ResponseCode.MESSAGE_ILLEGAL
        assert (await client.pull(ORDERS, 0)).code == ResponseCode.PULL_NOT_FOUND

    with_client(tmp_path, run)


def test_a_delayed_message_is_pulled_when_it_is_due(tmp_path: Path) -> None:
    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        sent = await client.send(ORDERS, b"later", properties(UNIQ_KEY="k", DELAY="1"))
        assert sent.code == ResponseCode.SUCCESS, sent.header.remark
        assert (await client.pull(ORDERS, 0)).code == ResponseCode.PULL_NOT_FOUND
        found = await client.pull(ORDERS, 0, sysFlag=6, suspendTimeoutMillis=8_000)
        assert found.bodies == [b"later"]

    with_client(tmp_path, run)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"b": "absent"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"e": 4}, ResponseCode.INVALID_PARAMETER),
        ({"e": "x"}, ResponseCode.SYSTEM_ERROR),
        ({"b": ""}, ResponseCode.INVALID_PARAMETER),
        ({"i": "TRAN_MSG\x01true\x02"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"i": "DELAY\x01x\x02"}, ResponseCode.SYSTEM_ERROR),
        ({"i": "TIMER_DELIVER_MS\x01" + str(1 << 62) + "\x02"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"i": "K\x01" + "v" * 40_000 + "\x02"}, ResponseCode.MESSAGE_ILLEGAL),
    ],
)
def test_a_send_that_cannot_be_stored_is_refused(
    tmp_path: Path, fields: dict[str, object], code: int
) -> None:
    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        sent = {"a": "p", "b": ORDERS, "c": "", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "i": "", **fields}
        refused = await client.ask(RequestCode.SEND_MESSAGE_V2, sent, b"one")
        assert refused.code == code, refused.header.remark
        assert refused.header.remark
        assert (await client.send(ORDERS, b"two")).fields["queueOffset"] == "0"

    with_client(tmp_path, run)


def test_a_pull_waits_for_the_next_message(tmp_path: Path) -> None:
    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        waiting = client.begin_pull(ORDERS, 0, sysFlag=6, suspendTimeoutMillis=15_000)
        await client.ask(RequestCode.GET_MAX_OFFSET, {"topic": ORDERS, "queueId": 0})
        assert not waiting.done()
        await client.send(ORDERS, b"one")
        assert (await asyncio.wait_for(waiting, 5)).bodies == [b"one"]

    with_client(tmp_path, run)


def test_a_pull_that_waited_ends_with_nothing(tmp_path: Path) -> None:
    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        answer = await client.pull(ORDERS, 0, sysFlag=6, suspendTimeoutMillis=50)
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        assert answer.fields["nextBeginOffset"] == "0"

    with_client(tmp_path, run)


@pytest.mark.parametrize(("offset", "following"), [(9, "1"), (-3, "0")])
def test_an_offset_outside_of_the_queue_is_moved(tmp_path: Path, offset: int, following: str) -> None:
    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        await client.send(ORDERS, b"one")
        answer = await client.pull(ORDERS, offset)
        assert answer.code == ResponseCode.PULL_OFFSET_MOVED
        assert answer.fields["nextBeginOffset"] == following

    with_client(tmp_path, run)


@pytest.mark.parametrize("kind", ["TAG", "SQL92"])
def test_messages_that_do_not_match_are_passed_over(tmp_path: Path, kind: str) -> None:
    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        for number in range(3):
            await client.send(ORDERS, b"%d" % number, properties(TAGS=f"t{number}", n=str(number)))
        wanted = "t2" if kind == "TAG" else "n = 2"
        found = await client.pull(ORDERS, 0, subscription=wanted, expressionType=kind)
        assert found.bodies == [b"2"]
        none = await client.pull(
            ORDERS, 0, subscription="other" if kind == "TAG" else "n = 7", expressionType=kind
        )
        assert (none.code, none.fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "3")

    with_client(tmp_path, run)


def test_an_offset_that_was_stored_is_the_groups(tmp_path: Path) -> None:
    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        await client.send(ORDERS, b"one")
        asked = {"consumerGroup": "readers", "topic": ORDERS, "queueId": 0}
        assert (await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, asked)).fields["offset"] == "0"
        none = await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, {**asked, "setZeroIfNotFound": False})
        assert none.code == ResponseCode.QUERY_NOT_FOUND
        stored = await client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {**asked, "commitOffset": 1})
        assert stored.code == ResponseCode.SUCCESS, stored.header.remark
        client.notify(RequestCode.UPDATE_CONSUMER_OFFSET, {**asked, "queueId": 1, "commitOffset": 0})
        assert (await client.ask(RequestCode.QUERY_CONSUMER_OFFSET, asked)).fields["offset"] == "1"

    with_client(tmp_path, run)


def test_offsets_of_a_queue_are_answered(tmp_path: Path) -> None:
    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        queue = {"topic": ORDERS, "queueId": 0}
        empty = await client.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, queue)
        assert empty.fields["timestamp"] == "-1"
        await client.send(ORDERS, b"one")
        assert (await client.ask(RequestCode.GET_MAX_OFFSET, queue)).fields["offset"] == "1"
        assert (await client.ask(RequestCode.GET_MIN_OFFSET, queue)).fields["offset"] == "0"
        at_start = await client.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {**queue, "timestamp": 0})
        assert at_start.fields["offset"] == "0"
        later = await client.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {**queue, "timestamp": 1 << 45})
        assert later.fields["offset"] == "1"
        assert int((await client.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, queue)).fields["timestamp"]) > 0

    with_client(tmp_path, run)


def test_members_of_a_group_hear_of_each_other(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        asked = {"consumerGroup": "readers"}
        assert (await client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, asked)).code == 1
        assert (await client.heartbeat("one")).code == ResponseCode.SUCCESS
        assert (await client.asked()).code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        async with remoting_client(broker.address) as other:
            await other.heartbeat("two")
            assert (await client.asked()).fields == asked
            found = await client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, asked)
            assert found.json() == {"consumerIdList": ["one", "two"]}
            await other.heartbeat("two")
        assert (await client.asked()).fields == asked
        found = await client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, asked)
        assert found.json() == {"consumerIdList": ["one"]}
        assert client.requests.empty()

    with_client(tmp_path, run)


def test_a_member_pulls_by_the_subscription_of_its_heartbeat(tmp_path: Path) -> None:
    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        await client.send(ORDERS, b"one")
        unknown = await client.pull(ORDERS, 0, sysFlag=0)
        assert unknown.code == ResponseCode.SUBSCRIPTION_NOT_EXIST
        await client.heartbeat("one")
        assert (await client.pull(ORDERS, 0, sysFlag=0)).bodies == [b"one"]
        newer = await client.pull(ORDERS, 0, sysFlag=0, subVersion=5)
        assert newer.code == ResponseCode.SUBSCRIPTION_NOT_LATEST

    with_client(tmp_path, run)


def test_a_queue_is_locked_by_one_member_until_it_leaves(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        def locks(client_id: str) -> bytes:
            queue = {"brokerName": "broker-a", "queueId": 0, "topic": ORDERS}
            data = {"clientId": client_id, "consumerGroup": "readers", "mqSet": [queue]}
            return json.dumps(data).encode()

        def held(answer: Answer) -> int:
            return len(answer.json()["lockOKMQSet"])

        async with remoting_client(broker.address) as other:
            await other.heartbeat("two")
            assert held(await other.ask(RequestCode.LOCK_BATCH_MQ, body=locks("two"))) == 1
            assert held(await client.ask(RequestCode.LOCK_BATCH_MQ, body=locks("one"))) == 0
            gone = {"clientID": "two", "consumerGroup": "readers"}
            await other.ask(RequestCode.UNREGISTER_CLIENT, gone)
            assert held(await client.ask(RequestCode.LOCK_BATCH_MQ, body=locks("one"))) == 1

    with_client(tmp_path, run)


def test_the_broker_answers_for_a_nameserver(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        route = (await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": ORDERS})).json()
        assert route["brokerDatas"][0]["brokerAddrs"] == {"0": broker.address}
        assert route["queueDatas"][0]["writeQueueNums"] == 4
        absent = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "absent"})
        assert absent.code == ResponseCode.TOPIC_NOT_EXIST
        made = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})
        assert made.code == ResponseCode.TOPIC_NOT_EXIST
        cluster = (await client.ask(RequestCode.GET_BROKER_CLUSTER_INFO)).json()
        assert [len(names) for names in cluster["clusterAddrTable"].values()] == [1]
        topics = (await client.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)).json()
        assert ORDERS in topics["topicList"]

    with_client(tmp_path, run)


def test_a_first_send_makes_its_topic_where_settings_say_so(tmp_path: Path) -> None:
    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        made = (await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})).json()
        assert made["queueDatas"][0]["perm"] == 7
        assert (await client.send("fresh", b"one")).code == ResponseCode.SUCCESS

    with_client(tmp_path, run, auto_create_topic_enable=True)


def test_a_request_without_a_handler_is_answered_at_once(tmp_path: Path) -> None:
    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        answer = await client.ask(29_999)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        assert answer.header.remark == " request type 29999 not supported"

    with_client(tmp_path, run)


def test_a_broker_without_the_setting_ends_the_connection(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_here(tmp_path) as broker, remoting_client(broker.address) as client:
            client.begin(RequestCode.GET_BROKER_CLUSTER_INFO)
            await client.closed()

    asyncio.run(main())


def test_grpc_is_served_on_the_same_port(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        assert (await client.send(ORDERS, b"one")).code == ResponseCode.SUCCESS
        assert any((await broker.counters()).values())

    with_client(tmp_path, run)


def test_a_consumers_own_retry_keeps_its_attempts(tmp_path: Path) -> None:
    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        await client.heartbeat("one")
        again = properties(UNIQ_KEY="k", RETRY_TOPIC=ORDERS, DELAY="1")
        stored = await client.send("%RETRY%readers", b"one", again, j=2)
        assert stored.code == ResponseCode.SUCCESS, stored.header.remark
        found = await client.pull("%RETRY%readers", 0, sysFlag=6, suspendTimeoutMillis=8_000)
        assert [message.reconsume_times for message in found.messages] == [2]
        last = properties(UNIQ_KEY="k", RETRY_TOPIC=ORDERS, MAX_RECONSUME_TIMES="2")
        await client.send("%RETRY%readers", b"one", last, j=3)
        assert (await client.pull("%DLQ%readers", 0)).bodies == [b"one"]

    with_client(tmp_path, run)


def sent_back(sent: Answer, group: str = "readers", level: int = 0, **fields: object) -> dict[str, object]:
    offset = int(sent.fields["msgId"][-16:], 16)
    return {"offset": offset, "group": group, "delayLevel": level, "originTopic": ORDERS, **fields}


def test_a_message_that_is_sent_back_comes_again_by_the_retry_topic(tmp_path: Path) -> None:
    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        sent = await client.send(ORDERS, b"one", properties(UNIQ_KEY="k", colour="red"))
        back = await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, sent_back(sent, level=1))
        assert back.code == ResponseCode.SUCCESS, back.header.remark
        found = await client.pull("%RETRY%readers", 0, sysFlag=6, suspendTimeoutMillis=8_000)
        (message,) = found.messages
        assert (message.body, message.reconsume_times) == (b"one", 1)
        assert message.properties["RETRY_TOPIC"] == ORDERS
        assert message.properties["ORIGIN_MESSAGE_ID"] == sent.fields["msgId"]
        assert (message.properties["UNIQ_KEY"], message.properties["colour"]) == ("k", "red")

    with_client(tmp_path, run)


@pytest.mark.parametrize("fields", [{"delayLevel": -1}, {"maxReconsumeTimes": 0}])
def test_a_message_that_is_sent_back_for_the_last_time_is_a_dead_letter(
    tmp_path: Path, fields: dict[str, object]
) -> None:
    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        sent = await client.send(ORDERS, b"one")
        back = await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, {**sent_back(sent), **fields})
        assert back.code == ResponseCode.SUCCESS, back.header.remark
        (letter,) = (await client.pull("%DLQ%readers", 0)).messages
        assert (letter.body, letter.properties["DLQ_ORIGIN_TOPIC"]) == (b"one", ORDERS)

    with_client(tmp_path, run)


@pytest.mark.parametrize(
    "fields", [{"offset": 1}, {"offset": -1}, {"offset": 1 << 40}, {"originTopic": "other"}]
)
def test_no_other_bytes_than_the_message_are_sent_back(tmp_path: Path, fields: dict[str, object]) -> None:
    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        sent = await client.send(ORDERS, b"one")
        back = await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, {**sent_back(sent), **fields})
        assert (back.code, "look message" in back.header.remark) == (ResponseCode.SYSTEM_ERROR, True)

    with_client(tmp_path, run)


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\xff\xff\xff\xff\xff\xff\xff",
        struct.pack(">II", 20, 9 << 24 | 4),
        struct.pack(">II", 8, 4) + b"{}}}",
        struct.pack(">II", 4, 0),
    ],
)
def test_bytes_that_are_no_frame_end_the_connection_and_no_other(tmp_path: Path, data: bytes) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        async with remoting_client(broker.address) as other:
            other.writer.write(data)
            await other.closed()
        assert (await client.send(ORDERS, b"one")).code == ResponseCode.SUCCESS

    with_client(tmp_path, run)


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE])
def test_topics_of_the_broker_itself_are_not_pulled(tmp_path: Path, code: int) -> None:
    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        await client.send(ORDERS, b"later", properties(DELAY="18"))
        for topic in ("rmq_sys_trovemq_meta", "rmq_sys_wheel_timer"):
            asked = {"consumerGroup": "readers", "topic": topic, "queueId": 0, "queueOffset": 0}
            more = {"maxMsgNums": 32, "sysFlag": 4, "subscription": "*", "commitOffset": 0}
            answer = await client.ask(code, {**asked, **more})
            assert (answer.code, answer.body) == (ResponseCode.NO_PERMISSION, b"")

    with_client(tmp_path, run)


def test_a_delayed_message_is_not_sent_back_before_it_is_due(tmp_path: Path) -> None:
    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        sent = await client.send(ORDERS, b"later", properties(DELAY="18"))
        for topic in ("", "rmq_sys_wheel_timer"):
            fields = {**sent_back(sent), "originTopic": topic}
            back = await client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
            assert "look message" in back.header.remark

    with_client(tmp_path, run)


def test_properties_that_only_a_broker_writes_are_left_out(tmp_path: Path) -> None:
    """Of an idempotent producer, a recall, a transaction, a dead letter, a pop."""

    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        forged = ["TROVEMQ_PRODUCER", "TROVEMQ_SEQUENCE", "TROVEMQ_TX_ID", "TROVEMQ_RESENT", "TROVEMQ_NEW"]
        forged += ["REAL_TOPIC", "TIMER_DEL_UNIQKEY", "DLQ_ORIGIN_TOPIC", "POP_CK", "RETRY_TOPIC", "__CRC32#"]
        names = dict.fromkeys(forged, "1")
        block = properties(**names, colour="red", **{"__RMQ.TRANSIENT.x": "1"}, UNIQ_KEY="k")
        await client.send(ORDERS, b"now", block)
        await client.send(ORDERS, b"due", block + properties(TIMER_DELIVER_MS="1"))
        batch = {"a": "p", "b": ORDERS, "c": "", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0, "m": True}
        body = batch_of([(b"many", block.removesuffix("\x02"))])
        await client.ask(RequestCode.SEND_BATCH_MESSAGE, batch, body)
        found = await client.pull(ORDERS, 0)
        assert found.bodies == [b"now", b"due", b"many"]
        for message in found.messages:
            names = {**message.properties}
            assert names.pop("__CRC32#", "") != "1"
            assert names.keys() <= {"colour", "UNIQ_KEY", "TIMER_DELIVER_MS"}

    with_client(tmp_path, run)


def test_a_connection_joins_no_more_groups_than_it_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "GROUPS_MAX", 2)

    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        answers = [await client.heartbeat("one", group) for group in ("g1", "g2", "g3", "g1")]
        assert [one.code for one in answers] == [0, 0, ResponseCode.SYSTEM_BUSY, 0]

    with_client(tmp_path, run)


@pytest.mark.parametrize("topic", [ORDERS, "%RETRY%readers"])
def test_a_body_larger_than_the_limit_is_refused_in_each_topic(tmp_path: Path, topic: str) -> None:
    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        await client.heartbeat("one")
        sent = await client.send(topic, bytes(16_385), properties(RETRY_TOPIC=ORDERS))
        assert sent.code == ResponseCode.MESSAGE_ILLEGAL
        assert "the limit is 16384" in sent.header.remark

    with_client(tmp_path, run)


def test_unique_keys_are_added_where_a_client_gave_none(tmp_path: Path) -> None:
    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        due = await client.send(ORDERS, b"due", properties(UNIQ_KEY="", TIMER_DELIVER_MS="1"), 1)
        assert due.code == ResponseCode.SUCCESS, due.header.remark
        sent = await client.send(ORDERS, b"one", "TAGS\x01a")
        (message,) = (await client.pull(ORDERS, 0)).messages
        assert message.properties["TAGS"] == "a"
        assert message.properties["UNIQ_KEY"] == sent.fields["transactionId"]

    with_client(tmp_path, run)
