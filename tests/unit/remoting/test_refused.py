"""Requests that are not served: the answer is at once, and says why."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.support.broker_here import BrokerHere
from tests.support.remoting_broker import served
from tests.support.remoting_client import RemotingClient, remoting_client
from trovemq_broker.server.remoting.rights import ROWS
from trovemq_proto.remoting.codes import RequestCode, ResponseCode
from trovemq_proto.remoting.headers import BINARY
from trovemq_proto.remoting.refused import REFUSED, refusal_text

QUERY_ASSIGNMENT = 400
POP_MESSAGE = 200_050
POP_REQUESTS: dict[int, tuple[dict[str, object], bytes]] = {
    QUERY_ASSIGNMENT: (
        {},
        b'{"clientId":"c","consumerGroup":"readers","messageModel":"CLUSTERING","strategyName":"AVG",'
        b'"topic":"orders"}',
    ),
    POP_MESSAGE: (
        {
            "consumerGroup": "readers",
            "topic": "orders",
            "queueId": -1,
            "maxMsgNums": 32,
            "invisibleTime": 60_000,
            "pollTime": 15_000,
            "bornTime": 1_700_000_000_000,
            "initMode": 0,
            "expType": "TAG",
            "exp": "*",
            "order": False,
        },
        b"",
    ),
    200_051: (
        {
            "consumerGroup": "readers",
            "topic": "orders",
            "queueId": 0,
            "offset": 0,
            "extraInfo": "0 1700000000000 60000 0 0 broker-a 0 0",
        },
        b"",
    ),
    200_053: (
        {
            "consumerGroup": "readers",
            "topic": "orders",
            "queueId": 0,
            "offset": 0,
            "extraInfo": "0 1700000000000 60000 0 0 broker-a 0 0",
            "invisibleTime": 1_000,
        },
        b"",
    ),
    200_151: (
        {},
        b'{"brokerName":"broker-a","acks":[{"c":"readers","t":"orders","r":"0","so":0,"q":0,"rq":0,'
        b'"pt":1700000000000,"it":60000,"b":"AQ=="}]}',
    ),
}
"""As a push consumer of 5.4.0 with setClientRebalance(false) sends them."""


def test_codes_that_are_not_served_are_answered_at_once(tmp_path: Path) -> None:
    async def run(_broker: BrokerHere, client: RemotingClient) -> None:
        codes = sorted([*REFUSED, 209, 214, 5_001, 9_999, -1])
        waiting = [client.begin(code, {"topic": "x"}, b"body") for code in codes]
        for code, answer in zip(codes, await asyncio.wait_for(asyncio.gather(*waiting), 10), strict=True):
            assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert answer.header.remark.startswith(f" request type {code} not supported")
            assert code not in REFUSED or answer.header.remark.endswith(f": {REFUSED[code].why}")

    served(tmp_path, run)


def test_no_request_is_both_served_and_refused() -> None:
    assert not REFUSED.keys() & ROWS.keys()
    ours = {RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER}  # sent to RocketMQ's nameservers
    assert not REFUSED.keys() & (set(RequestCode) - ours)


def test_requests_of_pop_do_not_wait_for_messages_and_the_client_can_pull(tmp_path: Path) -> None:
    """A held request would keep the consumer's only connection waiting for its poll time."""

    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        await broker.create_topic("orders", 1)
        await client.heartbeat("c")
        waiting = [client.begin(code, *request) for code, request in POP_REQUESTS.items()]
        answers = await asyncio.wait_for(asyncio.gather(*waiting), 10)
        for answer in answers:
            assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert "POP is served by gRPC alone" in answer.header.remark
        assert "setClientRebalance(true)" in answers[0].header.remark
        await client.send("orders", b"one")
        assert (await client.pull("orders", 0)).bodies == [b"one"]
        members = await client.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "readers"})
        assert json.loads(members.body) == {"consumerIdList": ["c"]}

    served(tmp_path, run)


def test_a_code_that_a_binary_header_has_cut_is_refused_with_its_reason(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, _client: RemotingClient) -> None:
        async with remoting_client(broker.address, BINARY) as client:
            answer = await client.ask(POP_MESSAGE, POP_REQUESTS[POP_MESSAGE][0])
            assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            assert answer.header.remark == refusal_text(3_442)
            assert answer.header.remark.endswith(REFUSED[POP_MESSAGE].why)

    served(tmp_path, run)
