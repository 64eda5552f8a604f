"""Delayed messages that their producer recalls, by a raw client."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.broker_here import BrokerHere
from tests.support.remoting_broker import served
from tests.support.remoting_client import RemotingClient
from trovemq_proto.remoting.codes import RequestCode, ResponseCode


def test_a_recalled_message_is_not_delivered(tmp_path: Path) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        await broker.create_topic("orders", 1)
        sent = await client.send("orders", b"never", "UNIQ_KEY\x01k1\x02DELAY\x011\x02")
        later = await client.send("orders", b"later", "UNIQ_KEY\x01k2\x02DELAY\x011\x02")
        asked = {"topic": "orders", "recallHandle": sent.fields["recallHandle"], "producerGroup": "p"}
        for _ in range(2):  # to repeat it changes nothing
            done = await client.ask(RequestCode.RECALL_MESSAGE, asked)
            assert (done.code, done.fields) == (ResponseCode.SUCCESS, {"msgId": "k1"})
        found = await client.pull("orders", 0, sysFlag=6, suspendTimeoutMillis=8_000)
        assert (later.code, found.bodies) == (ResponseCode.SUCCESS, [b"later"])

    served(tmp_path, run)


@pytest.mark.parametrize(
    ("topic", "handle", "code"),
    [
        ("orders", "", ResponseCode.INVALID_PARAMETER),
        ("orders", "x" * 5_000, ResponseCode.INVALID_PARAMETER),
        ("absent", "x", ResponseCode.TOPIC_NOT_EXIST),
    ],
)
def test_a_handle_that_cannot_be_is_refused(tmp_path: Path, topic: str, handle: str, code: int) -> None:
    async def run(broker: BrokerHere, client: RemotingClient) -> None:
        await broker.create_topic("orders", 1)
        asked = {"topic": topic, "recallHandle": handle}
        assert (await client.ask(RequestCode.RECALL_MESSAGE, asked)).code == code

    served(tmp_path, run)
