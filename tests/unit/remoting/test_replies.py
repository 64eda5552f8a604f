"""Requests and replies: the broker passes a reply on to the producer that waits for it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.support.broker_here import BrokerHere
from tests.support.remoting_broker import served
from tests.support.remoting_client import Answer, RemotingClient, remoting_client
from trovemq_broker.server.remoting import replies
from trovemq_proto.remoting.codes import RequestCode, ResponseCode
from trovemq_proto.remoting.frame import encode_frame
from trovemq_proto.remoting.headers import IS_RESPONSE, Header

TOPIC = "DefaultCluster_REPLY_TOPIC"
SHORT = {"a": "p", "b": TOPIC, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
LONG = {
    "producerGroup": "p",
    "topic": TOPIC,
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": 4,
    "queueId": 0,
    "sysFlag": 0,
    "bornTimestamp": 1,
    "flag": 0,
}


async def produce(client: RemotingClient, client_id: str) -> None:
    data = {"clientID": client_id, "producerDataSet": [{"groupName": "shop"}, {"groupName": "other"}]}
    await client.ask(RequestCode.HEART_BEAT, body=json.dumps(data).encode())


async def reply(client: RemotingClient, client_id: str, **more: object) -> Answer:
    text = f"CORRELATION_ID\x01c\x02REPLY_TO_CLIENT\x01{client_id}\x02MSG_TYPE\x01reply"
    return await client.ask(RequestCode.SEND_REPLY_MESSAGE_V2, {**SHORT, "i": text, **more}, b"answer")


@pytest.mark.parametrize("code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])
def test_a_reply_is_passed_on_to_its_requester(tmp_path: Path, code: int) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        route = await client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC})
        assert route.json()["queueDatas"][0]["perm"] == 6
        async with remoting_client(broker.address) as requester:
            await produce(requester, "r1")
            names, text = (SHORT, "i") if code == RequestCode.SEND_REPLY_MESSAGE_V2 else (LONG, "properties")
            fields = {**names, text: "REPLY_TO_CLIENT\x01r1\x02CORRELATION_ID\x01c"}
            waiting = client.begin(code, fields, b"answer")
            asked = await requester.asked()
            assert (asked.code, asked.body) == (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, b"answer")
            assert asked.fields["topic"] == TOPIC
            assert "CORRELATION_ID\x01c" in asked.fields["properties"]
            assert asked.fields["bornHost"].startswith("127.0.0.1:")
            requester.writer.write(encode_frame(Header(0, asked.header.opaque, IS_RESPONSE)))
            done = await waiting
            assert (done.code, done.fields["queueOffset"]) == (ResponseCode.SUCCESS, "0"), done.header.remark

    served(tmp_path, run)


def test_a_reply_without_its_requester_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        none = await reply(client, "r1")
        assert none.code == ResponseCode.SYSTEM_ERROR
        assert none.header.remark == "push reply message fail, channel of <r1> not found."
        monkeypatch.setattr(replies, "ANSWER_S", 0.02)
        async with remoting_client(broker.address) as requester:
            await produce(requester, "r1")
            assert (await reply(client, "r1")).code == ResponseCode.CONSUME_MSG_TIMEOUT
            leaving = {"clientID": "r1", "producerGroup": "shop"}
            await requester.ask(RequestCode.UNREGISTER_CLIENT, leaving)
            assert (await reply(client, "r1")).code == ResponseCode.CONSUME_MSG_TIMEOUT
            await requester.ask(RequestCode.UNREGISTER_CLIENT, {**leaving, "producerGroup": "other"})
            assert (await reply(client, "r1")).code == ResponseCode.SYSTEM_ERROR

    served(tmp_path, run)


def test_a_reply_came_only_after_the_next_heartbeat_of_its_requester(tmp_path: Path) -> None:
    """A client that has sent a message before knows the route, and sends no heartbeat with its request."""

    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        await broker.create_topic("orders", 1)
        async with remoting_client(broker.address) as requester:
            await requester.send("orders", b"ask", "REPLY_TO_CLIENT\x01r1\x02CORRELATION_ID\x01c\x02")
            waiting = asyncio.ensure_future(reply(client, "r1"))
            asked = await requester.asked()
            assert (asked.code, asked.body) == (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, b"answer")
            requester.writer.write(encode_frame(Header(0, asked.header.opaque, IS_RESPONSE)))
            assert (await waiting).code == ResponseCode.SUCCESS
            async with remoting_client(broker.address) as other:
                await produce(other, "r1")
                waiting = asyncio.ensure_future(reply(client, "r1"))
                asked = await other.asked()
                other.writer.write(encode_frame(Header(0, asked.header.opaque, IS_RESPONSE)))
                assert (await waiting).code == ResponseCode.SUCCESS, "a producer by heartbeat comes first"

    served(tmp_path, run)


def test_a_reply_to_a_requester_that_is_gone_is_an_error(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        await broker.create_topic("orders", 1)
        async with remoting_client(broker.address) as former:
            await former.send("orders", b"ask", "REPLY_TO_CLIENT\x01r1\x02")
            async with remoting_client(broker.address) as requester:
                await requester.send("orders", b"ask", "REPLY_TO_CLIENT\x01r1\x02")
                await former.close()
                waiting = asyncio.ensure_future(reply(client, "r1"))
                asked = await requester.asked()
                requester.writer.write(encode_frame(Header(0, asked.header.opaque, IS_RESPONSE)))
                assert (await waiting).code == ResponseCode.SUCCESS
        for _ in range(200):
            if (await reply(client, "r1")).code == ResponseCode.SYSTEM_ERROR:
                return
        pytest.fail("the connection is closed, and still has the replies")

    served(tmp_path, run)


def test_a_reply_that_cannot_be_is_refused(tmp_path: Path) -> None:
    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        short = {name: value for name, value in SHORT.items() if name != "e"}
        lacks = await client.ask(RequestCode.SEND_REPLY_MESSAGE_V2, short, b"answer")
        assert lacks.header.remark == "the header lacks the field e"
        large = await client.ask(RequestCode.SEND_REPLY_MESSAGE_V2, SHORT, b"x" * 20_000)
        assert large.code == ResponseCode.MESSAGE_ILLEGAL

    served(tmp_path, run)


def test_the_right_for_any_topic_was_one_to_reply(tmp_path: Path) -> None:
    """The right is that of the topic in the request, which had no more use."""

    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        async with remoting_client(broker.address) as requester:
            await produce(requester, "r1")
            refused = await reply(client, "r1", b="mine")
            assert refused.code == ResponseCode.TOPIC_NOT_EXIST
            assert TOPIC in refused.header.remark

    served(tmp_path, run)


def test_a_reply_had_more_properties_than_a_message(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        async with remoting_client(broker.address) as requester:
            await produce(requester, "r1")
            text = "REPLY_TO_CLIENT\x01r1\x02A\x01" + "x" * 32_768
            assert (await reply(client, "r1", i=text)).code == ResponseCode.MESSAGE_ILLEGAL

    served(tmp_path, run)


def test_a_request_is_stored_with_its_cluster(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        await broker.create_topic("orders", 1)
        await client.send("orders", b"ask", "REPLY_TO_CLIENT\x01r1\x02")
        (message,) = (await client.pull("orders", 0)).messages
        assert message.properties["CLUSTER"] == "DefaultCluster"

    served(tmp_path, run)
